"""What a worker does with a task."""

from pathlib import Path

import pytest

from lightning_lift.compare.record import RunRecord, RunSpec
from lightning_lift.compare.tasks import Task, Work, execute
from tests.workers import compare_runs
from tests.workers.compare_runs import MODULE, record_of


def work_in(directory: Path) -> Work:
    return Work(str(directory), f"{MODULE}:run", f"{MODULE}:iterate_vectorized")


def specs(arm: str, count: int) -> tuple[RunSpec, ...]:
    return tuple(RunSpec(arm, "final", 1e-3, seed, 10, {}) for seed in range(count))


def test_each_record_is_written_and_its_share_told(tmp_path: Path) -> None:
    shares: list[float] = []
    for vectorized in (False, True):
        task, work = Task(specs("a", 4), vectorized), work_in(tmp_path / str(vectorized))
        result = execute(task, work, shares.append)
        assert result.records == tuple(work.store.read(spec.key) for spec in task.specs)
        assert result.notes == ()
    assert shares == [0.25, 0.5, 0.75, 1.0] * 2


def test_records_that_are_there_are_kept(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    task = Task(specs("a", 3))
    work.store.write(record_of(task.specs[1]))
    assert [record.seed for record in execute(task, work).records] == [0, 2]
    assert execute(task, work).records == ()


def test_a_timing_run_is_done_twice_and_the_faster_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 0.3, 0.3, 0.9])

    def run(spec: RunSpec, directory: Path, checkpoint_every: int | None) -> RunRecord:
        return RunRecord.of(spec, "finished", timings={"seconds_per_step": next(seconds)})

    monkeypatch.setattr(compare_runs, "run", run)
    for seed in (0, 1):
        task = Task((RunSpec("a", "timing", None, seed, 10, {}),))
        assert execute(task, work_in(tmp_path)).records[0].timings == {"seconds_per_step": 0.3}


def test_ctrl_c_is_not_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> RunRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_runs, "run", run)
    with pytest.raises(KeyboardInterrupt):
        execute(Task(specs("a", 1)), work_in(tmp_path))
    assert work_in(tmp_path).store.all() == []


def test_another_current_directory_finds_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work = Work("here", checkpoint_every=3)
    assert work.elsewhere() == Work(str(tmp_path / "here"), checkpoint_every=3)
