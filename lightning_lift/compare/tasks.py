"""What a worker is handed: some runs of a comparison, done one after another or all at once, each leaving a record."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_lift.compare.record import RecordStore, RunRecord, RunSpec
from lightning_lift.compare.stacking import NotVectorizable

Progress = Callable[[float], None]  # share of a task that is done


@dataclass(frozen=True)
class Task:
    """Runs that one worker does.

    Attributes:
        specs: the runs; of one arm, purpose, rate and number of steps where there are several.
        vectorized: whether to train them all at once where the module allows it.
    """

    specs: tuple[RunSpec, ...]
    vectorized: bool = False

    @property
    def label(self) -> str:
        """One line that says which runs these are."""
        first = self.specs[0]
        rate = "the configuration's rate" if first.learning_rate is None else f"lr {first.learning_rate:g}"
        seeds = f"seed {first.seed}" if len(self.specs) == 1 else f"{len(self.specs)} seeds from {first.seed}"
        return f"{first.purpose} {first.arm}, {rate}, {seeds}"


@dataclass(frozen=True)
class Work:
    """What all tasks of a comparison share; plain, so that it travels to other processes and machines.

    Attributes:
        directory: of the comparison.
        run: importable name, ``module:function``, of ``run(spec, directory, checkpoint_every) -> RunRecord``.
        run_vectorized: likewise of ``iterate_vectorized(specs, directory, checkpoint_every, progress)``, which gives
            the records of several specs as they come.
        checkpoint_every: keep a checkpoint each so many steps; None keeps the best and the last one.
    """

    directory: str
    run: str = "lightning_lift.compare.run:run"
    run_vectorized: str = "lightning_lift.compare.vectorized:iterate_vectorized"
    checkpoint_every: int | None = None

    @property
    def store(self) -> RecordStore:
        """Where the records go."""
        return RecordStore(Path(self.directory))

    def elsewhere(self) -> "Work":
        """The same for a process that has another current directory."""
        return replace(self, directory=str(Path(self.directory).resolve()))


@dataclass(frozen=True)
class Result:
    """What a task gave.

    Attributes:
        records: of the runs that this call did; those that had a record already are left out.
        notes: what a reader of the report has to know, such as why runs were not trained at once.
    """

    records: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()


def execute(task: Task, work: Work, progress: Progress | None = None) -> Result:
    """Does what is missing of a task, in this process, and writes each record as soon as it is there.

    An error inside a run is a record with the outcome ``failed``. Runs that cannot be trained at once, or fail when
    trained at once, are done one after another, and a note says so.

    Args:
        task: the runs.
        work: where and how.
        progress: called with the share done, from 0 to 1.
    """
    missing = tuple(spec for spec in task.specs if work.store.get(spec) is None)
    if not missing:
        return Result(())
    if not task.vectorized:
        return Result(_one_by_one(missing, work, progress))
    records: list[RunRecord] = []
    try:
        for record in resolve_name(work.run_vectorized)(missing, Path(work.directory), work.checkpoint_every, progress):
            work.store.write(record)
            records.append(record)
        return Result(tuple(records))
    except Exception as error:
        said = str(error) if isinstance(error, NotVectorizable) else f"{type(error).__name__}: {error}"
        note = f"{missing[0].arm}: its seeds were trained one after another, not at once: {said}"
    done = {record.key for record in records}
    left = [spec for spec in missing if spec.key not in done]
    return Result((*records, *_one_by_one(left, work, progress)), (note,))


def task_cost(seconds_per_step: Mapping[str, float]) -> Callable[[Task], float]:
    """How long tasks take relative to each other: their steps, weighted by their arms' measured seconds.

    Args:
        seconds_per_step: by arm, where measured; an arm without counts as the mean of the others.
    """
    usual = sum(seconds_per_step.values()) / len(seconds_per_step) if seconds_per_step else 1.0
    return lambda task: sum(spec.steps for spec in task.specs) * seconds_per_step.get(task.specs[0].arm, usual)


def failed(spec: RunSpec, error: str) -> RunRecord:
    """The record of a run that an error ended.

    Args:
        spec: the run.
        error: kind and message.
    """
    return RunRecord.of(spec, "failed", error=error)


def resolve_name(name: str) -> Callable[..., Any]:
    """The function of an importable name.

    Args:
        name: ``module:function``.
    """
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _run(spec: RunSpec, work: Work) -> RunRecord:
    """One run; a timing run is done twice, and the faster one counts: the first pays for what a process does once."""
    times = 2 if spec.purpose == "timing" else 1
    run = resolve_name(work.run)
    records: list[RunRecord] = [run(spec, Path(work.directory), work.checkpoint_every) for _ in range(times)]
    return min(records, key=lambda record: record.timings.get("seconds_per_step", math.inf))


def _one_by_one(specs: Sequence[RunSpec], work: Work, progress: Progress | None) -> tuple[RunRecord, ...]:
    records = []
    for done, spec in enumerate(specs, start=1):
        try:
            record = _run(spec, work)
        except Exception as error:
            record = failed(spec, f"{type(error).__name__}: {error}")
        work.store.write(record)
        records.append(record)
        if progress is not None:
            progress(done / len(specs))
    return tuple(records)
