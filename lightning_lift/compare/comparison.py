"""A comparison on disk: its settings, the runs that are done and those that are missing, and the way to the end."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lightning_lift.compare.directory import SETTINGS, differences, read_settings, write_settings
from lightning_lift.compare.engines import Engine, Work
from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.plan import Settings, cost_of
from lightning_lift.compare.records import RecordStore, RunRecord, RunSpec
from lightning_lift.compare.tuning import RULE, Choice, choose

Stage = Literal["timing", "tune", "final"]
STAGES: tuple[Stage, ...] = ("timing", "tune", "final")


@dataclass(frozen=True)
class Planned:
    """A run of the plan.

    Attributes:
        spec: the run.
        record: what it gave; None while it is missing.
    """

    spec: RunSpec
    record: RunRecord | None


class PairedComparison:
    """Run what is missing of a comparison, in three stages, each of which needs the one before.

    Killed at any moment it goes on from there: what is done lies in whole records, and everything else follows from
    the settings and the records. In Python::

        comparison = PairedComparison(settings, Path("runs/compare/mine"))
        with sole_user(comparison.directory), RunProgress() as progress, LocalEngine() as engine:
            comparison.open()
            comparison.run(engine, progress)
        write_report(comparison.directory, comparison.report_settings(), comparison.records())

    Args:
        settings: of the runs.
        directory: where everything goes.
        name: for the report.
        work: what the workers are given; None for the real runs.
        metrics: test metrics that the report compares; empty for its own choice.
    """

    def __init__(
        self, settings: Settings, directory: Path, name: str = "", work: Work | None = None, metrics: Sequence[str] = ()
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.name = name or directory.name
        self.metrics = tuple(metrics)
        self.store = RecordStore(directory)
        work = work or Work(str(directory))
        self.work = replace(work, directory=str(directory), checkpoint_every=settings.checkpoint_every)
        self._specs: dict[str, list[RunSpec]] = {}

    def open(self) -> None:
        """Write the settings into the directory, or check that they are those that it has.

        More seeds or arms than before are welcome: their runs are added.

        Raises:
            ValueError: the directory holds a comparison with other settings, or records without settings.
        """
        mine = json.loads(json.dumps(self.settings.plain(), default=str))
        content: dict[str, Any] = {"notes": []}
        if (self.directory / SETTINGS).is_file():
            content = read_settings(self.directory)
            theirs = json.loads(json.dumps(Settings.of_plain(content["settings"]).plain(), default=str))
            if different := differences(theirs, mine):
                shown = "; ".join(different[:4]) + (f"; and {len(different) - 4} more" if len(different) > 4 else "")
                raise ValueError(
                    f"{self.directory} holds a comparison with other settings: {shown}. Give another --output, the old "
                    "settings, or delete the directory."
                )
        elif self.store.all():
            raise ValueError(f"{self.directory} holds records but no {SETTINGS}: give another --output, or delete it.")
        write_settings(self.directory, content | {"name": self.name, "settings": mine, "metrics": self.metrics})

    def planned(self, stage: Stage) -> list[Planned] | None:
        """The runs of a stage; None where they are not known because an earlier stage is not done.

        Args:
            stage: which.

        Raises:
            ValueError: a record was made with other settings, or a time that the budget needs is not known.
        """
        if stage not in self._specs and (new := self._new_specs(stage)) is not None:
            self._specs[stage] = new
        specs = self._specs.get(stage)
        return None if specs is None else [Planned(spec, self.store.get(spec)) for spec in specs]

    def missing(self, stage: Stage) -> list[RunSpec] | None:
        """What is to be done in a stage, the longest first; None where that is not known yet.

        Args:
            stage: which.
        """
        planned = self.planned(stage)
        if planned is None:
            return None
        cost = cost_of(self.seconds_per_step())
        return sorted((run.spec for run in planned if run.record is None), key=cost, reverse=True)

    def forget_failed(self) -> int:
        """Delete the records of failed runs, so that they are done again, and return their number."""
        failed = [record for record in self.store.all() if record.outcome == "failed"]
        for record in failed:
            self.store.path(record.key).unlink()
        return len(failed)

    def run(self, engine: Engine, progress: RunProgress) -> None:
        """Do everything that is missing.

        Args:
            engine: does the runs.
            progress: shows how far they are.

        Raises:
            ValueError: a record was made with other settings, or a time that the budget needs is not known.
            RuntimeError: runs were lost to their surroundings (a full disk, a killed worker): which, and why.
        """
        for stage in STAGES:
            lost: list[str] = []
            if specs := self.missing(stage):
                progress.stage(stage, specs, self.seconds_per_step())
                lost = engine.run(specs, self.work, progress, alone=stage == "timing")
            if missing := self.missing(stage):
                shown = "; ".join(lost[:3]) + (f"; and {len(lost) - 3} more" if len(lost) > 3 else "")
                raise RuntimeError(
                    f"{len(missing)} {stage} runs could not be done: {shown}. They have no record: call the command "
                    "again when that is mended, and they are done."
                )

    def choices(self) -> dict[str, Choice]:
        """The learning rate of each arm, once all tuning runs are done; empty without a grid.

        Raises:
            ValueError: tuning runs are missing.
        """
        if not self.settings.learning_rates:
            return {}
        done = self._records("tune")
        if done is None:
            raise ValueError("the learning rates are not chosen yet: tuning runs are missing.")
        return {arm.label: choose([r for r in done if r.arm == arm.label]) for arm in self.settings.arms}

    def seconds_per_step(self) -> dict[str, float]:
        """The seconds per step by arm, from the timing runs that are done."""
        planned = self.planned("timing") or []
        times = {run.spec.arm: run.record.timings.get("seconds_per_step", math.nan) for run in planned if run.record}
        return {arm: seconds for arm, seconds in times.items() if 0 < seconds < math.inf}

    def report_settings(self) -> dict[str, Any]:
        """What a report has to say besides the records."""
        tuned = self._records("tune") is not None
        return {
            "name": self.name,
            "metrics": list(self.metrics),
            **self.settings.plain(),
            "steps_by_arm": self._steps_by_arm() or {},
            "tuning_rule": RULE if self.settings.learning_rates else None,
            "tuning": [choice.plain() for choice in self.choices().values()] if tuned else [],
            "seconds_per_step": self.seconds_per_step(),
            "notes": read_settings(self.directory)["notes"] if (self.directory / SETTINGS).is_file() else [],
        }

    def counts(self) -> str:
        """How many runs are done, in words."""
        known = {stage: self.planned(stage) for stage in STAGES}
        texts = [
            f"{sum(run.record is not None for run in runs)} of {len(runs)} {stage} runs"
            for stage, runs in known.items()
            if runs
        ]
        return ", ".join(texts) + " are done"

    def records(self) -> list[RunRecord]:
        """The records of the plan, as far as they are done: others in the directory are not part of it."""
        known = [run for stage in STAGES for run in self.planned(stage) or []]
        return [run.record for run in known if run.record is not None]

    def _new_specs(self, stage: Stage) -> list[RunSpec] | None:
        if stage == "timing":
            return self.settings.timing_specs()
        steps = self._steps_by_arm()
        if steps is None:
            return None
        if stage == "tune":
            return self.settings.tuning_specs(steps)
        if self._records("tune") is None:
            return None
        chosen = {label: choice.learning_rate for label, choice in self.choices().items()}
        return self.settings.final_specs(steps, {arm.label: chosen.get(arm.label) for arm in self.settings.arms})

    def _steps_by_arm(self) -> dict[str, int] | None:
        if self.settings.budget == "steps":
            return self.settings.steps_by_arm([])
        timing = self._records("timing")
        return None if timing is None else self.settings.steps_by_arm(timing)

    def _records(self, stage: Stage) -> list[RunRecord] | None:
        """All records of a stage, or None if any is missing."""
        planned = self.planned(stage)
        if planned is None:
            return None
        done = [run.record for run in planned if run.record is not None]
        return done if len(done) == len(planned) else None
