"""Drawings of a comparison. Pure: a comparison in, a figure with a text for those who cannot see it out; no pyplot."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from scipy.stats import gaussian_kde

from lightning_lift.compare.report.formatting import capital, number, plain_name, slug
from lightning_lift.compare.report.results import ArmRuns, Axis, Checkpoint, Comparison, curve_band
from lightning_lift.compare.statistics import Description, describe
from lightning_lift.compare.tuning import by_rate

Array = NDArray[np.float64]

# Okabe and Ito's colours, told apart by readers with any colour vision; the yellow, too light for lines, comes last.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#B8A800")
LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"
DPI = 150
_SIZE = (5.4, 3.7)
_ORDERS = 20.0  # largest over smallest from which positive numbers are drawn on a logarithmic axis
_FEW = 3  # fewer points have no shape


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
        name: of its file, without extension.
        figure: what is drawn.
        alt: what it shows, for those who cannot see it.
        caption: how it is to be read.
    """

    name: str
    figure: Figure
    alt: str
    caption: str

    @cached_property
    def png(self) -> bytes:
        """The drawn figure: the page and the folder of figures hold the same one."""
        stream = io.BytesIO()
        self.figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
        return stream.getvalue()

    @cached_property
    def svg(self) -> str:
        """The same as vectors, with no date in it and a fixed salt: the same records give the same file."""
        stream = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        return stream.getvalue()


@dataclass(frozen=True)
class Style:
    """How an arm is drawn, the same in every figure."""

    color: str
    line: str
    marker: str


def style_of(index: int) -> Style:
    """The style of the arm at a place in the order of arms; beyond eight the colours repeat with other lines.

    Args:
        index: from 0.
    """
    turn = index // len(PALETTE)
    return Style(
        PALETTE[index % len(PALETTE)], LINES[(index + turn) % len(LINES)], MARKERS[(index + turn) % len(MARKERS)]
    )


def distribution(comparison: Comparison, metric: str, checkpoint: Checkpoint) -> Picture | None:
    """A violin, a box and the points of each arm.

    Args:
        comparison: of any number of arms and seeds.
        metric: of ``comparison.metrics``.
        checkpoint: ``best`` or ``last``.

    Returns:
        None where no run has the metric.
    """
    values = _by_arm(comparison, metric, checkpoint)
    if not any(len(own) for own in values):
        return None
    figure, axes, logarithmic = _axes(plain_name(metric), np.concatenate(values))
    for index, own in enumerate(values):
        color = style_of(index).color
        if len(own) >= _FEW and np.ptp(own) > 1e-12 * np.abs(own).max():
            _violin(axes, index, own, color, logarithmic)
            box = axes.boxplot([own], positions=[index], widths=0.14, showfliers=False, manage_ticks=False)
            for line in (*box["boxes"], *box["whiskers"], *box["caps"], *box["medians"]):
                line.set(color="0.15", linewidth=1.2)
        # A fixed scatter, not a random one: the same records give the same picture.
        spread = 0.16 * (np.modf(np.arange(len(own)) * 0.618034)[0] - 0.5)
        axes.scatter(index + 0.3 + spread, own, s=11.0, color=color, alpha=0.75, linewidths=0.0)
    _arm_ticks(axes, comparison)
    medians = "; ".join(
        f"{arm.label} median {number(describe(list(own)).median)} of {len(own)} runs"
        for arm, own in zip(comparison.arms, values, strict=True)
    )
    return Picture(
        f"distribution-{slug(metric)}",
        figure,
        f"Distribution of the {plain_name(metric)} by arm: {medians}.",
        f"{capital(plain_name(metric))} at the {checkpoint} checkpoint: one point a run, box of the quartiles, "
        "whiskers to the last point within 1.5 box lengths.",
    )


def paired_lines(comparison: Comparison, metric: str, checkpoint: Checkpoint) -> Picture | None:
    """A line a seed across the arms: whether an arm is better in each seed or only on average.

    Args:
        comparison: of at least two arms.
        metric: of ``comparison.metrics``.
        checkpoint: ``best`` or ``last``.

    Returns:
        None where fewer than two arms have the metric.
    """
    values = _by_arm(comparison, metric, checkpoint)
    if sum(len(own) > 0 for own in values) < 2:
        return None
    figure, axes, _ = _axes(plain_name(metric), np.concatenate(values))
    table = pd.concat(values, axis="columns").reindex(comparison.seeds)
    alpha = max(0.06, min(0.6, 12.0 / len(table)))
    axes.plot(range(len(values)), table.to_numpy().T, color="0.55", linewidth=0.7, alpha=alpha, zorder=1)
    for index, own in enumerate(values):
        style, places = style_of(index), np.full(len(own), index)
        axes.scatter(places, own, s=14.0, color=style.color, marker=style.marker, linewidths=0.0, zorder=2)
        if len(own):
            axes.hlines(np.median(own), index - 0.18, index + 0.18, color="0.1", linewidth=2.2, zorder=3)
    _arm_ticks(axes, comparison)
    axes.set_xlim(-0.4, len(values) - 0.6)
    return Picture(
        f"pairs-{slug(metric)}",
        figure,
        f"{capital(plain_name(metric))} of each seed across the arms, the points of a seed joined by a line.",
        f"{capital(plain_name(metric))} at the {checkpoint} checkpoint: a line joins the runs of one seed, which have "
        "the same start and data; it ends where a run did not finish. Bars: medians.",
    )


def curves(comparison: Comparison, name: str, axis: Axis, until: float | None = None) -> Picture | None:
    """Median and quartiles over the seeds, by arm, along steps or seconds of training.

    Args:
        comparison: whose records have the curve.
        name: of the curve.
        axis: along which.
        until: a common limit, drawn as a vertical line.

    Returns:
        None where nothing was measured.
    """
    bands = {index: curve_band(arm, name, axis) for index, arm in enumerate(comparison.arms)}
    bands = {index: band for index, band in bands.items() if len(band)}
    if not bands:
        return None
    figure, axes, logarithmic = _axes(plain_name(name), pd.concat(bands)["median"])
    ends = []
    for index, band in bands.items():
        style, label = style_of(index), comparison.arms[index].label
        axes.fill_between(band["x"], band["low"], band["high"], color=style.color, alpha=0.18, linewidth=0.0)
        (line,) = axes.plot(
            band["x"], band["median"], color=style.color, linestyle=style.line, linewidth=1.8, label=label
        )
        if len(band) < 2:
            line.set_marker(style.marker)
        ends.append(f"{label} ends at {number(band['median'].iloc[-1])}")
    cut = _cut_start(axes, [*bands.values()]) if not logarithmic else ""
    axes.set_xlim(left=0.0)
    unit = "optimizer steps" if axis == "steps" else "seconds of training"
    axes.set_xlabel(unit)
    _legend(axes)
    reach = ""
    if until is not None and math.isfinite(until):
        axes.axvline(until, color="0.35", linewidth=1.0, linestyle=(0, (2, 2)))
        reach = f" Dotted: {number(until)} {'steps' if axis == 'steps' else 's'}, which all arms reach."
    return Picture(
        f"curve-{slug(name)}-{axis}",
        figure,
        f"{capital(plain_name(name))} over {unit}, median by arm: {'; '.join(ends)}.",
        f"{capital(plain_name(name))} over {unit}: median and quartiles of the finished runs.{cut}{reach}",
    )


def tuning(comparison: Comparison) -> Picture | None:
    """The validation metric over the learning rates tried, the chosen ones ringed.

    Args:
        comparison: of any number of arms.

    Returns:
        None without tuning runs at given rates.
    """
    tried: dict[int, dict[float, Description]] = {}
    for index, arm in enumerate(comparison.arms):
        found = {rate: describe(values) for rate, values in by_rate(arm.tunings, comparison.monitor).items()}
        if known := {rate: one for rate, one in found.items() if one.count}:
            tried[index] = known
    if not tried:
        return None
    monitor = f"best {plain_name(comparison.monitor)}"
    figure, axes, _ = _axes(monitor, np.asarray([one.mean for found in tried.values() for one in found.values()]))
    told = []
    for index, found in tried.items():
        arm, style = comparison.arms[index], style_of(index)
        means = [one.mean for one in found.values()]
        errors = [np.nan_to_num(one.standard_error) for one in found.values()]
        axes.errorbar(list(found), means, errors, color=style.color, linestyle=style.line, marker=style.marker,
                      markersize=4.5, linewidth=1.5, capsize=2.5, label=arm.label)  # fmt: skip
        ringed = {rate: one.mean for rate, one in found.items() if rate in arm.rates}
        axes.scatter(list(ringed), list(ringed.values()), s=130.0, facecolors="none", edgecolors=style.color,
                     linewidths=1.8)  # fmt: skip
        told.append(f"{arm.label} is lowest at {min(found, key=lambda rate: found[rate].mean):g}")
    axes.set_xscale("log")
    rates = sorted({record.learning_rate for record in comparison.tunings if record.learning_rate})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=30 if len(rates) > 6 else 0)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("learning rate")
    _legend(axes)
    return Picture(
        "tuning",
        figure,
        f"{capital(monitor)} over the learning rate: {'; '.join(told)}.",
        "Mean and standard error over the tuning runs that finished; the rates of the final runs are ringed.",
    )


def _by_arm(comparison: Comparison, metric: str, checkpoint: Checkpoint) -> list[pd.Series]:
    """The finite numbers of each arm, by seed."""
    values = [pd.Series(own, dtype="float64") for own in comparison.values(checkpoint, metric).values()]
    return [own[np.isfinite(own)] for own in values]


def _axes(label: str, values: Array) -> tuple[Figure, Axes, bool]:
    """Empty axes for finite values, and whether they are logarithmic."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)
    axes.xaxis.label.set_fontsize(11)
    axes.set_ylabel(label, fontsize=11)
    # Positive numbers over more than an order: total variations, above all.
    logarithmic = bool(values.min() > 0.0 and values.max() > _ORDERS * values.min())
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return figure, axes, logarithmic


def _violin(axes: Axes, place: int, values: Array, color: str, logarithmic: bool) -> None:
    """The density of the points, estimated on the axis that is drawn."""
    move: Callable[[Array], Array] = np.log if logarithmic else np.asarray
    back: Callable[[Array], Array] = np.exp if logarithmic else np.asarray
    sample = move(values)
    reach = 0.15 * np.ptp(sample)
    grid = np.linspace(sample.min() - reach, sample.max() + reach, 200)
    height = gaussian_kde(sample)(grid)
    width = 0.32 * height / height.max()
    axes.fill_betweenx(back(grid), place - width, place, color=color, alpha=0.35, linewidth=0.0)


def _cut_start(axes: Axes, bands: Sequence[pd.DataFrame]) -> str:
    """Leave a steep start out of sight, so that the arms can be told apart at the end, and say so."""
    later = pd.concat([band[band["x"] >= 0.25 * band["x"].iloc[-1]] for band in bands])
    bottom, top = later["low"].min(), later["high"].max()
    if top <= bottom or max(band["high"].max() for band in bands) - bottom < 3.0 * (top - bottom):
        return ""
    axes.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))
    return " The first quarter of training partly lies beyond the axis."


def _arm_ticks(axes: Axes, comparison: Comparison) -> None:
    labels = [_tick(arm) for arm in comparison.arms]
    crowded = len(labels) > 6 or sum(max(len(line) for line in label.split("\n")) for label in labels) > 60
    axes.set_xticks(range(len(labels)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlim(-0.6, len(labels) - 0.4)


def _tick(arm: ArmRuns) -> str:
    label = arm.label if len(arm.label) <= 24 else arm.label[:22] + "…"
    lost = len(arm.unfinished)
    if len(label) > 14:
        label = label.replace(":", ":\n", 1)
    return label.replace("$", r"\$") + (f"\n({lost} unfinished)" if lost else "")


def _legend(axes: Axes) -> None:
    legend = axes.legend(frameon=False, fontsize=9.5, ncols=1 if len(axes.get_legend_handles_labels()[0]) <= 6 else 2)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label is a label, whatever signs it has
