"""Tables of a report: cells of text under a title, and the builders that fill them from a comparison."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lightning_lift.compare.report import formatting
from lightning_lift.compare.report.results import ArmRuns, Axis, Checkpoint, Comparison, lower_is_better
from lightning_lift.compare.statistics import Description, PairedDifference, describe
from lightning_lift.compare.tuning import by_rate


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


def _table(title: str, rows: Sequence[Mapping[str, str]], note: str = "") -> Table:
    """Rows of cells by their heads, all the same, at least one row."""
    return Table(title, list(rows[0]), [list(row.values()) for row in rows], note)


def _by_arm(title: str, comparison: Comparison, cells: Callable[[ArmRuns], Mapping[str, str]], note: str = "") -> Table:
    """A row an arm."""
    return _table(title, [{"arm": arm.label, **cells(arm)} for arm in comparison.arms], note)


def arms_table(comparison: Comparison) -> Table:
    """What each arm is."""

    def cells(arm: ArmRuns) -> dict[str, str]:
        name, arguments = formatting.class_and_arguments(arm.example.config, "parameterization")
        return {
            "parameterization": name,
            "arguments": arguments,
            "learning rate": ", ".join(sorted(map(formatting.rate_text, arm.rates))) or formatting.NONE,
            "trained parameters": formatting.whole_numbers([arm.example.num_parameters]),
        }

    return _by_arm("Arms", comparison, cells)


def common_table(comparison: Comparison) -> Table:
    """Network, data, training and budget: one line where all arms agree, else one an arm."""
    rows: list[list[str]] = []
    for part, text in formatting.SHARED.items():
        by_arm = {arm.label: text(arm.example.config) for arm in comparison.arms if arm.example.config}
        if len(set(by_arm.values())) == 1:
            rows.append([part, next(iter(by_arm.values()))])
        else:
            rows += [[f"{part} ({label})", described] for label, described in by_arm.items()]
    seeds = comparison.seeds
    rows.append(["steps", formatting.whole_numbers(record.steps for record in comparison.finals)])
    rows.append(["seeds", f"{len(seeds)} ({formatting.ranges(seeds)})" if seeds else formatting.NONE])
    rows.append(["engine", ", ".join(sorted({record.engine for record in comparison.finals})) or formatting.NONE])
    return Table("What all arms share", ["", "setting"], rows)


def results_table(comparison: Comparison, metric: str) -> Table:
    """A test metric by arm, at the best and at the last checkpoint."""

    def cells(arm: ArmRuns) -> dict[str, str]:
        best, last = (describe(list(arm.values(point, metric).values())) for point in _POINTS)
        return {"runs": f"{best.count} of {len(arm.finals)}", **_described("best", best), **_described("last", last)}

    better = "lower" if lower_is_better(metric) else "higher"
    return _by_arm(
        formatting.capital(formatting.plain_name(metric)),
        comparison,
        cells,
        f"The {better} the better. Finished runs only.",
    )


def within_table(comparison: Comparison, axis: Axis) -> Table:
    """The validation metrics as far as all arms come in steps or seconds."""
    values = {metric: comparison.values_within(axis, metric) for metric in comparison.headline_curves}

    def cells(arm: ArmRuns) -> dict[str, str]:
        described = {metric: describe(list(own[arm.label].values())) for metric, own in values.items()}
        found = {"runs": f"{max(one.count for one in described.values())} of {len(arm.finals)}"}
        for metric, one in described.items():
            found |= _described(formatting.plain_name(metric), one)
        return found

    limit = comparison.common_limit[axis]
    reached = f"{int(limit):,} steps" if axis == "steps" else f"{formatting.number(limit)} s of training"
    note = f"At the evaluation with the lowest {formatting.plain_name(comparison.monitor)} up to then."
    return _by_arm(f"Validation after {reached}", comparison, cells, note)


def differences_table(title: str, comparisons: Sequence[PairedDifference]) -> Table:
    """Paired differences with their interval, test and win rate."""
    rows = [
        {
            "pair": f"{one.first} − {one.second}",  # noqa: RUF001 - a minus sign
            "pairs": str(one.pairs) + (f" (+{one.unfinished})" if one.unfinished else ""),
            "mean difference": formatting.number(one.mean),
            "95 % interval": f"{formatting.number(one.low)} to {formatting.number(one.high)}"
            if math.isfinite(one.low)
            else formatting.NONE,
            "median shift": formatting.number(one.shift),
            "rank biserial": formatting.number(one.rank_biserial, 2),
            "p": formatting.p_text(one.p_value),
            "Holm p": formatting.p_text(one.p_holm),
            "first wins (win/tie/loss)": f"{100.0 * one.win_rate:.0f} % ({one.wins}/{one.ties}/{one.losses})"
            if one.pairs or one.unfinished
            else formatting.NONE,
        }
        for one in comparisons
    ]
    left_out = any(one.unfinished for one in comparisons)
    note = "In brackets: seeds left out because a run of either arm did not finish." if left_out else ""
    return _table(title, rows, note)


def outcomes_table(comparison: Comparison) -> Table:
    """How the final runs ended."""

    def cells(arm: ArmRuns) -> dict[str, str]:
        ends = [record.outcome for record in arm.finals.values()]
        counts = {end: str(ends.count(end)) for end in ("finished", "diverged", "failed")}
        return {**counts, "not run": str(len(comparison.seeds) - len(ends))}

    return _by_arm("Outcomes of the final runs", comparison, cells)


def errors_table(comparison: Comparison) -> Table | None:
    """What went wrong in runs that did not finish, equal errors together; None where all went well."""
    found: dict[tuple[str, str, str, str], set[int]] = defaultdict(set)
    for record in comparison.records:
        if record.outcome != "finished":
            error = (record.error or "").strip() or "the loss or a metric is not finite"
            found[record.arm, record.purpose, record.outcome, error.splitlines()[0]].add(record.seed)
    rows = [
        [arm, purpose, end, formatting.ranges(sorted(seeds)), error]
        for (arm, purpose, end, error), seeds in found.items()
    ]
    return Table("Runs that did not finish", ["arm", "purpose", "outcome", "seeds", "error"], rows) if rows else None


def tuning_table(comparison: Comparison) -> Table:
    """Every learning rate tried, and the chosen one of each arm."""
    rows = [
        {
            "arm": arm.label,
            "learning rate": formatting.rate_text(rate),
            f"best {formatting.plain_name(comparison.monitor)}: mean ± s.e.": _mean(describe(values)),
            "finished": f"{describe(values).count} of {len(values)}",
            "": "chosen" if rate in arm.rates else "",
        }
        for arm in comparison.arms
        for rate, values in by_rate(arm.tunings, comparison.monitor).items()
    ]
    return _table("Learning rates tried", rows)


def cost_table(comparison: Comparison) -> Table:
    """Seconds, parameters and the latent's step by arm, and the ratio of a training step to the cheapest arm's."""
    measured = [arm.step_seconds[0] for arm in comparison.arms]
    cheapest = min((seconds for seconds in measured if math.isfinite(seconds)), default=math.nan)

    def cells(arm: ArmRuns) -> dict[str, str]:
        seconds, source = arm.step_seconds
        # Not by the curves: a run may go on after its last evaluation.
        whole = seconds * describe([record.steps for record in arm.finished.values()]).median
        # Under Adam at one rate arms differ in the latent's step, which is why rates are tuned.
        latent = {
            record.seed: next(filter(math.isfinite, record.curves.get("latent/step", [])), math.nan)
            for record in arm.finished.values()
        }
        over_rate = [step / (arm.finished[seed].learning_rate or math.nan) for seed, step in latent.items()]
        return {
            "a training step": formatting.number(1000.0 * seconds, unit=" ms"),
            "times the cheapest": formatting.number(seconds / cheapest, 2),
            "measured": source,
            "training time of a run": formatting.number(whole, unit=" s"),
            "trained parameters": formatting.whole_numbers(record.num_parameters for record in arm.finals.values()),
            "latent step at the first evaluation": formatting.number(describe(list(latent.values())).median),
            "over the learning rate": formatting.number(describe(over_rate).median),
        }

    return _by_arm("Cost", comparison, cells)


def all_metrics_table(comparison: Comparison, checkpoint: Checkpoint) -> Table:
    """Mean ± standard error of every metric of the finished runs at a checkpoint."""
    rows = [
        {"metric": metric}
        | {arm.label: _mean(describe(list(arm.values(checkpoint, metric).values()))) for arm in comparison.arms}
        for metric in comparison.metrics(checkpoint)
    ]
    return _table(f"Every metric at the {checkpoint} checkpoint, mean ± s.e.", rows)


def versions_table(comparison: Comparison) -> Table:
    """Packages that determine the numbers; several versions of one are all named."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in comparison.records:
        for package, version in record.versions.items():
            found[package].add(version)
    rows = [[package, ", ".join(sorted(versions))] for package, versions in sorted(found.items())]
    return Table("Versions", ["package", "version"], rows)


_POINTS: tuple[Checkpoint, Checkpoint] = ("best", "last")


def _mean(found: Description) -> str:
    return formatting.with_error(found.mean, found.standard_error)


def _described(name: str, found: Description) -> dict[str, str]:
    """Mean and median in two columns."""
    # As many digits as tell the quartiles apart.
    size = max(abs(found.low_quartile), abs(found.high_quartile))
    spread = found.high_quartile - found.low_quartile
    digits = 3 if not spread > 1e-12 * size else min(9, 3 + math.floor(math.log10(size / spread)))
    median, low, high = (
        formatting.number(one, digits) for one in (found.median, found.low_quartile, found.high_quartile)
    )
    quartiles = f"{median} [{low}, {high}]" if found.count else formatting.NONE
    return {f"{name}: mean ± s.e.": _mean(found), f"{name}: median [quartiles]": quartiles}
