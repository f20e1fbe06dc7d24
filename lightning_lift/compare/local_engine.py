"""Runs the tasks of a comparison on this machine's cores: warm worker processes of one thread each."""

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as mp_connection
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, Self

from lightning_lift.compare.tasks import Result, Task, Work, execute, failed

ATTEMPTS = 2
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_POLL_SECONDS = 0.5


class Listener(Protocol):
    """Told how the tasks go on; a progress bar, or a test."""

    def started(self, task: Task) -> None:
        """A worker begins a task."""

    def advanced(self, task: Task, share: float) -> None:
        """This share of a task, from 0 to 1, is done."""

    def finished(self, task: Task, result: Result) -> None:
        """A task is done."""

    def say(self, text: str) -> None:
        """Something the user should read."""


class Engine(Protocol):
    """Does tasks: on this machine, or on a cluster."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""

    def __enter__(self) -> Self:
        """Gives itself."""

    def __exit__(self, *error: object) -> None:
        """Closes."""

    def run(self, tasks: Sequence[Task], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        """Does all tasks and gives the notes for the report.

        Args:
            tasks: in the order in which they are to begin.
            work: where and how.
            listener: is told how it goes on.
            alone: one task at a time, so that measured seconds are undisturbed.
        """

    def close(self) -> None:
        """Ends the workers at once, whatever they do."""


def available_cores() -> int:
    """Cores that this process may use: on a cluster or in a container fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group, or "max"
        return cores


class LocalEngine:
    """Worker processes that import everything once and take task after task.

    They end by themselves when this process does, even by SIGKILL. A worker that dies (killed, out of memory) costs
    its task one retry; the second time a group of runs is taken apart, and a single run is recorded as failed.

    Args:
        jobs: number of workers; None for as many as this process has cores.
    """

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs={jobs}: give the number of worker processes, 1 or more.")
        self.jobs = jobs or available_cores()
        self._workers: list[_Worker] = []
        self._started = 0

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""
        return self.jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, tasks: Sequence[Task], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        """Does all tasks; see ``Engine``."""
        pending = deque(tasks)
        attempts: Counter[Task] = Counter()
        notes: list[str] = []
        while pending or self._busy():
            while pending and len(self._busy()) < (1 if alone else self.jobs):
                task = pending.popleft()
                attempts[task] += 1
                self._idle_worker(work).begin(task, work)
                listener.started(task)
            for worker in self._ready():
                task = worker.require_task()
                message = worker.receive()
                if isinstance(message, float):
                    listener.advanced(task, message)
                elif isinstance(message, Result):
                    worker.task = None
                    notes += [note for note in message.notes if note not in notes]
                    listener.finished(task, message)
                else:
                    self._workers.remove(worker)
                    worker.kill()
                    again, result = after_death(task, work, attempts[task], message)
                    listener.say(f"a worker died ({message}) in: {task.label}")
                    pending.extend(again)
                    if result is not None:
                        listener.finished(task, result)
        return notes

    def close(self) -> None:
        """Ends the workers at once; records are whole or absent, so nothing is lost but the runs in progress."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _busy(self) -> list["_Worker"]:
        return [worker for worker in self._workers if worker.task is not None]

    def _idle_worker(self, work: Work) -> "_Worker":
        for worker in self._workers:
            if worker.task is None and worker.process.is_alive():
                return worker
        self._workers = [worker for worker in self._workers if worker.process.is_alive()]
        self._workers.append(_Worker(Path(work.directory) / "logs" / f"worker-{self._started:03d}.log"))
        self._started += 1
        return self._workers[-1]

    def _ready(self) -> list["_Worker"]:
        handles: dict[Any, _Worker] = {}
        for worker in self._busy():
            handles[worker.connection] = worker
            handles[worker.process.sentinel] = worker
        ready = mp_connection.wait(list(handles), timeout=_POLL_SECONDS)
        return list(dict.fromkeys(handles[handle] for handle in ready))


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, log: Path) -> None:
        context = get_context("spawn")  # a fork would inherit the threads' locks of torch
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, str(log)))
        self.task: Task | None = None
        self.log = log
        with _environment(ONE_THREAD):  # read when torch is imported, which is before the first line of _serve
            self.process.start()
        theirs.close()  # or the end of the worker would not be seen on the pipe

    def begin(self, task: Task, work: Work) -> None:
        self.task = task
        with suppress(OSError):  # it has just died: its sentinel says so at once
            self.connection.send((task, work))

    def require_task(self) -> Task:
        assert self.task is not None
        return self.task

    def receive(self) -> Result | float | str:
        """The next message; a text says how the worker ended."""
        try:
            # What a dying worker still said comes before its end.
            if self.connection.poll(0):
                message: Result | float | str = self.connection.recv()
                return message
        except (EOFError, OSError):
            pass
        self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed by signal {-code}, {signal.Signals(-code).name}"
        return f"exit status {code}"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()
                self.log.parent.rmdir()


def after_death(task: Task, work: Work, attempts: int, how: str) -> tuple[list[Task], Result | None]:
    """What is to be done again after a worker died, and the result of the task if it is not itself done again.

    Args:
        task: that the worker had.
        work: where and how; a single run gets its failed record here.
        attempts: how often the task was begun.
        how: the worker ended.
    """
    missing = tuple(spec for spec in task.specs if work.store.get(spec) is None)
    if not missing:
        return [], Result(())
    if attempts < ATTEMPTS:
        return [task], None
    if len(missing) > 1:
        return [Task((spec,)) for spec in missing], Result(())
    record = failed(missing[0], f"WorkerDied: {how}, {attempts} times in this run (is there enough memory?)")
    work.store.write(record)
    return [], Result((record,))


def _serve(connection: Connection, log: str) -> None:
    """A worker's life: tasks from the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _redirect(Path(log))
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            task, work = connection.recv()
            result = execute(task, work, _seldom(connection.send))
            connection.send(result)
        except (EOFError, BrokenPipeError):
            return


def _seldom(send: Callable[[float], None]) -> Callable[[float], None]:
    """Passes on a share done at most so often, since runs may report each step."""
    last = time.monotonic()

    def passed(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > _POLL_SECONDS:
            last = time.monotonic()
            send(float(share))

    return passed


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
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
