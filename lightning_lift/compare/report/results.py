"""The results that a report rests on: numbers by arm and seed, curves by arm, the same moment in every run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lightning_lift.compare.records import MONITORED, RunRecord, monitored
from lightning_lift.compare.report.formatting import NONE
from lightning_lift.compare.statistics import PairedDifference, compare_arms, describe

Array = NDArray[np.float64]
Checkpoint = Literal["best", "last"]
Axis = Literal["steps", "seconds"]
HIGHER_IS_BETTER = ("accuracy", "r2", "effective_sample_size", "auroc", "f1")
HEADLINES = (  # of records that do not state their own
    "test/total_variation",
    "test/nll",
    "test/accuracy",
    "test/loss",
)


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm, of which there is at least one.

    Attributes:
        label: of the arm.
        finals: by seed, those that enter the statistics.
        tunings: those that chose the learning rate.
        timings: those that had the machine to themselves.
    """

    label: str
    finals: Mapping[int, RunRecord] = field(default_factory=dict)
    tunings: Sequence[RunRecord] = ()
    timings: Sequence[RunRecord] = ()

    @cached_property
    def finished(self) -> dict[int, RunRecord]:
        """The final runs that ended as they should."""
        return {seed: record for seed, record in self.finals.items() if record.outcome == "finished"}

    @property
    def unfinished(self) -> frozenset[int]:
        """Seeds whose run diverged or failed."""
        return frozenset(self.finals.keys() - self.finished.keys())

    @property
    def example(self) -> RunRecord:
        """Some record of the arm, a final one where there is one."""
        return [*self.finals.values(), *self.tunings, *self.timings][0]

    @property
    def rates(self) -> set[float | None]:
        """The learning rates of the final runs."""
        return {record.learning_rate for record in self.finals.values()}

    def values(self, checkpoint: Checkpoint, metric: str) -> dict[int, float]:
        """A metric of the finished runs by seed; runs that did not measure it are absent.

        Args:
            checkpoint: ``best`` or ``last``.
            metric: its name, like ``test/nll``.
        """
        found = {seed: record.metrics.get(checkpoint, {}).get(metric) for seed, record in self.finished.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def clock(self, record: RunRecord, axis: Axis) -> Array:
        """Optimizer steps or training seconds at each evaluation of a run.

        Seconds measured beside other runs, or as a share of a batch of seeds, are no fair clock: where the arm has a
        timing run they are its seconds per step times the steps.

        Args:
            record: of this arm.
            axis: ``steps`` or ``seconds``.
        """
        steps = np.asarray(record.curves.get("step", ()), dtype=np.float64)
        if axis == "steps":
            return steps
        if math.isfinite(self.seconds_per_step):
            return steps * self.seconds_per_step
        return np.asarray(record.curves.get("seconds", np.full(len(steps), math.nan)), dtype=np.float64)

    @property
    def seconds_per_step(self) -> float:
        """Of the timing run; NaN without one."""
        return _step_seconds(self.timings)

    @property
    def step_seconds(self) -> tuple[float, str]:
        """The seconds per step: of the timing run, else the finished runs' median; and where the number is from."""
        if math.isfinite(self.seconds_per_step):
            return self.seconds_per_step, "alone, in a run for that"
        seconds = _step_seconds(self.finished.values())
        if math.isnan(seconds):
            return seconds, NONE
        return seconds, "share of a batch of seeds" if self.in_batches else "beside other runs"

    @property
    def in_batches(self) -> bool:
        """Whether seeds were trained at once, as earlier versions could."""
        return any(record.engine == "vectorized" for record in self.finished.values())

    @property
    def clock_ratio(self) -> float:
        """Seconds per step of the timing run over those of the final runs done one at a time; NaN without either."""
        own = _step_seconds(record for record in self.finished.values() if record.engine == "lightning")
        return self.seconds_per_step / own

    @property
    def evaluated_seconds(self) -> float:
        """Training seconds at the last evaluation: by the timing run, else the runs' median; NaN without either."""
        evaluated = [record for record in self.finished.values() if record.curves.get("step")]
        return describe([self.clock(record, "seconds")[-1] for record in evaluated]).median


@dataclass(frozen=True)
class Comparison:
    """All records of a comparison, by arm.

    Attributes:
        arms: in the order of the comparison's settings, else of their labels.
        settings: of the comparison; every key may be absent.
        records: all of them.
    """

    arms: tuple[ArmRuns, ...]
    settings: Mapping[str, Any]
    records: Sequence[RunRecord]

    @classmethod
    def of(cls, settings: Mapping[str, Any], records: Sequence[RunRecord]) -> "Comparison":
        """Sort records into arms.

        Args:
            settings: ``arms`` (labels, or mappings with a ``label``) gives the order.
            records: of any purpose.
        """
        labels = [str(arm["label"] if isinstance(arm, Mapping) else arm) for arm in settings.get("arms") or ()]
        present = {record.arm for record in records}
        order = [label for label in dict.fromkeys([*labels, *sorted(present)]) if label in present]
        return cls(tuple(_arm(label, records) for label in order), settings, tuple(records))

    @property
    def finals(self) -> list[RunRecord]:
        """The final runs of all arms."""
        return [record for arm in self.arms for record in arm.finals.values()]

    @property
    def finished(self) -> list[RunRecord]:
        """Those of them that ended as they should."""
        return [record for arm in self.arms for record in arm.finished.values()]

    @property
    def tunings(self) -> list[RunRecord]:
        """The tuning runs of all arms."""
        return [record for arm in self.arms for record in arm.tunings]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final runs of all arms."""
        return sorted({record.seed for record in self.finals})

    @property
    def headlines(self) -> list[str]:
        """Test metrics that are tested and drawn: those named in the settings, else the task's own.

        Raises:
            ValueError: a metric named in the settings that no finished run has.
        """
        known = self.metrics("best", "test/")
        asked = list(self.settings.get("metrics") or ())
        if known and (unknown := [name for name in asked if name not in known]):
            raise ValueError(
                f"--metrics {','.join(unknown)}: no finished run measured it; the runs are kept and have {known}. "
                "Write the report with --report-only --metrics and some of these."
            )
        own = list(dict.fromkeys(name for record in self.records for name in record.headlines)) or HEADLINES
        usual = [name for name in own if name in known][:2]
        return asked or usual or known[:1]

    @cached_property
    def monitor(self) -> str:
        """The validation metric that chooses checkpoints and learning rates, the lower the better."""
        found = [record.metrics.get("best", {}) for record in self.records] + [record.curves for record in self.records]
        stated = next((record.metric for record in self.records if record.metric), None)
        return monitored(_names(found, "val/"), stated) or stated or MONITORED[0]

    @property
    def headline_curves(self) -> list[str]:
        """Validation curves that are tested and drawn: the monitored one, and total variation where it is measured."""
        curves = self.curves("val/")
        return [name for name in dict.fromkeys([self.monitor, "val/total_variation"]) if name in curves]

    def metrics(self, checkpoint: Checkpoint, prefix: str = "") -> list[str]:
        """Names of the metrics that some finished final run has."""
        return _names((record.metrics.get(checkpoint, {}) for record in self.finished), prefix)

    def curves(self, prefix: str = "") -> list[str]:
        """Names of the curves that some final run has."""
        return _names((record.curves for record in self.finals), prefix)

    def values(self, checkpoint: Checkpoint, metric: str) -> dict[str, dict[int, float]]:
        """A metric by arm and seed."""
        return {arm.label: arm.values(checkpoint, metric) for arm in self.arms}

    @property
    def unfinished(self) -> dict[str, frozenset[int]]:
        """Seeds by arm whose final run diverged or failed."""
        return {arm.label: arm.unfinished for arm in self.arms}

    @cached_property
    def common_limit(self) -> dict[Axis, float]:
        """The steps and the training seconds of the arm that has fewest: what all arms have; NaN where unknown."""
        steps = min((float(record.steps) for record in self.finished), default=math.nan)
        # One arm without a clock leaves the common time unknown: unlike min(), numpy's passes NaN on.
        ends = [arm.evaluated_seconds for arm in self.arms if arm.finished]
        return {"steps": steps, "seconds": float(np.min(ends)) if ends else math.nan}

    def values_within(self, axis: Axis, metric: str) -> dict[str, dict[int, float]]:
        """A validation metric by arm and seed, as far as all arms come in steps or seconds.

        Args:
            axis: what is equal.
            metric: a curve.
        """
        limit = self.common_limit[axis]
        found: dict[str, dict[int, float]] = {}
        for arm in self.arms:
            runs = [(seed, arm.clock(record, axis), record.curves) for seed, record in arm.finished.items()]
            values = {s: best_within(t, c.get(self.monitor, []), c.get(metric, []), limit) for s, t, c in runs}
            found[arm.label] = {seed: value for seed, value in values.items() if not math.isnan(value)}
        return found

    def paired(self, values: Mapping[str, Mapping[int, float]], metric: str) -> list[PairedDifference]:
        """Every pair of arms.

        Args:
            values: by arm and seed.
            metric: whose values they are.
        """
        return compare_arms(values, self.unfinished, lower_is_better(metric))


def best_within(clock: Array, monitored: Sequence[float], curve: Sequence[float], limit: float) -> float:
    """The value of a curve at the best evaluation not later than a limit: what the best checkpoint so far would give.

    A step function: between two evaluations it keeps the value of the earlier one.

    Args:
        clock: steps or seconds at each evaluation, ascending.
        monitored: the metric that chooses among them, the lower the better.
        curve: the metric that is read.
        limit: on the clock.

    Returns:
        NaN where no evaluation up to the limit has both.
    """
    points = [
        (chosen, value)
        for time, chosen, value in zip(clock, monitored, curve, strict=False)
        if time <= limit * (1.0 + 1e-9) and math.isfinite(chosen) and math.isfinite(value)
    ]
    return min(points, key=lambda point: point[0])[1] if points else math.nan


def curve_band(arm: ArmRuns, name: str, axis: Axis) -> pd.DataFrame:
    """Median and quartiles over an arm's finished runs, evaluation by evaluation.

    Args:
        arm: whose runs are evaluated at common steps.
        name: of the curve.
        axis: ``steps``, or ``seconds`` (the mean over the runs at a step, where each has its own).

    Returns:
        Columns ``x``, ``median``, ``low``, ``high``, one row an evaluation; empty where nothing was measured.
    """
    rows = [
        row
        for record in arm.finished.values()
        for row in zip(
            *(arm.clock(record, kind) for kind in ("steps", axis)), record.curves.get(name, []), strict=False
        )
    ]
    points = pd.DataFrame(rows, columns=["step", "x", "value"], dtype="float64")
    steps = points[np.isfinite(points).all(axis="columns")].groupby("step")
    quantiles = {"low": 0.25, "median": 0.5, "high": 0.75}
    return pd.DataFrame({"x": steps["x"].mean()} | {k: steps["value"].quantile(q) for k, q in quantiles.items()})


def lower_is_better(metric: str) -> bool:
    """Whether less is better: of every metric but accuracies and the like."""
    return not any(word in metric for word in HIGHER_IS_BETTER)


def _arm(label: str, records: Sequence[RunRecord]) -> ArmRuns:
    own = sorted((record for record in records if record.arm == label), key=lambda record: record.seed)
    final, tune, timing = ([r for r in own if r.purpose == purpose] for purpose in ("final", "tune", "timing"))
    return ArmRuns(label, {record.seed: record for record in final}, tune, timing)


def _step_seconds(records: Iterable[RunRecord]) -> float:
    """The median of the seconds per step; NaN where none were measured."""
    return describe([record.timings.get("seconds_per_step", math.nan) for record in records]).median


def _names(mappings: Iterable[Mapping[str, Any]], prefix: str) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping if name.startswith(prefix)})
