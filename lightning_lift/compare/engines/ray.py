"""Runs of a comparison on Ray: a cluster where ``RAY_ADDRESS`` names one, this machine otherwise."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_lift.compare.engines import ONE_THREAD, Engine, Work, execute
from lightning_lift.compare.faults import Lost, lost_by
from lightning_lift.compare.records import RunRecord, RunSpec


class RayEngine(Engine):
    """One Ray task of one core for each run.

    The records are those of the local engine. They are written by the workers, and by this process where the workers
    do not share its file system; checkpoints stay where they were written, so share the directory to keep them.

    Args:
        jobs: runs at a time; None for as many as the cluster has cores.

    Raises:
        ValueError: Ray is not installed, or ``jobs`` is below 1.
    """

    def __init__(self, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError(
                "engine ray: Ray is not installed; install it with `pip install lightning-lift[ray]`, or leave out "
                "--engine ray."
            ) from error
        super().__init__(1 if jobs is None else jobs)
        self._ray: Any = ray
        self._running: dict[Any, tuple[RunSpec, Work]] = {}
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
        if jobs is None:
            self.jobs = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_execute)

    def begin(self, spec: RunSpec, work: Work) -> None:
        """Hand the run to Ray."""
        work = work.elsewhere()
        self._running[self._remote.remote(spec, work)] = (spec, work)

    def ended(self) -> Sequence[tuple[RunSpec, RunRecord | Lost]]:
        """Wait for the end of a run; its record is written here where Ray's workers have another file system."""
        found = []
        for reference in self._ray.wait(list(self._running), num_returns=1)[0]:
            spec, work = self._running.pop(reference)
            try:
                result: RunRecord | Lost = self._ray.get(reference)
                if isinstance(result, RunRecord) and not work.store.path(spec.key).is_file():
                    work.store.write(result)
            except (self._ray.exceptions.RayError, OSError) as error:
                said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                result = lost_by(error) or Lost(f"its Ray task ended ({said})")
            found.append((spec, result))
        return found

    def close(self) -> None:
        """End this engine's Ray session, and with it all runs in progress."""
        if self._mine:
            self._ray.shutdown()


def _execute(spec: RunSpec, work: Work) -> RunRecord | Lost:
    import torch

    torch.set_num_threads(1)
    return execute(spec, work)
