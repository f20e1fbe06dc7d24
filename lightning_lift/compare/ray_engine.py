"""Runs the tasks of a comparison on Ray: a cluster where ``RAY_ADDRESS`` names one, this machine otherwise."""

import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from lightning_lift.compare.local_engine import ATTEMPTS, ONE_THREAD, Listener, after_death
from lightning_lift.compare.tasks import Result, Task, Work, execute


class RayEngine:
    """One Ray task of one core for each task; a task whose worker dies is retried once, then as in ``LocalEngine``.

    The records are those of the local engine. They are written by the workers, and by this process where the workers
    do not share its file system; checkpoints stay where they were written, so share the directory to keep them.

    Args:
        jobs: tasks at a time; None for as many as the cluster has cores.

    Raises:
        ValueError: Ray is not installed.
    """

    def __init__(self, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError(
                "engine ray: Ray is not installed; install it with `pip install lightning-lift[ray]`, or leave out "
                "--engine ray."
            ) from error
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs={jobs}: give the number of tasks at a time, 1 or more.")
        self._ray: Any = ray
        self._mine = not ray.is_initialized()  # a session of the user's stays open
        environment = dict(ONE_THREAD)
        if self._mine:
            cluster = os.environ.get("RAY_ADDRESS")
            if cluster is None:
                # Workers of this machine find the modules that this process finds; a cluster has its own.
                environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
            settings: dict[str, Any] = (
                {"address": "auto"} if cluster else {"num_cpus": jobs, "include_dashboard": False}
            )
            ray.init(
                log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": environment}, **settings
            )
        self.jobs = jobs or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_execute)

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self.jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, tasks: Sequence[Task], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        """Does all tasks; see ``local_engine.Engine``."""
        pending = deque(tasks)
        running: dict[Any, Task] = {}
        notes: list[str] = []
        work = work.elsewhere()
        while pending or running:
            while pending and len(running) < (1 if alone else self.jobs):
                task = pending.popleft()
                running[self._remote.remote(task, work)] = task
                listener.started(task)
            done, _ = self._ray.wait(list(running), num_returns=1)
            for reference in done:
                task = running.pop(reference)
                try:
                    result: Result = self._ray.get(reference)
                except self._ray.exceptions.RayError as error:
                    how = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    listener.say(f"a Ray task failed ({how}) in: {task.label}")
                    again, lost = after_death(task, work, ATTEMPTS, how)
                    pending.extend(again)
                    result = lost or Result(())
                for record in result.records:
                    if not work.store.path(record.key).is_file():
                        work.store.write(record)
                notes += [note for note in result.notes if note not in notes]
                listener.finished(task, result)
        return notes

    def close(self) -> None:
        """Ends this engine's Ray session, and with it all tasks in progress."""
        if self._mine:
            self._ray.shutdown()


def _execute(task: Task, work: Work) -> Result:
    import torch

    torch.set_num_threads(1)
    return execute(task, work)
