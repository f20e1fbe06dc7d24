"""What a report says, section by section, before it is a page or a Markdown file."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report import figures, tables
from lightning_lift.compare.report.conclusions import conclude_all, fairness, missing_runs
from lightning_lift.compare.report.figures import Picture
from lightning_lift.compare.report.formatting import capital, counted, number, plain_name, slug, unit_of
from lightning_lift.compare.report.results import Axis, Checkpoint, Comparison
from lightning_lift.compare.report.tables import Table
from lightning_lift.compare.statistics import LEVEL, PairedDifference, smallest_p_value
from lightning_lift.compare.tuning import RULE, choose

# Timing and final runs may differ by what runs beside them, but alike in each arm; beyond this factor between two arms
# the order of their costs is in doubt.
_CLOCKS_AGREE = 1.4


@dataclass(frozen=True)
class Text:
    """A paragraph; a ``warning`` is set off, loudly."""

    text: str
    kind: Literal["plain", "warning"] = "plain"


@dataclass(frozen=True)
class Listing:
    """Sentences, one a point."""

    items: Sequence[str]


@dataclass(frozen=True)
class Verbatim:
    """Text in its own lines, folded away under a title where that is possible."""

    title: str
    text: str


Block = Text | Listing | Verbatim | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        name: short, for links.
        title: the heading.
        blocks: in order; a section without any is left out of the report.
    """

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Content:
    """A whole report.

    Attributes:
        title: of the page.
        lead: one paragraph: what this is.
        sections: in order; those without anything to say are left out.
    """

    title: str
    lead: str
    sections: Sequence[Section]

    @property
    def pictures(self) -> list[Picture]:
        """All of them, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def make_content(settings: Mapping[str, Any], records: Sequence[RunRecord]) -> Content:
    """Read everything off the records and draw the figures.

    Args:
        settings: of the comparison. Read are ``name``, ``arms`` (for their order), ``seeds`` (for what is missing),
            ``budget``, ``notes`` (sentences to be shown) and ``metrics`` (test metrics that are tested; default: total
            variation and NLL where there are).
        records: of all runs so far; there may be none.
    """
    comparison = Comparison.of(settings, records)
    labels = [arm.label for arm in comparison.arms]
    name = str(settings.get("name") or "").strip()
    lead = (
        f"{counted(len(labels), 'arm')} ({', '.join(labels) or 'none'}), {counted(len(comparison.seeds), 'seed')}: "
        f"{counted(len(comparison.finals), 'final run')} and {counted(len(comparison.tunings), 'tuning run')}. "
        "Arms are compared seed by seed."
    )
    paired = {metric: comparison.paired(comparison.values("best", metric), metric) for metric in comparison.headlines}
    parts: list[tuple[str, str, Iterable[Block | None]]] = [
        ("conclusions", "What follows from the tests", _conclusions(comparison, paired)),
        ("setting", "What was compared", _setting(comparison)),
        *[
            (f"result-{slug(metric)}", f"Result: {plain_name(metric)}", _result(comparison, metric, paired))
            for metric in paired
        ],
        ("time", "Equal steps and equal wall clock", _time(comparison)),
        ("tuning", "Tuning", _tuning(comparison)),
        ("cost", "Outcomes and cost", _cost(comparison)),
        ("diagnostics", "Diagnostics by arm", _diagnostics(comparison)),
        ("details", "Details", _details(comparison)),
        ("reading", "How the numbers are made", [Listing([" ".join(text.split()) for text in _READING.split("\n\n")])]),
    ]
    sections = [Section(link, head, [block for block in blocks if block is not None]) for link, head, blocks in parts]
    title = f"Comparison of parameterizations{': ' + name if name else ''}"
    return Content(title, lead, [section for section in sections if section.blocks])


def _conclusions(comparison: Comparison, paired: Mapping[str, Sequence[PairedDifference]]) -> Iterator[Block]:
    """On the first test metric, and the same at equal seconds: the other metrics have their own sections."""
    yield from _warnings([*missing_runs(comparison), *fairness(comparison).faults])
    if not comparison.seeds:
        yield Text("There are no final runs yet, so there is nothing to conclude.")
    elif len(comparison.arms) < 2:
        yield Text("There is one arm, so there is nothing to compare it with.")
    elif not paired:
        yield Text("No final run has a test metric, so nothing can be compared.")
    else:
        metric = next(iter(paired))
        yield Text(f"{capital(plain_name(metric))} at the best checkpoint. {_equal(comparison)}")
        yield _concluded(metric, paired[metric])
        curve = "val/" + metric.removeprefix("test/")
        same = _within(comparison, "seconds", curve) if curve in comparison.headline_curves else []
        if any(one.pairs for one in same):
            limit = number(comparison.common_limit["seconds"])
            yield Text(f"{capital(plain_name(curve))} after equal training time, {limit} s:")
            yield _concluded(curve, same)
    losers = [f"{arm.label} {len(arm.unfinished)} of {len(arm.finals)}" for arm in comparison.arms if arm.unfinished]
    if losers:
        yield Text(f"Runs that did not finish: {', '.join(losers)}. They count as lost in the win rates.")


def _setting(comparison: Comparison) -> Iterator[Block]:
    if not comparison.arms:
        return
    found = fairness(comparison)
    yield tables.arms_table(comparison)
    yield tables.common_table(comparison)
    yield from _warnings(found.faults)
    for text in [*found.notes, *(comparison.settings.get("notes") or ())]:
        yield Text(str(text))


def _result(
    comparison: Comparison, metric: str, paired: Mapping[str, Sequence[PairedDifference]]
) -> Iterator[Block | None]:
    yield Text(_equal(comparison))
    yield tables.results_table(comparison, metric)
    yield figures.distribution(comparison, metric, "best")
    yield figures.paired_lines(comparison, metric, "best")
    if not paired[metric]:
        return
    if metric != next(iter(paired)):  # of the first one the conclusions have said it
        yield _concluded(metric, paired[metric])
    yield tables.differences_table("Paired differences, best checkpoint", paired[metric])
    last = comparison.paired(comparison.values("last", metric), metric)
    if any(one.pairs for one in last):
        yield tables.differences_table("Paired differences, last checkpoint", last)


def _warnings(texts: Iterable[str]) -> list[Text]:
    return [Text(text, "warning") for text in texts]


def _concluded(metric: str, paired: Sequence[PairedDifference]) -> Listing:
    return Listing(conclude_all(plain_name(metric), unit_of(metric), paired))


def _equal(comparison: Comparison) -> str:
    steps = sorted({record.steps for record in comparison.finals})
    if len(steps) < 2:
        return f"At equal steps: every run had {steps[0]:,} optimizer steps." if steps else ""
    if comparison.settings.get("budget") == "seconds":
        return (
            f"At equal seconds of training, as measured in the timing runs: runs had {steps[0]:,} to {steps[-1]:,} "
            "optimizer steps."
        )
    return f"Arms had different numbers of steps, {steps[0]:,} to {steps[-1]:,}: this is no comparison at equal steps."


def _time(comparison: Comparison) -> Iterator[Block | None]:
    curves = comparison.headline_curves
    limit = comparison.common_limit
    if not curves:
        return
    if any(arm.in_batches and math.isnan(arm.seconds_per_step) for arm in comparison.arms):
        yield Text(
            "Seconds are shares of a batch of seeds that were trained at once, because an arm has no timing run: "
            "they are no fair clock between arms.",
            "warning",
        )
    # Where all arms have the same steps, they end together: no line, no table of differences.
    differ = len({record.steps for record in comparison.finished}) > 1
    axes: tuple[Axis, Axis] = ("steps", "seconds")
    for axis in axes:
        for name in curves:
            yield figures.curves(comparison, name, axis, limit[axis] if axis == "seconds" or differ else None)
    if not math.isfinite(limit["seconds"]):
        yield Text("Equal wall clock: not known, because the training time of an arm was not measured.")
    for axis in axes:
        if not math.isfinite(limit[axis]):
            continue
        yield tables.within_table(comparison, axis)
        if axis == "seconds":
            yield Text(_clock(comparison))
            yield _clock_warning(comparison)
        if len(comparison.arms) > 1 and (axis == "seconds" or differ):
            for name in curves:
                title = f"Paired differences at equal {axis}, {plain_name(name)}"
                yield tables.differences_table(title, _within(comparison, axis, name))


def _within(comparison: Comparison, axis: Axis, curve: str) -> list[PairedDifference]:
    return comparison.paired(comparison.values_within(axis, curve), curve)


def _clock(comparison: Comparison) -> str:
    parts = ["The time is that of the arm that was through first."]
    if all(math.isfinite(arm.seconds_per_step) for arm in comparison.arms if arm.finished):
        parts.append(
            "Seconds are steps times the seconds per step of the arm's timing run, beside which the comparison ran "
            "nothing else."
        )
    else:
        parts.append("Seconds were measured in runs that may have shared the machine.")
    if comparison.settings.get("budget") != "seconds":
        parts.append(
            "Learning-rate schedules were made for the steps, so a slower arm is read off before its schedule ends; "
            "--budget seconds fits the schedules to the time."
        )
    parts.append("A run is read at its last evaluation within the time, which may be one interval earlier.")
    parts.append("Test metrics exist at the best and last checkpoint only, so this is on validation data.")
    return " ".join(parts)


def _clock_warning(comparison: Comparison) -> Text | None:
    """Where timing and final runs disagree on which arm is the slower one, the machine was not quiet in one of them."""
    ratios = {arm.label: arm.clock_ratio for arm in comparison.arms if math.isfinite(arm.clock_ratio)}
    if len(ratios) < 2 or max(ratios.values()) < _CLOCKS_AGREE * min(ratios.values()):
        return None
    said = ", ".join(f"{label} {ratio:.2f}" for label, ratio in ratios.items())
    return Text(
        "The timing runs and the final runs disagree on the arms' relative cost (seconds per step of the one over the "
        f"other: {said}): something else ran on the machine, and the results at equal seconds are not to be trusted. "
        "On a quiet machine, delete records/timing-* and call the command again.",
        "warning",
    )


def _tuning(comparison: Comparison) -> Iterator[Block | None]:
    if not comparison.tunings:
        if comparison.seeds:
            yield Text("No learning rate was tuned: every arm ran at the configuration's own.")
        return
    seeds = {record.seed for record in comparison.tunings}
    runs = counted(len(comparison.tunings), "tuning run")
    yield Text(RULE)
    yield Text(f"{runs} on {counted(len(seeds), 'seed')}, none of which enters the results above.")
    if shared := seeds & set(comparison.seeds):
        yield Text(f"Seeds {sorted(shared)} were used for tuning and for the results.", "warning")
    for arm in comparison.arms:
        if arm.tunings and (note := choose(arm.tunings).note):
            yield Text(f"{arm.label}: {note}.", "warning")
    yield figures.tuning(comparison)
    yield tables.tuning_table(comparison)


def _cost(comparison: Comparison) -> Iterator[Block | None]:
    if comparison.seeds:
        yield tables.outcomes_table(comparison)
    yield tables.errors_table(comparison)
    if comparison.seeds:
        yield tables.cost_table(comparison)


def _diagnostics(comparison: Comparison) -> Iterator[Block]:
    for name, meaning in DIAGNOSTICS.items():
        if (picture := figures.curves(comparison, name, "steps")) is not None:
            yield Text(meaning)
            yield picture


def _details(comparison: Comparison) -> Iterator[Block]:
    points: tuple[Checkpoint, Checkpoint] = ("best", "last")
    for point in points:
        if comparison.metrics(point):
            yield tables.all_metrics_table(comparison, point)
    versions = tables.versions_table(comparison)
    if versions.rows:
        yield versions
    if any(" " in row[1] for row in versions.rows):
        yield Text("Runs were made with different versions of a package.", "warning")
    kept = {key: value for key, value in comparison.settings.items() if key != "config"}
    if kept:
        yield Verbatim("Settings of the comparison", json.dumps(kept, indent=1, default=str))
    for arm in comparison.arms:
        if arm.example.config:
            text = json.dumps(arm.example.config, indent=1, default=str)
            yield Verbatim(f"Configuration of {arm.label}, seed {arm.example.seed}", text)


DIAGNOSTICS = {
    "shoulder/occupancy": "Share of the latent on the shoulder, where the readout's slope is at most 0.05 and "
    "gradients hardly pass. Projected weights have no latent: their zeros are a different number, below.",
    "zeros/fraction": "Share of the projected weights that sit exactly at the floor, where the projection put them.",
    "latent/step": "How far one optimizer step moves the latent of one fixed batch: root mean square over its numbers.",
}

_READING = f"""
Mean ± s.e.: mean over the finished runs and its standard error, the standard deviation (n - 1) over the root of n.
Quartiles are the 25 % and 75 % points.

Best is the checkpoint with the lowest monitored validation metric, last is the one after the last step; both are tested
on the test split.

Differences are taken within a seed, first arm minus second. Seeds in which a run of either arm diverged or failed have
none: they are left out there, and count as a loss of that arm in the win rate (a tie if neither finished).

The 95 % interval is of the mean difference: 9,999 bootstrap samples over seeds, bias-corrected and accelerated, with a
fixed seed. With fewer than about ten seeds such intervals are too narrow.

The median shift is the Hodges-Lehmann estimate: the median of the means of all pairs of differences. Rank biserial is
(W+ - W-) / (W+ + W-): -1 where the first arm is lower in every seed, 1 where it is higher in every one.

p is of the two-sided Wilcoxon signed-rank test, counted out exactly up to 200 differences, ties included; zero
differences are left out of it, and where all are zero p is 1. Holm p is corrected for all pairs of arms within one
table, not across tables. A difference is claimed where Holm p is at most {LEVEL:g}.

With n seeds no p-value is below 2 / 2^n (n = 5: {smallest_p_value(5):.3g}; n = 8: {smallest_p_value(8):.2g}).

No difference found is not the same as no difference.
"""
