"""Workers: warm, of one thread, retried when they die, gone when their parent is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_lift.compare.local_engine import LocalEngine, after_death
from lightning_lift.compare.record import RunSpec
from lightning_lift.compare.tasks import Result, Task, Work
from tests.workers.compare_runs import MODULE, record_of

ROOT = Path(__file__).parents[3]
WORKER = ROOT / "tests" / "workers" / "compare_worker.py"


class Heard:
    def __init__(self) -> None:
        self.started_tasks: list[Task] = []
        self.finished_tasks: list[tuple[Task, Result]] = []
        self.shares: list[float] = []
        self.said: list[str] = []

    def started(self, task: Task) -> None:
        self.started_tasks.append(task)

    def advanced(self, task: Task, share: float) -> None:
        self.shares.append(share)

    def finished(self, task: Task, result: Result) -> None:
        self.finished_tasks.append((task, result))

    def say(self, text: str) -> None:
        self.said.append(text)


def work_in(directory: Path) -> Work:
    return Work(str(directory), f"{MODULE}:run", f"{MODULE}:iterate_vectorized")


def spec(arm: str, seed: int = 0) -> RunSpec:
    return RunSpec(arm, "final", 1e-3, seed, 10, {})


def calls(directory: Path) -> list[list[str]]:
    return [line.split() for line in (directory / "calls.txt").read_text().splitlines()]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(2) as engine:
        yield engine


def test_workers_stay_warm_have_one_thread_and_write_what_a_run_gives(tmp_path: Path, engine: LocalEngine) -> None:
    specs = [spec("a", seed) for seed in range(8)]
    work, heard = work_in(tmp_path), Heard()
    for half in (specs[:4], specs[4:]):
        assert engine.run([Task((s,)) for s in half], work, heard) == []
    assert [work.store.read(s.key).reproducible() for s in specs] == [
        record_of(s, f"checkpoints/{s.key}/last.ckpt").reproducible() for s in specs
    ]
    done = calls(tmp_path)
    assert len(done) == 8 and len({pid for _, pid, _ in done}) <= 2
    assert {threads for _, _, threads in done} == {"1"} and os.getpid() not in {int(pid) for _, pid, _ in done}
    assert len(heard.finished_tasks) == 8 and [t.specs[0] for t in heard.started_tasks] == specs


def test_alone_is_one_at_a_time(tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(Heard):
        def started(self, task: Task) -> None:
            super().started(task)
            assert len(self.started_tasks) == len(self.finished_tasks) + 1

    heard = Watching()
    engine.run([Task((spec("a", seed),)) for seed in range(4)], work_in(tmp_path), heard, alone=True)
    assert len(heard.finished_tasks) == 4


def test_an_error_or_a_divergence_in_one_run_does_not_stop_the_rest(tmp_path: Path, engine: LocalEngine) -> None:
    specs = [spec("breaks"), spec("diverges"), spec("a")]
    work = work_in(tmp_path)
    engine.run([Task((s,)) for s in specs], work, Heard())
    broken, diverged, good = (work.store.read(s.key) for s in specs)
    assert (broken.outcome, broken.error) == ("failed", "RuntimeError: no such luck")
    assert diverged.outcome == "diverged" and good.outcome == "finished"


def test_a_group_whose_worker_dies_is_retried_once_and_then_taken_apart(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    group = Task(tuple(spec("a", seed) for seed in range(3)), vectorized=True)
    assert after_death(group, work, 1, "killed") == ([group], None)
    work.store.write(record_of(group.specs[1]))
    pieces = [Task((s,)) for s in (group.specs[0], group.specs[2])]
    assert after_death(group, work, 2, "killed") == (pieces, Result(()))
    assert after_death(pieces[0], work, 1, "killed") == ([pieces[0]], None)
    again, result = after_death(pieces[0], work, 2, "killed")
    assert again == [] and result is not None and result.records[0].outcome == "failed"
    assert after_death(pieces[0], work, 1, "killed") == ([], Result(()))  # died after its record was written


def test_a_group_is_trained_at_once_or_taken_apart_and_said(tmp_path: Path, engine: LocalEngine) -> None:
    work, heard = work_in(tmp_path), Heard()
    groups = [
        Task(tuple(spec(arm, seed) for seed in range(3)), vectorized=True)
        for arm in ("a", "separate", "breaks", "half")
    ]
    notes = sorted(engine.run(groups, work, heard))
    assert [r.engine for s in groups[0].specs if (r := work.store.read(s.key))] == ["vectorized"] * 3
    assert [r.engine for s in groups[1].specs if (r := work.store.read(s.key))] == ["lightning"] * 3
    assert {work.store.read(s.key).outcome for s in groups[2].specs} == {"failed"}
    assert [work.store.read(s.key).engine for s in groups[3].specs] == ["vectorized", "lightning", "lightning"]
    assert notes == [
        "breaks: its seeds were trained one after another, not at once: RuntimeError: no such luck",
        "half: its seeds were trained one after another, not at once: RuntimeError: half way",
        "separate: its seeds were trained one after another, not at once: it draws random numbers",
    ]


def test_what_is_done_is_not_done_again(tmp_path: Path, engine: LocalEngine) -> None:
    work = work_in(tmp_path)
    group = Task(tuple(spec("a", seed) for seed in range(4)))
    work.store.write(record_of(group.specs[1]))
    engine.run([group], work, Heard())
    assert [key for key, *_ in calls(tmp_path)] == [group.specs[i].key for i in (0, 2, 3)]


# The last of those with workers: others would wait for a new one.
def test_a_killed_worker_costs_one_retry_then_the_run_is_failed(tmp_path: Path, engine: LocalEngine) -> None:
    specs = [spec("dies"), spec("a", 1), spec("a", 2)]
    work, heard = work_in(tmp_path), Heard()
    engine.run([Task((s,)) for s in specs], work, heard)
    dead, *good = (work.store.read(s.key) for s in specs)
    assert dead.outcome == "failed" and "killed by signal 9, SIGKILL, 2 times" in str(dead.error)
    assert [record.outcome for record in good] == ["finished"] * 2
    assert len(heard.said) == 2 and [key for key, *_ in calls(tmp_path)].count(specs[0].key) == 2


def test_a_bad_number_of_jobs_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="jobs=0: give the number of worker processes, 1 or more"):
        LocalEngine(0)


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "FAKE_RUN_SECONDS": "300", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, str(WORKER), str(tmp_path), "fake"], env=environment, cwd=ROOT)
    try:
        deadline = time.monotonic() + 90
        while not (tmp_path / "calls.txt").is_file() or len(calls(tmp_path)) < 1:
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.1)
        worker = int(calls(tmp_path)[0][1])
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
