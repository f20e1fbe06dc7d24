"""Runs of a comparison on this machine's cores: warm worker processes of one thread each."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as mp_connection
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lightning_lift.compare.engines import ONE_THREAD, Engine, Work, execute
from lightning_lift.compare.faults import Lost, lost_by_exit
from lightning_lift.compare.records import RunRecord, RunSpec

_POLL_SECONDS = 0.5


def available_cores() -> int:
    """Cores that this process may use: on a cluster or in a container fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group, or "max"
        return cores


class LocalEngine(Engine):
    """Worker processes that import everything once and do run after run.

    They end by themselves when this process does, even by SIGKILL. A worker that dies (killed, out of memory) costs
    its run one retry; the second time the run is given up for this call.

    Args:
        jobs: number of workers; None for as many as this process has cores.

    Raises:
        ValueError: ``jobs`` is below 1.
    """

    def __init__(self, jobs: int | None = None) -> None:
        super().__init__(available_cores() if jobs is None else jobs)
        self._workers: list[_Worker] = []
        self._started = 0

    def begin(self, spec: RunSpec, work: Work) -> None:
        """Hand the run to a worker without one; start a worker where there is none."""
        self._workers = [worker for worker in self._workers if worker.spec or worker.process.is_alive()]
        idle = next((worker for worker in self._workers if worker.spec is None), None)
        if idle is None:
            idle = _Worker(Path(work.directory) / "logs" / f"worker-{self._started:03d}.log")
            self._workers.append(idle)
            self._started += 1
        idle.begin(spec, work)

    def ended(self) -> Sequence[tuple[RunSpec, RunRecord | Lost]]:
        """Wait for the workers' next messages, or their ends, for half a second."""
        handles: dict[Any, _Worker] = {}
        for worker in self._workers:
            if worker.spec is not None:
                handles |= {worker.connection: worker, worker.process.sentinel: worker}
        found = []
        for worker in {handles[handle]: None for handle in mp_connection.wait(list(handles), timeout=_POLL_SECONDS)}:
            assert worker.spec is not None
            found.append((worker.spec, worker.receive()))
            worker.spec = None
            if not worker.process.is_alive():
                self._workers.remove(worker)
                worker.kill()
        return found

    def close(self) -> None:
        """End the workers at once; records are whole or absent, so nothing is lost but the runs in progress."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, log: Path) -> None:
        context = get_context("spawn")  # a fork would inherit the threads' locks of torch
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, str(log)))
        self.spec: RunSpec | None = None
        self.log = log
        with _environment(ONE_THREAD):  # read when torch is imported, which is before the first line of _serve
            self.process.start()
        theirs.close()  # or the end of the worker would not be seen on the pipe

    def begin(self, spec: RunSpec, work: Work) -> None:
        self.spec = spec
        with suppress(OSError):  # it has just died: its sentinel says so at once
            self.connection.send((spec, work))

    def receive(self) -> RunRecord | Lost:
        """What the run gave, or how the worker ended."""
        with suppress(EOFError, OSError):
            # What a dying worker still said comes before its end.
            if self.connection.poll(0):
                message: RunRecord | Lost = self.connection.recv()
                return message
        self.process.join(5)
        return lost_by_exit(self.process.exitcode)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()
                self.log.parent.rmdir()


def _serve(connection: Connection, log: str) -> None:
    """A worker's life: runs from the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _redirect(Path(log))
    import torch

    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError):  # the parent is done, or gone
        while True:
            connection.send(execute(*connection.recv()))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    mp_connection.wait([parent.sentinel])
    os._exit(1)  # no cleaning up: it could wait for the training loop


def _redirect(log: Path) -> None:
    """Warnings and crash reports go to a file: on the terminal they would tear the progress bar."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)
