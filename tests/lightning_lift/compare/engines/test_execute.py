"""What an engine does with a run: its record, or why it has none; what is lost is tried once more."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lightning_lift.compare.engines import Engine, Work, execute
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.records import RunRecord, RunSpec
from tests.workers import compare_runs
from tests.workers.compare_runs import MODULE, record_of


def work_in(directory: Path) -> Work:
    return Work(str(directory), f"{MODULE}:run")


def spec(arm: str, seed: int = 0, purpose: str = "final") -> RunSpec:
    return RunSpec(arm, purpose, 1e-3, seed, 10, {})  # type: ignore[arg-type]


def test_a_record_is_written_and_one_that_is_there_is_kept(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    first = execute(spec("a"), work)
    assert isinstance(first, RunRecord) and first == work.store.read(spec("a").key)
    assert execute(spec("a"), work) == first  # its measured times would differ
    broken = execute(spec("breaks"), work)
    assert isinstance(broken, RunRecord) and (broken.outcome, broken.error) == ("failed", "RuntimeError: no such luck")


def test_a_timing_run_is_done_twice_and_the_faster_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 0.3, 0.3, 0.9])

    def run(spec: RunSpec, directory: Path, checkpoint_every: int | None) -> RunRecord:
        return RunRecord.of(spec, "finished", timings={"seconds_per_step": next(seconds)})

    monkeypatch.setattr(compare_runs, "run", run)
    for seed in (0, 1):
        record = execute(spec("a", seed, "timing"), work_in(tmp_path))
        assert isinstance(record, RunRecord) and record.timings == {"seconds_per_step": 0.3}


def test_a_fault_of_the_surroundings_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_in(tmp_path)
    for arm, everywhere in (("full", True), ("starves", False)):
        lost = execute(spec(arm), work)
        assert isinstance(lost, Lost) and lost.everywhere is everywhere

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(work.store), "write", no_space)
    for arm in ("a", "breaks"):  # neither a result nor a failure can be written
        lost = execute(spec(arm), work)
        assert isinstance(lost, Lost) and "the disk is full" in lost.reason
    assert not (tmp_path / "records").exists()


def test_ctrl_c_is_not_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> RunRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_runs, "run", run)
    with pytest.raises(KeyboardInterrupt):
        execute(spec("a"), work_in(tmp_path))
    assert work_in(tmp_path).store.all() == []


def test_another_current_directory_finds_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work = Work("here", checkpoint_every=3)
    assert work.elsewhere() == Work(str(tmp_path / "here"), checkpoint_every=3)


class Scripted(Engine):
    """Gives the results it was told, arm by arm."""

    def __init__(self, results: dict[str, list[RunRecord | Lost]], jobs: int = 2) -> None:
        super().__init__(jobs)
        self.results, self.running = results, list[RunSpec]()
        self.begun: list[str] = []
        self.most = 0

    def begin(self, spec: RunSpec, work: Work) -> None:
        self.begun.append(spec.arm)
        self.running.append(spec)
        self.most = max(self.most, len(self.running))

    def ended(self) -> Sequence[tuple[RunSpec, RunRecord | Lost]]:
        spec = self.running.pop(0)
        return [(spec, self.results[spec.arm].pop(0))]


class Heard:
    def __init__(self) -> None:
        self.results: list[tuple[RunSpec, RunRecord | Lost]] = []
        self.said: list[str] = []

    def finished(self, spec: RunSpec, result: RunRecord | Lost) -> None:
        self.results.append((spec, result))

    def say(self, text: str) -> None:
        self.said.append(text)


def test_what_is_lost_is_tried_once_more_and_then_given_up(tmp_path: Path) -> None:
    good, gone = record_of(spec("a")), Lost("killed")
    engine, heard = Scripted({"a": [good], "once": [gone, good], "twice": [gone, gone]}), Heard()
    lost = engine.run([spec("twice"), spec("once"), spec("a")], work_in(tmp_path), heard)
    assert lost == ["final twice, lr 0.001, seed 0: killed"]
    assert engine.begun == ["twice", "once", "a", "twice", "once"] and engine.most == 2
    assert [(run.arm, result) for run, result in heard.results] == [("a", good), ("twice", gone), ("once", good)]
    assert heard.said == [f"final {arm}, lr 0.001, seed 0 is tried again: killed" for arm in ("twice", "once")]


def test_a_run_that_crashes_in_two_calls_has_failed(tmp_path: Path) -> None:
    crash, starved, work = Lost("SIGSEGV", repeatable=True), Lost("SIGKILL"), work_in(tmp_path)
    specs = [spec("crashes"), spec("starves")]
    said = []
    for _ in range(3):
        missing = [one for one in specs if work.store.get(one) is None]
        engine = Scripted({"crashes": [crash] * 2, "starves": [starved] * 2})
        said.append(engine.run(missing, work, Heard()))
    assert ["if the next call meets it again" in text for text in said[0]] == [True, False]
    starves = ["final starves, lr 0.001, seed 0: SIGKILL"]
    assert said[1:] == [starves] * 2
    (record,) = work.store.all()
    assert (record.arm, record.outcome, record.error) == ("crashes", "failed", "in two calls: SIGSEGV")
    work.store.path(record.key).unlink()  # as --retry_failed does: the count begins anew
    assert "next call" in Scripted({"crashes": [crash] * 2}).run(specs[:1], work, Heard())[0]


def test_where_every_run_would_be_lost_none_begins(tmp_path: Path) -> None:
    full = Lost("the disk is full", everywhere=True)
    engine = Scripted({"full": [full], "a": []}, jobs=1)
    assert engine.run([spec("full"), spec("a")], work_in(tmp_path), Heard()) == [
        "final full, lr 0.001, seed 0: the disk is full"
    ]
    assert engine.begun == ["full"]


def test_alone_is_one_at_a_time(tmp_path: Path) -> None:
    engine = Scripted({"a": [record_of(spec("a", seed)) for seed in range(3)]}, jobs=3)
    assert engine.run([spec("a", seed) for seed in range(3)], work_in(tmp_path), Heard(), alone=True) == []
    assert engine.most == 1


def test_a_bad_number_of_jobs_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="jobs=0: give the number of runs at a time, 1 or more"):
        Scripted({}, jobs=0)
