"""Engines do the runs of a comparison: on this machine, on Ray, or as the elements of a job array."""

import importlib
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from lightning_lift.compare.faults import Lost, lost_by
from lightning_lift.compare.records import RecordStore, RunRecord, RunSpec

ATTEMPTS = 2
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Work:
    """What all runs of a comparison share; plain, so that it travels to other processes and machines.

    Attributes:
        directory: of the comparison.
        run: importable name, ``module:function``, of ``run(spec, directory, checkpoint_every) -> RunRecord``.
        checkpoint_every: keep a checkpoint each so many steps; None keeps the best and the last one.
    """

    directory: str
    run: str = "lightning_lift.compare.run:run"
    checkpoint_every: int | None = None

    @property
    def store(self) -> RecordStore:
        """Where the records go."""
        return RecordStore(Path(self.directory))

    def elsewhere(self) -> "Work":
        """The same for a process that has another current directory."""
        return replace(self, directory=str(Path(self.directory).resolve()))


class Listener(Protocol):
    """Told how the runs go on; a progress bar, or a test."""

    def finished(self, spec: RunSpec, result: RunRecord | Lost) -> None:
        """A run is done, or given up for this call."""

    def say(self, text: str) -> None:
        """Something the user should read."""


class Engine(ABC):
    """Do runs, several at a time. A run that is lost to its surroundings is tried once more, then given up.

    Subclass requirements: ``begin`` and ``ended``; ``close`` where there is something to end.

    Args:
        jobs: runs at a time.

    Raises:
        ValueError: it is below 1.
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs={jobs}: give the number of runs at a time, 1 or more.")
        self.jobs = jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def begin(self, spec: RunSpec, work: Work) -> None:
        """Start a run; one of ``jobs`` places is free for it."""

    @abstractmethod
    def ended(self) -> Sequence[tuple[RunSpec, RunRecord | Lost]]:
        """Wait a while, and return the runs that have ended since the last call; there may be none."""

    def close(self) -> None:  # noqa: B027 - an engine in this process has nothing to end
        """End the runs in progress at once."""

    def run(self, specs: Sequence[RunSpec], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        """Do all runs.

        Args:
            specs: in the order in which they are to begin.
            work: where and how.
            listener: is told how it goes on.
            alone: one run at a time, so that measured seconds are undisturbed.

        Returns:
            A text for each run that was given up: which, and why. Runs that did not begin because others would meet
            the same fault have none.
        """
        pending, attempts, lost = deque(specs), Counter[str](), list[str]()
        running = 0
        while pending or running:
            while pending and running < (1 if alone else self.jobs):
                spec = pending.popleft()
                attempts[spec.key] += 1
                self.begin(spec, work)
                running += 1
            for spec, result in self.ended():
                running -= 1
                if isinstance(result, Lost):
                    if result.everywhere:
                        pending.clear()
                    elif attempts[spec.key] < ATTEMPTS:
                        listener.say(f"{spec.label} is tried again: {result.reason}")
                        pending.append(spec)
                        continue
                    result = given_up(spec, work, result)
                if isinstance(result, Lost):
                    lost.append(f"{spec.label}: {result.reason}")
                listener.finished(spec, result)
        return lost


def given_up(spec: RunSpec, work: Work, lost: Lost) -> RunRecord | Lost:
    """What a run is that a call has given up: failed, where an earlier call gave it up for what may be its own fault.

    Otherwise a run that always crashes would keep a comparison from its end.

    Args:
        spec: the run.
        work: where and how.
        lost: to what.
    """
    mark = Path(work.directory) / "lost" / spec.key
    if not lost.repeatable:
        return lost
    try:
        if mark.exists():
            record = RunRecord.of(spec, "failed", error=f"in two calls: {lost.reason}")
            work.store.write(record)
            mark.unlink()
            return record
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        return lost_by(error) or lost
    return replace(lost, reason=f"{lost.reason}; if the next call meets it again, the run counts as failed")


def execute(spec: RunSpec, work: Work) -> RunRecord | Lost:
    """Do a run in this process and write its record; one that has a record is not done again.

    An error of the run is a record with the outcome ``failed``; one of its surroundings leaves no record.

    Args:
        spec: the run.
        work: where and how.

    Raises:
        ValueError: the directory holds a run of this name with other settings.
    """
    done = work.store.get(spec)
    if done is not None:
        return done
    try:
        try:
            record = _run(spec, work)
        except Exception as error:
            if lost_by(error) is not None:
                raise
            record = RunRecord.of(spec, "failed", error=f"{type(error).__name__}: {error}")
        work.store.write(record)
    except Exception as error:
        return lost_by(error) or Lost(f"{type(error).__name__}: {error}")
    return record


def _run(spec: RunSpec, work: Work) -> RunRecord:
    """One run; a timing run is done twice, and the faster one counts: the first pays for what a process does once."""
    module, _, function = work.run.partition(":")
    run: Callable[..., RunRecord] = getattr(importlib.import_module(module), function)
    times = 2 if spec.purpose == "timing" else 1
    records = [run(spec, Path(work.directory), work.checkpoint_every) for _ in range(times)]
    return min(records, key=lambda record: record.timings.get("seconds_per_step", math.inf))
