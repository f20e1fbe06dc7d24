"""From the settings of a comparison to its runs, in three stages: timing, tuning, final."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_lift.compare.arms import Arm
from lightning_lift.compare.records import Purpose, RunRecord, RunSpec, from_plain
from lightning_lift.compare.specification import resolve
from lightning_lift.compare.tuning import FIRST_TUNING_SEED
from lightning_lift.shipped import current_class_paths

Budget = Literal["steps", "seconds"]
TIMING_STEPS = 300


@dataclass(frozen=True)
class Settings:
    """Everything that determines the runs of a comparison, and nothing else.

    Attributes:
        config: settings of fit (``model``, ``data``, ``trainer``), overlays and overrides in them. Without any, the
            runs are known by name only: enough to read their records, whatever version made them.
        arms: what is compared.
        seeds: of the final runs.
        steps: optimizer steps of each final run; with a budget in seconds, those that set the default budget.
        learning_rates: the grid; empty for the configuration's own rate, without tuning.
        tuning_seeds: number of seeds of the tuning runs, which are 1000, 1001, ...
        tuning_steps: of each tuning run; None for as many as the final ones have.
        budget: whether arms get equal ``steps`` or equal ``seconds`` of training.
        seconds: of training for each arm; None for what the fastest arm needs for ``steps``.
        checkpoint_every: keep a checkpoint each so many steps; None keeps the best and the last one.
        evaluate_every: steps between two points of the curves; None for the configuration's validations.
    """

    config: dict[str, Any] = field(hash=False)
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    steps: int
    learning_rates: tuple[float, ...] = ()
    tuning_seeds: int = 3
    tuning_steps: int | None = None
    budget: Budget = "steps"
    seconds: float | None = None
    checkpoint_every: int | None = None
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        _check_arms(self.arms)
        if not self.seeds:
            raise ValueError("seeds: there are none: give a number of seeds, 1 or more, or a list of them.")
        if min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={_listed(self.seeds)}: they must be 0 or more, and each only once.")
        for name in ("steps", "tuning_seeds", "tuning_steps", "checkpoint_every", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give 1 or more.")
        rates = self.learning_rates
        if any(not 0 < rate < math.inf for rate in rates) or len(set(rates)) < len(rates):
            raise ValueError(f"learning_rates={_listed(rates)}: they must be positive numbers, and each only once.")
        if rates and (shared := set(self.seeds) & set(self.seeds_of_tuning)):
            raise ValueError(
                f"seeds={_listed(sorted(shared))} are those of the tuning runs, whose results would be used twice: "
                f"give seeds below {FIRST_TUNING_SEED}, or leave out learning_rates."
            )
        if self.budget not in ("steps", "seconds"):
            raise ValueError(f"budget={self.budget!r}: give 'steps' or 'seconds'.")
        if self.seconds is not None and (self.budget == "steps" or not 0 < self.seconds < math.inf):
            raise ValueError(f"seconds={self.seconds}: it must be positive, and goes with the budget 'seconds' only.")

    @property
    def seeds_of_tuning(self) -> tuple[int, ...]:
        """The seeds of the tuning runs; none without a grid of rates."""
        return tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning_seeds)) if self.learning_rates else ()

    def plain(self) -> dict[str, Any]:
        """The settings as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "Settings":
        """The settings that ``plain`` gave, perhaps by way of JSON, perhaps of an earlier version.

        Args:
            plain: one entry an attribute.

        Raises:
            ValueError: they are of another version.
        """
        try:
            known = dict(current_class_paths(plain))
            known.pop("vectorize", None)  # of versions that could train the seeds of an arm at once: it only was faster
            if "look_every" in known:
                known["evaluate_every"] = known.pop("look_every")
            rest = {key: tuple(known[key]) for key in ("seeds", "learning_rates")}
            return from_plain(cls, {**known, **rest, "arms": tuple(_arm_of(arm) for arm in known["arms"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the settings in comparison.json are damaged or of another version ({error}).") from error

    def timing_specs(self) -> list[RunSpec]:
        """One short run an arm, alone on the machine: the clock of the comparison.

        Runs beside others measure no fair time.
        """
        steps = min(self.steps, TIMING_STEPS, max(50, self.steps // 10))
        return [self._spec(arm, "timing", None, FIRST_TUNING_SEED, steps) for arm in self.arms]

    def tuning_specs(self, steps: Mapping[str, int]) -> list[RunSpec]:
        """Every arm at every rate on every tuning seed; empty without a grid.

        Args:
            steps: of the final runs, by arm.
        """
        return [
            self._spec(arm, "tune", rate, seed, self.tuning_steps or steps[arm.label])
            for arm in self.arms
            for rate in self.learning_rates
            for seed in self.seeds_of_tuning
        ]

    def final_specs(self, steps: Mapping[str, int], rates: Mapping[str, float | None]) -> list[RunSpec]:
        """Every arm on every seed.

        Args:
            steps: by arm.
            rates: the chosen learning rate by arm; None for the configuration's own.
        """
        return [
            self._spec(arm, "final", rates[arm.label], seed, steps[arm.label])
            for arm in self.arms
            for seed in self.seeds
        ]

    def steps_by_arm(self, timing: Sequence[RunRecord]) -> dict[str, int]:
        """Steps of each arm's final runs.

        Args:
            timing: records of the timing runs; not read where the budget is in steps.

        Raises:
            ValueError: an arm has no measured time.
        """
        labels = [arm.label for arm in self.arms]
        if self.budget == "steps":
            return dict.fromkeys(labels, self.steps)
        seconds = {record.arm: record.timings.get("seconds_per_step", math.nan) for record in timing}
        for record in timing:
            if not seconds[record.arm] > 0:
                raise ValueError(
                    f"{record.arm}: its timing run gave no time per step ({record.error or record.outcome}), so its "
                    "number of steps for the budget in seconds is not known: mend the arm, or give the budget in steps."
                )
        budget = self.seconds or self.steps * min(seconds.values())
        return {label: max(1, round(budget / seconds[label])) for label in labels}

    def _spec(self, arm: Arm, purpose: Purpose, rate: float | None, seed: int, steps: int) -> RunSpec:
        config = resolve(self.config, arm, rate, seed, steps, self.evaluate_every) if self.config else {}
        return RunSpec(arm.label, purpose, rate, seed, steps, config)


def cost_of(seconds_per_step: Mapping[str, float]) -> Callable[[RunSpec], float]:
    """How long runs take relative to each other: their steps, weighted by their arms' measured seconds.

    Args:
        seconds_per_step: by arm, where measured; an arm without counts as the mean of the others.
    """
    usual = sum(seconds_per_step.values()) / len(seconds_per_step) if seconds_per_step else 1.0
    return lambda spec: spec.steps * seconds_per_step.get(spec.arm, usual)


def _arm_of(plain: Mapping[str, Any]) -> Arm:
    match = plain["match_parameters"]
    matched = None if match is None else _arm_of(match)
    return Arm(**{**plain, "callbacks": tuple(plain["callbacks"]), "match_parameters": matched})


def _check_arms(arms: Sequence[Arm]) -> None:
    if not arms:
        raise ValueError("parameterizations: there is none to compare: give at least one, such as pgd,direct,lift.")
    names: dict[str, str] = {}
    for arm in arms:
        name = RunSpec(arm.label, "final", None, 0, 1, {}).key
        if name in names:
            raise ValueError(
                f"arms {names[name]!r} and {arm.label!r} would share their files: give one of them a label, as in "
                "other=direct:latent_gain=10."
            )
        names[name] = arm.label


def _listed(values: Iterable[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
