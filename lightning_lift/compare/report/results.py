"""The results that a report rests on: numbers by arm and seed, curves by arm, the same moment in every run."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_lift.compare.records import MONITORED, RunRecord, monitored
from lightning_lift.compare.report.formatting import NONE
from lightning_lift.compare.tuning import validation

Array = NDArray[np.float64]
Checkpoint = Literal["best", "last"]
Axis = Literal["steps", "seconds"]
HIGHER_IS_BETTER = ("accuracy", "effective_sample_size", "auroc", "f1")
HEADLINES = ("test/total_variation", "test/nll", "test/accuracy", "test/loss")


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm.

    Attributes:
        label: of the arm.
        finals: by seed, those that enter the statistics.
        tunings: those that chose the learning rate.
        seconds_per_step: of the ``timing`` run, which had the machine to itself; None without one.
    """

    label: str
    finals: Mapping[int, RunRecord] = field(default_factory=dict)
    tunings: Sequence[RunRecord] = ()
    seconds_per_step: float | None = None

    @property
    def finished(self) -> dict[int, RunRecord]:
        """The final runs that ended as they should."""
        return {seed: record for seed, record in self.finals.items() if record.outcome == "finished"}

    @property
    def unfinished(self) -> frozenset[int]:
        """Seeds whose run diverged or failed."""
        return frozenset(seed for seed, record in self.finals.items() if record.outcome != "finished")

    @property
    def example(self) -> RunRecord | None:
        """Some record of the arm, a final one where there is one."""
        return next(iter([*self.finals.values(), *self.tunings]), None)

    def values(self, checkpoint: Checkpoint, metric: str) -> dict[int, float]:
        """A metric of the finished runs by seed; runs that did not measure it are absent.

        Args:
            checkpoint: ``best`` or ``last``.
            metric: its name, like ``test/nll``.
        """
        found = {seed: record.metrics.get(checkpoint, {}).get(metric) for seed, record in self.finished.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def seconds(self, record: RunRecord) -> Array:
        """Training seconds at each evaluation of a run.

        Seconds measured beside other runs, or as a share of a batch of seeds, are no fair clock: where the arm has a
        timing run they are its seconds per step times the steps.

        Args:
            record: of this arm.
        """
        steps = np.asarray(record.curves.get("step", ()), dtype=np.float64)
        if self.seconds_per_step is not None:
            return steps * self.seconds_per_step
        return np.asarray(record.curves.get("seconds", np.full(len(steps), math.nan)), dtype=np.float64)

    @property
    def step_seconds(self) -> tuple[float, str]:
        """The seconds per step: of the timing run, else the finished runs' median; and where the number is from."""
        if self.seconds_per_step is not None:
            return self.seconds_per_step, "alone, in a run for that"
        found = [record.timings.get("seconds_per_step", math.nan) for record in self.finished.values()]
        known = [seconds for seconds in found if math.isfinite(seconds)]
        if not known:
            return math.nan, NONE
        shared = any(record.engine == "vectorized" for record in self.finished.values())
        return float(np.median(known)), "share of a batch of seeds" if shared else "beside other runs"

    @property
    def clock_ratio(self) -> float:
        """Seconds per step of the timing run over those of the final runs done one at a time; NaN without either."""
        own = [
            record.timings.get("seconds_per_step", math.nan)
            for record in self.finished.values()
            if record.engine == "lightning"
        ]
        known = [seconds for seconds in own if math.isfinite(seconds)]
        return self.seconds_per_step / float(np.median(known)) if known and self.seconds_per_step else math.nan

    @property
    def evaluated_seconds(self) -> float:
        """Training seconds at the last evaluation: by the timing run, else the runs' median; NaN without either."""
        ends = [self.seconds(record)[-1] for record in self.finished.values() if record.curves.get("step")]
        known = [float(end) for end in ends if math.isfinite(end)]
        return float(np.median(known)) if known else math.nan


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
        order = [label for label in dict.fromkeys(labels) if label in present]
        return cls(
            tuple(_arm(label, records) for label in [*order, *sorted(present - set(order))]), settings, tuple(records)
        )

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final runs of all arms."""
        return sorted({seed for arm in self.arms for seed in arm.finals})

    @property
    def headlines(self) -> list[str]:
        """Test metrics that are tested and drawn: those named in the settings, else total variation and NLL, ...

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
        usual = [name for name in HEADLINES if name in known][:2]
        return asked or usual or known[:1]

    @cached_property
    def monitor(self) -> str:
        """The validation metric that chooses checkpoints and learning rates, the lower the better."""
        found = [record.metrics.get("best", {}) for record in self.records] + [record.curves for record in self.records]
        return monitored(_names(found, "val/")) or MONITORED[0]

    @property
    def headline_curves(self) -> list[str]:
        """Validation curves that are tested and drawn: the monitored one, and total variation where it is measured."""
        curves = self.curves("val/")
        return [name for name in dict.fromkeys([self.monitor, "val/total_variation"]) if name in curves]

    def tuned(self, arm: ArmRuns) -> list[tuple[float | None, list[float], int]]:
        """By rate, ascending: what the rule of choice reads off each finished tuning run, and the number of runs."""
        rates: dict[float | None, list[float | None]] = {}
        for record in sorted(arm.tunings, key=lambda record: (record.learning_rate or 0.0, record.seed)):
            rates.setdefault(record.learning_rate, []).append(validation(record, self.monitor))
        return [(rate, [v for v in own if v is not None], len(own)) for rate, own in rates.items()]

    def metrics(self, checkpoint: Checkpoint, prefix: str = "") -> list[str]:
        """Names of the metrics that some finished final run has."""
        records = [record for arm in self.arms for record in arm.finished.values()]
        return _names((record.metrics.get(checkpoint, {}) for record in records), prefix)

    def curves(self, prefix: str = "") -> list[str]:
        """Names of the curves that some final run has."""
        return _names((record.curves for arm in self.arms for record in arm.finals.values()), prefix)

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
        run = [arm for arm in self.arms if arm.finished]
        steps = [float(min(record.steps for record in arm.finished.values())) for arm in run]
        seconds = [arm.evaluated_seconds for arm in run]
        # One arm without a clock leaves the common time unknown; min() would pass over its NaN.
        known = bool(seconds) and all(math.isfinite(end) for end in seconds)
        return {"steps": min(steps, default=math.nan), "seconds": min(seconds) if known else math.nan}

    def values_within(self, axis: Axis, metric: str) -> dict[str, dict[int, float]]:
        """A validation metric by arm and seed, as far as all arms come in steps or seconds.

        Args:
            axis: what is equal.
            metric: a curve.
        """
        limit = self.common_limit[axis]
        found: dict[str, dict[int, float]] = {}
        for arm in self.arms:
            clock = {
                seed: np.asarray(record.curves.get("step", ()), dtype=np.float64)
                if axis == "steps"
                else arm.seconds(record)
                for seed, record in arm.finished.items()
                if metric in record.curves
            }
            values = {
                seed: best_within(clock[seed], record.curves.get(self.monitor, []), record.curves[metric], limit)
                for seed, record in arm.finished.items()
                if seed in clock
            }
            found[arm.label] = {seed: value for seed, value in values.items() if not math.isnan(value)}
        return found


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
    done = bisect_right(clock.tolist(), limit * (1.0 + 1e-9)) if math.isfinite(limit) else 0
    points = [
        (chosen, value)
        for chosen, value in zip(monitored[:done], curve[:done], strict=False)
        if math.isfinite(chosen) and math.isfinite(value)
    ]
    return min(points, key=lambda point: point[0])[1] if points else math.nan


def curve_band(arm: ArmRuns, name: str, axis: Axis) -> dict[str, Array]:
    """Median and quartiles over an arm's finished runs, evaluation by evaluation.

    Args:
        arm: whose runs are evaluated at common steps.
        name: of the curve.
        axis: ``steps``, or ``seconds`` (the mean over the runs at a step, where each has its own).

    Returns:
        ``x``, ``median``, ``low``, ``high``, each (number of evaluations); empty where nothing was measured.
    """
    values: dict[float, list[float]] = {}
    places: dict[float, list[float]] = {}
    for record in arm.finished.values():
        seconds = arm.seconds(record)
        for step, second, value in zip(
            record.curves.get("step", []), seconds, record.curves.get(name, []), strict=False
        ):
            place = step if axis == "steps" else float(second)
            if math.isfinite(value) and math.isfinite(place):
                values.setdefault(step, []).append(value)
                places.setdefault(step, []).append(place)
    steps = sorted(values)
    quantiles = np.asarray([np.quantile(values[step], [0.25, 0.5, 0.75]) for step in steps]).reshape(-1, 3)
    x = np.asarray([float(np.mean(places[step])) for step in steps])
    return {"x": x, "low": quantiles[:, 0], "median": quantiles[:, 1], "high": quantiles[:, 2]}


def lower_is_better(metric: str) -> bool:
    """Whether less is better: of every metric but accuracies and the like."""
    return not any(word in metric for word in HIGHER_IS_BETTER)


def _arm(label: str, records: Sequence[RunRecord]) -> ArmRuns:
    own = [record for record in records if record.arm == label]
    timed = [
        record.timings["seconds_per_step"]
        for record in own
        if record.purpose == "timing" and math.isfinite(record.timings.get("seconds_per_step", math.nan))
    ]
    finals = sorted((record for record in own if record.purpose == "final"), key=lambda record: record.seed)
    return ArmRuns(
        label,
        {record.seed: record for record in finals},
        tuple(record for record in own if record.purpose == "tune"),
        float(np.median(timed)) if timed else None,
    )


def _names(mappings: Iterable[Mapping[str, Any]], prefix: str) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping if name.startswith(prefix)})
