"""From the settings of a comparison to its runs, in three stages: timing, tuning, final."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_lift.compare.arms import Arm
from lightning_lift.compare.build import resolve
from lightning_lift.compare.record import Purpose, RunRecord, RunSpec
from lightning_lift.compare.tasks import Task, task_cost
from lightning_lift.compare.tuning import FIRST_TUNING_SEED

Budget = Literal["steps", "seconds"]
TIMING_STEPS = 300


@dataclass(frozen=True)
class Settings:
    """Everything that determines the runs of a comparison, and nothing else.

    Attributes:
        config: settings of fit (``model``, ``data``, ``trainer``), overlays and overrides in them.
        arms: what is compared.
        seeds: of the final runs.
        steps: optimizer steps of each final run; with a budget in seconds, those that set the default budget.
        learning_rates: the grid; empty for the configuration's own rate, without tuning.
        tuning_seeds: number of seeds of the tuning runs, which are 1000, 1001, ...
        tuning_steps: of each tuning run; None for as many as the final ones have.
        budget: whether arms get equal ``steps`` or equal ``seconds`` of training.
        seconds: of training for each arm; None for what the fastest arm needs for ``steps``.
        vectorize: whether the seeds of an arm are trained at once where the module allows it.
        checkpoint_every: keep a checkpoint each so many steps; None keeps the best and the last one.
        look_every: steps between two points of the curves; None for the configuration's validations.
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
    vectorize: bool = False
    checkpoint_every: int | None = None
    look_every: int | None = None

    def __post_init__(self) -> None:
        _check_arms(self.arms)
        if not self.seeds:
            raise ValueError("seeds: there are none: give a number of seeds, 1 or more, or a list of them.")
        if min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={_listed(self.seeds)}: they must be 0 or more, and each only once.")
        for name in ("steps", "tuning_seeds", "tuning_steps", "checkpoint_every", "look_every"):
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
        """Of the tuning runs; none without a grid of rates."""
        return tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning_seeds)) if self.learning_rates else ()

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "Settings":
        """The settings that ``plain`` gave, perhaps by way of JSON.

        Args:
            plain: one entry an attribute.

        Raises:
            ValueError: they are of another version.
        """
        try:
            rest = {key: tuple(plain[key]) for key in ("seeds", "learning_rates")}
            return cls(**{**plain, **rest, "arms": tuple(_arm_of(arm) for arm in plain["arms"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the settings of the comparison are of another version ({error}).") from error

    def timing_specs(self) -> list[RunSpec]:
        """One short run an arm, alone on the machine: the clock of the comparison.

        Runs beside others, and runs that share a batch, measure no fair time.
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
        config = resolve(self.config, arm, rate, seed, steps, self.look_every)
        return RunSpec(arm.label, purpose, rate, seed, steps, config)


def group(
    specs: Iterable[RunSpec], *, vectorize: bool, slots: int, seconds_per_step: Mapping[str, float] | None = None
) -> list[Task]:
    """Runs as tasks, the longest first.

    Args:
        specs: the runs.
        vectorize: runs of one arm, purpose, rate and number of steps become one task; a group that is more than its
            share of the whole work is cut, so that all workers have something to do.
        slots: number of tasks that run at a time.
        seconds_per_step: by arm, where measured; all arms count alike otherwise.
    """
    cost = task_cost(seconds_per_step or {})
    if not vectorize:
        tasks = [Task((spec,)) for spec in specs]
        return sorted(tasks, key=cost, reverse=True)
    groups: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in specs:
        # Timing runs are never trained at once: they are the clock.
        alone = spec.seed if spec.purpose == "timing" else None
        groups.setdefault((spec.arm, spec.purpose, spec.learning_rate, spec.steps, alone), []).append(spec)
    whole = [Task(tuple(members), members[0].purpose != "timing") for members in groups.values()]
    share = sum(map(cost, whole)) / max(1, slots)
    tasks = [part for task in whole for part in _cut(task, math.ceil(cost(task) / share - 1e-9))]
    return sorted(tasks, key=cost, reverse=True)


def _cut(task: Task, parts: int) -> list[Task]:
    """Nearly equal parts, in the order of the seeds."""
    count = len(task.specs)
    parts = min(max(1, parts), count)
    ends = [round(i * count / parts) for i in range(parts + 1)]
    return [Task(task.specs[a:b], task.vectorized) for a, b in itertools.pairwise(ends)]


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
