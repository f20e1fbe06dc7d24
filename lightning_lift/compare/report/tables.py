"""Tables of a report: cells of text under a title, and the builders that fill them from a comparison."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_lift.compare.report.formatting import (
    NONE,
    capital,
    class_and_arguments,
    data_text,
    network_text,
    number,
    optimizer_text,
    p_text,
    plain_name,
    ranges,
    rate_text,
    trainer_text,
    with_error,
)
from lightning_lift.compare.report.results import ArmRuns, Axis, Checkpoint, Comparison, lower_is_better
from lightning_lift.compare.statistics import Description, PairedDifference, describe


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: above it.
        columns: heads.
        rows: as many cells as columns; the first names the row.
        note: below it, or empty.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {self.title!r} has {len(row)} cells under {len(self.columns)} heads: {row}")


def arms_table(comparison: Comparison) -> Table:
    """What each arm is."""
    rows = []
    for arm in comparison.arms:
        example = arm.example
        config = example.config if example is not None else {}
        chosen = sorted({rate_text(record.learning_rate) for record in arm.finals.values()})
        rows.append(
            [
                arm.label,
                *class_and_arguments(config, "parameterization"),
                ", ".join(chosen) or NONE,
                f"{example.num_parameters:,}" if example is not None and example.num_parameters else NONE,
            ]
        )
    return Table("Arms", ["arm", "parameterization", "arguments", "learning rate", "trained parameters"], rows)


def common_table(comparison: Comparison) -> Table:
    """Network, data, training and budget: one line where all arms agree, else one an arm."""
    parts = {"network": network_text, "data": data_text, "optimizer": optimizer_text, "trainer": trainer_text}
    examples = [(arm.label, arm.example) for arm in comparison.arms]
    rows: list[list[str]] = []
    for part, text in parts.items():
        by_arm = {label: text(record.config) for label, record in examples if record is not None and record.config}
        if len(set(by_arm.values())) == 1:
            rows.append([part, next(iter(by_arm.values()))])
        else:
            rows += [[f"{part} ({label})", described] for label, described in by_arm.items()]
    finals = [record for arm in comparison.arms for record in arm.finals.values()]
    rows.append(["steps", ", ".join(f"{steps:,}" for steps in sorted({record.steps for record in finals})) or NONE])
    rows.append(["seeds", f"{len(comparison.seeds)} ({ranges(comparison.seeds)})" if finals else NONE])
    rows.append(["engine", ", ".join(sorted({record.engine for record in finals})) or NONE])
    return Table("What all arms share", ["", "setting"], rows)


def results_table(comparison: Comparison, metric: str) -> Table:
    """A test metric by arm, at the best and at the last checkpoint."""
    columns = [
        "arm",
        "runs",
        "best: mean ± s.e.",
        "best: median [quartiles]",
        "last: mean ± s.e.",
        "last: median [quartiles]",
    ]
    rows = []
    for arm in comparison.arms:
        best, last = (describe(list(arm.values(point, metric).values())) for point in _POINTS)
        rows.append([arm.label, f"{best.count} of {len(arm.finals)}", *_described(best), *_described(last)])
    better = "lower" if lower_is_better(metric) else "higher"
    return Table(capital(plain_name(metric)), columns, rows, f"The {better} the better. Finished runs only.")


def within_table(comparison: Comparison, axis: Axis) -> Table:
    """The validation metrics as far as all arms come in steps or seconds."""
    metrics = comparison.headline_curves
    rows = []
    values = {metric: comparison.values_within(axis, metric) for metric in metrics}
    for arm in comparison.arms:
        described = [describe(list(values[metric][arm.label].values())) for metric in metrics]
        count = max((one.count for one in described), default=0)
        cells = [cell for one in described for cell in _described(one)]
        rows.append([arm.label, f"{count} of {len(arm.finals)}", *cells])
    heads = [f"{plain_name(metric)}: {what}" for metric in metrics for what in ("mean ± s.e.", "median [quartiles]")]
    limit = comparison.common_limit[axis]
    title = (
        f"Validation after {int(limit):,} steps"
        if axis == "steps"
        else f"Validation after {number(limit)} s of training"
    )
    return Table(
        title,
        ["arm", "runs", *heads],
        rows,
        f"At the evaluation with the lowest {plain_name(comparison.monitor)} up to then.",
    )


def differences_table(title: str, comparisons: Sequence[PairedDifference]) -> Table:
    """Paired differences with their interval, test and win rate."""
    rows = [
        [
            f"{one.first} − {one.second}",  # noqa: RUF001 - a minus sign
            str(one.pairs) + (f" (+{one.unfinished})" if one.unfinished else ""),
            number(one.mean),
            f"{number(one.low)} to {number(one.high)}" if math.isfinite(one.low) else NONE,
            number(one.shift),
            number(one.rank_biserial, 2),
            p_text(one.p_value),
            p_text(one.p_holm),
            f"{100.0 * one.win_rate:.0f} % ({one.wins}/{one.ties}/{one.losses})"
            if one.pairs or one.unfinished
            else NONE,
        ]
        for one in comparisons
    ]
    heads = ["pair", "pairs", "mean difference", "95 % interval", "median shift", "rank biserial", "p", "Holm p",
             "first wins (win/tie/loss)"]  # fmt: skip
    left_out = any(one.unfinished for one in comparisons)
    note = "In brackets: seeds left out because a run of either arm did not finish." if left_out else ""
    return Table(title, heads, rows, note)


def outcomes_table(comparison: Comparison) -> Table:
    """How the final runs ended."""
    rows = []
    for arm in comparison.arms:
        ends = [record.outcome for record in arm.finals.values()]
        missing = len(comparison.seeds) - len(ends)
        rows.append([arm.label, *[str(ends.count(end)) for end in ("finished", "diverged", "failed")], str(missing)])
    return Table("Outcomes of the final runs", ["arm", "finished", "diverged", "failed", "not run"], rows)


def errors_table(comparison: Comparison) -> Table | None:
    """What went wrong in runs that did not finish, equal errors together; None where all went well."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for record in comparison.records:
        if record.outcome != "finished":
            error = (record.error or "").strip().splitlines()
            kind = (
                record.arm,
                record.purpose,
                record.outcome,
                error[0] if error else "the loss or a metric is not finite",
            )
            found.setdefault(kind, []).append(record.seed)
    rows = [
        [arm, purpose, end, ranges(sorted(set(seeds))), error] for (arm, purpose, end, error), seeds in found.items()
    ]
    return Table("Runs that did not finish", ["arm", "purpose", "outcome", "seeds", "error"], rows) if rows else None


def tuning_table(comparison: Comparison) -> Table:
    """Every learning rate tried, and the chosen one of each arm."""
    rows = []
    for arm in comparison.arms:
        chosen = {record.learning_rate for record in arm.finals.values()}
        for rate, values, runs in comparison.tuned(arm):
            found = describe(values)
            rows.append(
                [
                    arm.label,
                    rate_text(rate),
                    with_error(found.mean, found.standard_error),
                    f"{found.count} of {runs}",
                    "chosen" if rate in chosen else "",
                ]
            )
    heads = ["arm", "learning rate", f"best {plain_name(comparison.monitor)}: mean ± s.e.", "finished", ""]
    return Table("Learning rates tried", heads, rows)


def cost_table(comparison: Comparison) -> Table:
    """Seconds, parameters and the latent's step by arm, and the ratio of a training step to the cheapest arm's."""
    per_step = {arm.label: arm.step_seconds for arm in comparison.arms}
    cheapest = min((seconds for seconds, _ in per_step.values() if math.isfinite(seconds)), default=math.nan)
    rows = []
    for arm in comparison.arms:
        seconds, source = per_step[arm.label]
        sizes = sorted({record.num_parameters for record in arm.finals.values()})
        # Not by the curves: a run may go on after its last evaluation.
        whole = seconds * describe([record.steps for record in arm.finished.values()]).median
        rows.append(
            [
                arm.label,
                f"{number(1000.0 * seconds)} ms" if math.isfinite(seconds) else NONE,
                number(seconds / cheapest, 2) if math.isfinite(seconds) else NONE,
                source,
                f"{number(whole)} s" if math.isfinite(whole) else NONE,
                ", ".join(f"{size:,}" for size in sizes if size) or NONE,
                *_latent_steps(arm),
            ]
        )
    heads = ["arm", "a training step", "times the cheapest", "measured", "training time of a run", "trained parameters"]
    return Table("Cost", [*heads, "latent step at the first evaluation", "over the learning rate"], rows)


def _latent_steps(arm: ArmRuns) -> tuple[str, str]:
    """Median over the finished runs; under Adam at one rate arms differ in it, which is why rates are tuned."""
    steps, ratios = [], []
    for record in arm.finished.values():
        first = next((step for step in record.curves.get("latent/step", []) if math.isfinite(step)), math.nan)
        if math.isfinite(first):
            steps.append(first)
            ratios += [first / record.learning_rate] if record.learning_rate else []
    return tuple(number(describe(found).median) if found else NONE for found in (steps, ratios))  # type: ignore[return-value]


def all_metrics_table(comparison: Comparison, checkpoint: Checkpoint) -> Table:
    """Mean ± standard error of every metric of the finished runs at a checkpoint."""
    rows = [
        [metric, *[_described(describe(list(arm.values(checkpoint, metric).values())))[0] for arm in comparison.arms]]
        for metric in comparison.metrics(checkpoint)
    ]
    heads = ["metric", *[arm.label for arm in comparison.arms]]
    return Table(f"Every metric at the {checkpoint} checkpoint, mean ± s.e.", heads, rows)


def versions_table(comparison: Comparison) -> Table:
    """Packages that determine the numbers; several versions of one are all named."""
    found: dict[str, set[str]] = {}
    for record in comparison.records:
        for package, version in record.versions.items():
            found.setdefault(package, set()).add(version)
    rows = [[package, ", ".join(sorted(versions))] for package, versions in sorted(found.items())]
    return Table("Versions", ["package", "version"], rows)


_POINTS: tuple[Checkpoint, Checkpoint] = ("best", "last")


def _described(found: Description) -> list[str]:
    if not found.count:
        return [NONE, NONE]
    # As many digits as tell the quartiles apart.
    size = max(abs(found.low_quartile), abs(found.high_quartile))
    spread = found.high_quartile - found.low_quartile
    digits = 3 if spread <= 1e-12 * size else min(9, 3 + math.floor(math.log10(size / spread)))
    median, low, high = (number(one, digits) for one in (found.median, found.low_quartile, found.high_quartile))
    return [with_error(found.mean, found.standard_error), f"{median} [{low}, {high}]"]
