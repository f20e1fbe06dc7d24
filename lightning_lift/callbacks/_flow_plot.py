"""Drawings of a flow in the plane and of marginals beyond it. Pure: arrays in, a figure out, no pyplot."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SHOWN = 1000  # points of a scatter: more of them are one blot
_POINTS: dict[str, Any] = {"s": 2.5, "linewidths": 0.0, "rasterized": True}


@dataclass(frozen=True)
class FlowPicture:
    """What is drawn of a flow in the plane, everything in original units.

    Attributes:
        axes: grid along each dimension, (M,) each.
        model: the model's density on the grid, (M, M), first index along the first dimension.
        samples: of the model, (N, 2).
        truth: the true density on the grid, or None.
        rows: held-out rows, (K, 2).
        grid: the pre-images of the lines z1 = c and z2 = c of the base, (2, C, P, 2), with NaN where the inverse
            failed; None for a model without a map.
        columns: name of each dimension.
        title: over the figure.
    """

    axes: tuple[Array, Array]
    model: Array
    samples: Array
    truth: Array | None
    rows: Array
    grid: Array | None
    columns: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class MarginalPicture:
    """What is drawn of a model in more than two dimensions, or of a posterior, in original units.

    Attributes:
        samples: of the model, (N, C), the columns to show.
        rows: what they should look like, (K, C); None where that is not known.
        columns: their names.
        title: over the figure.
        labels: of samples and rows.
        truth: a point to mark, (C,), or None.
    """

    samples: Array
    rows: Array | None
    columns: tuple[str, ...]
    title: str
    labels: tuple[str, str] = ("samples", "held-out rows")
    truth: Array | None = None


def draw_flow(picture: FlowPicture) -> Figure:
    """Draw held-out rows on the truth, samples on the model's density, and the grid of the map, on common axes.

    Args:
        picture: as described.
    """
    panels = 2 if picture.grid is None else 3
    figure = Figure(figsize=(4.4 * panels + 0.6, 4.4), layout="constrained")
    drawn = list(np.atleast_1d(figure.subplots(1, panels, sharex=True, sharey=True)))
    x, y = picture.axes
    reference = picture.model if picture.truth is None else picture.truth
    top = float(reference.max())
    levels = np.linspace(0.0, top if top > 0.0 else 1.0, 11)
    style: dict[str, Any] = {"levels": levels, "cmap": "viridis", "extend": "max"}
    if picture.truth is not None:
        drawn[0].contourf(x, y, picture.truth.T, **style)
        drawn[0].set_title("truth, held-out rows")
    else:
        drawn[0].contour(x, y, picture.model.T, levels=levels[1:], cmap="viridis", linewidths=0.7)
        drawn[0].set_title("held-out rows, model's contours")
    held_out = "white" if picture.truth is not None else "C3"
    drawn[0].scatter(*picture.rows[:_SHOWN].T, color=held_out, **_POINTS)
    filled = drawn[1].contourf(x, y, picture.model.T, **style)
    drawn[1].scatter(*picture.samples[:_SHOWN].T, color="white", **_POINTS)
    drawn[1].set_title("model, samples")
    figure.colorbar(filled, ax=drawn[:2], label="density", shrink=0.9)
    if picture.grid is not None:
        _draw_grid(drawn[2], picture.grid)
        drawn[2].set_title("grid of the base, mapped back")
    for axes in drawn:
        axes.set_xlabel(picture.columns[0])
        axes.set_xlim(float(x[0]), float(x[-1]))
        axes.set_ylim(float(y[0]), float(y[-1]))
    drawn[0].set_ylabel(picture.columns[1])
    figure.suptitle(picture.title)
    return figure


def _draw_grid(axes: Axes, grid: Array) -> None:
    # One family of lines in a blue, the other in a red: where they cross at a slant the map shears.
    for lines, name in zip(grid, ("Blues", "Reds"), strict=True):
        shades = colormaps[name](np.linspace(0.45, 0.95, len(lines)))
        # Cut at failed points; a collection draws nothing for a segment with NaN.
        segments = [np.stack(pair) for line in lines for pair in pairwise(line)]
        colours = np.repeat(shades, lines.shape[1] - 1, axis=0)
        axes.add_collection(LineCollection(segments, colors=colours, linewidths=0.8, rasterized=True))


def draw_marginals(picture: MarginalPicture) -> Figure:
    """Draw every pair of columns: samples below the diagonal, rows above it, both along it, the truth across.

    Args:
        picture: at least one column.
    """
    count = picture.samples.shape[1]
    side = 2.4 * count + 1.2 if count > 1 else 5.0
    figure = Figure(figsize=(side, side if count > 1 else 4.0), layout="constrained")
    grid = figure.subplots(count, count, squeeze=False)
    shown = picture.samples if picture.rows is None else picture.rows
    truth = picture.samples[:0] if picture.truth is None else picture.truth[None]
    ends = [_span(shown[:, i], truth[:, i]) for i in range(count)]
    for i in range(count):
        for j in range(count):
            axes = grid[i, j]
            points = picture.samples if i >= j else picture.rows
            if points is None:
                axes.set_axis_off()
                continue
            if i == j:
                _draw_histograms(axes, picture, i, ends[i])
                axes.set_yticks([])
            else:
                colour = "C0" if i > j else "0.35"
                axes.scatter(points[:_SHOWN, j], points[:_SHOWN, i], color=colour, **_POINTS)
                axes.scatter(truth[:, j], truth[:, i], color="C3", marker="+", s=90.0, linewidths=1.2)
                axes.set_ylim(*ends[i])
            axes.set_xlim(*ends[j])
            if i == count - 1:
                axes.set_xlabel(picture.columns[j])
            if j == 0 and i:
                axes.set_ylabel(picture.columns[i])
    grid[0, 0].legend(frameon=False, fontsize="small", loc="best")
    of_samples, of_rows = picture.labels
    said = of_samples
    if picture.rows is not None:
        said = f"{of_samples} below the diagonal, {of_rows} above" if count > 1 else f"{of_samples} and {of_rows}"
    figure.suptitle(f"{picture.title}\n{said}", fontsize="medium")  # two lines: a figure of two columns is narrow
    return figure


def _draw_histograms(axes: Axes, picture: MarginalPicture, column: int, ends: tuple[float, float]) -> None:
    both = zip((picture.rows, picture.samples), reversed(picture.labels), strict=True)
    compared = [(values, label) for values, label in both if values is not None]
    bins = np.linspace(*ends, int(np.clip(2.0 * len(compared[0][0]) ** (1.0 / 3.0), 8, 50)) + 1)
    widths = np.diff(bins)
    tops = []
    for values, label in compared:
        heights = np.histogram(values[:, column], bins)[0] / (len(values) * widths)
        tops.append(float(heights.max()))
        filled = values is picture.rows
        axes.stairs(heights, bins, label=label, fill=filled, color="0.8" if filled else "C0", linewidth=1.3)
    if picture.truth is not None:
        axes.axvline(picture.truth[column], color="C3", linewidth=1.2, label="truth")
    # A collapsed model shall not flatten the data.
    axes.set_ylim(0.0, 1.05 * max(tops[0], min(tops[-1], 2.0 * tops[0]), 1e-12))


def _span(values: Array, also: Array) -> tuple[float, float]:
    """Where nearly all values lie, and the others all, with a margin."""
    low, high = np.quantile(values, [0.002, 0.998])
    low, high = min([low, *also]), max([high, *also])
    margin = 0.08 * (high - low) or 1.0
    return float(low - margin), float(high + margin)
