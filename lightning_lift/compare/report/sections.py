"""What a report says, section by section, before it is a page or a Markdown file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report import figures, tables
from lightning_lift.compare.report.conclusions import conclude_all, fairness, missing_runs
from lightning_lift.compare.report.figures import Picture
from lightning_lift.compare.report.formatting import capital, counted, number, plain_name, slug, unit_of
from lightning_lift.compare.report.results import ArmRuns, Axis, Comparison, lower_is_better
from lightning_lift.compare.report.tables import Table
from lightning_lift.compare.statistics import LEVEL, PairedDifference, compare_arms, smallest_p_value
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
        blocks: in order.
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
    finals = [record for arm in comparison.arms for record in arm.finals.values()]
    labels = [arm.label for arm in comparison.arms]
    tunings = sum(len(arm.tunings) for arm in comparison.arms)
    name = str(settings.get("name") or "").strip()
    lead = (
        f"{counted(len(labels), 'arm')} ({', '.join(labels) or 'none'}), {counted(len(comparison.seeds), 'seed')}: "
        f"{counted(len(finals), 'final run')} and {counted(tunings, 'tuning run')}. "
        "Arms are compared seed by seed."
    )
    differences = {metric: _differences(comparison, metric) for metric in comparison.headlines}
    first = next(iter(differences), None)
    sections = [
        _conclusions(comparison, first, differences.get(first or "", [])),
        _setting(comparison),
        *[_result(comparison, metric, found, said=metric == first) for metric, found in differences.items()],
        _time(comparison),
        _tuning(comparison),
        _cost(comparison),
        _diagnostics(comparison),
        _details(comparison),
        Section("reading", "How the numbers are made", [Listing(_READING)]),
    ]
    title = f"Comparison of parameterizations{': ' + name if name else ''}"
    return Content(title, lead, [section for section in sections if section.blocks])


def _conclusions(comparison: Comparison, metric: str | None, differences: Sequence[PairedDifference]) -> Section:
    """On the first test metric, and the same at equal seconds: the other metrics have their own sections."""
    blocks: list[Block] = [Text(text, "warning") for text in [*missing_runs(comparison), *fairness(comparison).faults]]
    if not comparison.seeds:
        blocks.append(Text("There are no final runs yet, so there is nothing to conclude."))
    elif len(comparison.arms) < 2:
        blocks.append(Text("There is one arm, so there is nothing to compare it with."))
    elif metric is None:
        blocks.append(Text("No final run has a test metric, so nothing can be compared."))
    else:
        blocks.append(Text(f"{capital(plain_name(metric))} at the best checkpoint. {_equal(comparison)}"))
        blocks.append(Listing(conclude_all(plain_name(metric), unit_of(metric), differences)))
        curve = "val/" + metric.removeprefix("test/")
        same = _within(comparison, "seconds", curve) if curve in comparison.headline_curves else []
        if any(one.pairs for one in same):
            limit = number(comparison.common_limit["seconds"])
            blocks.append(Text(f"{capital(plain_name(curve))} after equal training time, {limit} s:"))
            blocks.append(Listing(conclude_all(plain_name(curve), unit_of(curve), same)))
    losers = [f"{arm.label} {len(arm.unfinished)} of {len(arm.finals)}" for arm in comparison.arms if arm.unfinished]
    if losers:
        blocks.append(Text(f"Runs that did not finish: {', '.join(losers)}. They count as lost in the win rates."))
    return Section("conclusions", "What follows from the tests", blocks)


def _setting(comparison: Comparison) -> Section:
    if not comparison.arms:
        return Section("setting", "", [])
    found = fairness(comparison)
    blocks: list[Block] = [tables.arms_table(comparison), tables.common_table(comparison)]
    blocks += [Text(text, "warning") for text in found.faults]
    blocks += [Text(str(text)) for text in [*found.notes, *(comparison.settings.get("notes") or ())]]
    return Section("setting", "What was compared", blocks)


def _result(comparison: Comparison, metric: str, differences: Sequence[PairedDifference], said: bool) -> Section:
    blocks: list[Block | None] = [
        Text(_equal(comparison)),
        tables.results_table(comparison, metric),
        figures.distribution(comparison, metric, "best"),
        figures.paired_lines(comparison, metric, "best"),
    ]
    if differences:
        if not said:
            blocks.append(Listing(conclude_all(plain_name(metric), unit_of(metric), differences)))
        blocks.append(tables.differences_table("Paired differences, best checkpoint", differences))
        last = compare_arms(comparison.values("last", metric), comparison.unfinished, lower_is_better(metric))
        if any(one.pairs for one in last):
            blocks.append(tables.differences_table("Paired differences, last checkpoint", last))
    return Section(
        f"result-{slug(metric)}", f"Result: {plain_name(metric)}", [block for block in blocks if block is not None]
    )


def _equal(comparison: Comparison) -> str:
    steps = sorted({record.steps for arm in comparison.arms for record in arm.finals.values()})
    if len(steps) < 2:
        return f"At equal steps: every run had {steps[0]:,} optimizer steps." if steps else ""
    if comparison.settings.get("budget") == "seconds":
        return (
            f"At equal seconds of training, as measured in the timing runs: runs had {steps[0]:,} to {steps[-1]:,} "
            "optimizer steps."
        )
    return f"Arms had different numbers of steps, {steps[0]:,} to {steps[-1]:,}: this is no comparison at equal steps."


def _time(comparison: Comparison) -> Section:
    blocks: list[Block | None] = []
    curves = comparison.headline_curves
    limit = comparison.common_limit
    if not curves or not comparison.seeds:
        return Section("time", "", [])
    if any(_shares_a_batch(arm) for arm in comparison.arms):
        blocks.append(
            Text(
                "Seconds are shares of a batch of seeds that were trained at once, because an arm has no timing run: "
                "they are no fair clock between arms.",
                "warning",
            )
        )
    steps = {record.steps for arm in comparison.arms for record in arm.finished.values()}
    axes: tuple[Axis, Axis] = ("steps", "seconds")
    for axis in axes:
        # Where all arms have the same steps the line would stand at the end.
        until = limit[axis] if axis == "seconds" or len(steps) > 1 else None
        blocks += [figures.curves(comparison, name, axis, until) for name in curves]
    if not math.isfinite(limit["seconds"]):
        blocks.append(Text("Equal wall clock: not known, because the training time of an arm was not measured."))
    for axis in axes:
        if not math.isfinite(limit[axis]):
            continue
        blocks.append(tables.within_table(comparison, axis))
        if axis == "seconds":
            blocks.append(Text(_clock(comparison)))
            blocks.append(_clock_warning(comparison))
        if len(comparison.arms) < 2 or (axis == "steps" and len(steps) < 2):
            continue
        for name in curves:
            title = f"Paired differences at equal {axis}, {plain_name(name)}"
            blocks.append(tables.differences_table(title, _within(comparison, axis, name)))
    return Section("time", "Equal steps and equal wall clock", [block for block in blocks if block is not None])


def _within(comparison: Comparison, axis: Axis, curve: str) -> list[PairedDifference]:
    return compare_arms(comparison.values_within(axis, curve), comparison.unfinished, lower_is_better(curve))


def _shares_a_batch(arm: ArmRuns) -> bool:
    vectorized = any(record.engine == "vectorized" for record in arm.finished.values())
    return vectorized and arm.seconds_per_step is None


def _clock(comparison: Comparison) -> str:
    parts = ["The time is that of the arm that was through first."]
    if all(arm.seconds_per_step is not None for arm in comparison.arms if arm.finished):
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


def _tuning(comparison: Comparison) -> Section:
    runs = sum(len(arm.tunings) for arm in comparison.arms)
    if not runs:
        rates = "No learning rate was tuned: every arm ran at the configuration's own."
        return Section("tuning", "Tuning", [Text(rates)] if comparison.seeds else [])
    seeds = {record.seed for arm in comparison.arms for record in arm.tunings}
    blocks: list[Block | None] = [
        Text(RULE),
        Text(
            f"{counted(runs, 'tuning run')} on {counted(len(seeds), 'seed')}, none of which enters the results above."
        ),
    ]
    if shared := seeds & set(comparison.seeds):
        blocks.append(Text(f"Seeds {sorted(shared)} were used for tuning and for the results.", "warning"))
    for arm in comparison.arms:
        rated = [record for record in arm.tunings if record.learning_rate is not None]
        if rated and (note := choose(rated).note):
            blocks.append(Text(f"{arm.label}: {note}.", "warning"))
    blocks += [figures.tuning(comparison), tables.tuning_table(comparison)]
    return Section("tuning", "Tuning", [block for block in blocks if block is not None])


def _cost(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    if comparison.seeds:
        blocks = [tables.outcomes_table(comparison), tables.cost_table(comparison)]
    if (errors := tables.errors_table(comparison)) is not None:
        blocks.insert(1 if blocks else 0, errors)
    return Section("cost", "Outcomes and cost", blocks)


def _diagnostics(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    for name, meaning in DIAGNOSTICS.items():
        picture = figures.curves(comparison, name, "steps") if name in comparison.curves() else None
        if picture is not None:
            blocks += [Text(meaning), picture]
    return Section("diagnostics", "Diagnostics by arm", blocks)


def _details(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    if comparison.metrics("best"):
        blocks += [tables.all_metrics_table(comparison, "best"), tables.all_metrics_table(comparison, "last")]
    versions = tables.versions_table(comparison)
    if versions.rows:
        blocks.append(versions)
    if any(" " in row[1] for row in versions.rows):
        blocks.append(Text("Runs were made with different versions of a package.", "warning"))
    kept = {key: value for key, value in comparison.settings.items() if key != "config"}
    if kept:
        blocks.append(Verbatim("Settings of the comparison", json.dumps(kept, indent=1, default=str)))
    for arm in comparison.arms:
        if arm.example is not None and arm.example.config:
            text = json.dumps(arm.example.config, indent=1, default=str)
            blocks.append(Verbatim(f"Configuration of {arm.label}, seed {arm.example.seed}", text))
    return Section("details", "Details", blocks)


def _differences(comparison: Comparison, metric: str) -> list[PairedDifference]:
    return compare_arms(comparison.values("best", metric), comparison.unfinished, lower_is_better(metric))


DIAGNOSTICS = {
    "shoulder/occupancy": "Share of the latent on the shoulder, where the readout's slope is at most 0.05 and "
    "gradients hardly pass. Projected weights have no latent: their zeros are a different number, below.",
    "zeros/fraction": "Share of the projected weights that sit exactly at the floor, where the projection put them.",
    "latent/step": "How far one optimizer step moves the latent of one fixed batch: root mean square over its numbers.",
}

_READING = (
    "Mean ± s.e.: mean over the finished runs and its standard error, the standard deviation (n - 1) over the root of "
    "n. Quartiles are the 25 % and 75 % points.",
    "Best is the checkpoint with the lowest monitored validation metric, last is the one after the last step; both are "
    "tested on the test split.",
    "Differences are taken within a seed, first arm minus second. Seeds in which a run of either arm diverged or "
    "failed have none: they are left out there, and count as a loss of that arm in the win rate (a tie if neither "
    "finished).",
    "The 95 % interval is of the mean difference: 9,999 bootstrap samples over seeds, bias-corrected and accelerated, "
    "with a fixed seed. With fewer than about ten seeds such intervals are too narrow.",
    "The median shift is the Hodges-Lehmann estimate: the median of the means of all pairs of differences. Rank "
    "biserial is (W+ - W-) / (W+ + W-): -1 where the first arm is lower in every seed, 1 where it is higher in "
    "every one.",
    "p is of the two-sided Wilcoxon signed-rank test, counted out exactly up to 200 differences, ties included; zero "
    "differences are left out of it, and where all are zero p is 1. Holm p is corrected for all pairs of arms within "
    f"one table, not across tables. A difference is claimed where Holm p is at most {LEVEL:g}.",
    f"With n seeds no p-value is below 2 / 2^n (n = 5: {smallest_p_value(5):.3g}; n = 8: {smallest_p_value(8):.2g}).",
    "No difference found is not the same as no difference.",
)
