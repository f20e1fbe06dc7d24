"""Workers: warm, of one thread, retried when they die, gone when their parent is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_lift.compare.engines import Work
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.records import RunRecord, RunSpec
from tests.workers.compare_runs import MODULE, record_of

ROOT = Path(__file__).parents[4]
WORKER = ROOT / "tests" / "workers" / "compare_worker.py"


class Heard:
    def __init__(self) -> None:
        self.results: list[RunRecord | Lost] = []
        self.said: list[str] = []

    def finished(self, spec: RunSpec, result: RunRecord | Lost) -> None:
        self.results.append(result)

    def say(self, text: str) -> None:
        self.said.append(text)


def work_in(directory: Path) -> Work:
    return Work(str(directory), f"{MODULE}:run")


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
        assert engine.run(half, work, heard) == []
    assert [work.store.read(s.key).reproducible() for s in specs] == [
        record_of(s, f"checkpoints/{s.key}/last.ckpt").reproducible() for s in specs
    ]
    done = calls(tmp_path)
    assert len(done) == 8 and len({pid for _, pid, _ in done}) <= 2
    assert {threads for _, _, threads in done} == {"1"} and os.getpid() not in {int(pid) for _, pid, _ in done}
    assert len(heard.results) == 8


def test_an_error_or_a_divergence_in_one_run_does_not_stop_the_rest(tmp_path: Path, engine: LocalEngine) -> None:
    specs = [spec("breaks"), spec("diverges"), spec("a")]
    work = work_in(tmp_path)
    engine.run(specs, work, Heard())
    broken, diverged, good = (work.store.read(s.key) for s in specs)
    assert (broken.outcome, broken.error) == ("failed", "RuntimeError: no such luck")
    assert diverged.outcome == "diverged" and good.outcome == "finished"


# The last of those with workers: others would wait for a new one.
def test_a_killed_worker_costs_one_retry_then_the_run_is_given_up(tmp_path: Path, engine: LocalEngine) -> None:
    specs = [spec("dies"), spec("a", 1), spec("dies-once", 2)]
    work, heard = work_in(tmp_path), Heard()
    lost = engine.run(specs, work, heard)
    assert len(lost) == 1 and "killed by SIGKILL: the system does so when memory runs out" in lost[0]
    assert {record.key for record in work.store.all()} == {spec.key for spec in specs[1:]}
    assert len(heard.said) == 2 and [key for key, *_ in calls(tmp_path)].count(specs[0].key) == 2


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
