"""Ray gives the records that the local engine gives."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_lift.compare.engines import Work
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.engines.ray import RayEngine
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.records import RunRecord, RunSpec
from tests.workers.compare_runs import MODULE, record_of


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []

    def finished(self, spec: RunSpec, result: RunRecord | Lost) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


def work_in(directory: Path) -> Work:
    return Work(str(directory), f"{MODULE}:run")


def spec(arm: str, seed: int = 0) -> RunSpec:
    return RunSpec(arm, "final", 1e-3, seed, 10, {})


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    pytest.importorskip("ray")
    with RayEngine(2) as engine:
        yield engine


@pytest.mark.slow
def test_local_ray_gives_the_records_of_each_run_and_survives_errors_and_deaths(
    tmp_path: Path, engine: RayEngine
) -> None:
    specs = [spec("a", 0), spec("breaks"), spec("diverges"), spec("dies")]
    work, heard = work_in(tmp_path), Quiet()
    lost = engine.run(specs, work, heard)
    assert len(lost) == 1 and lost[0].startswith("final dies, ") and "WorkerCrashedError" in lost[0]
    good, broken, diverged = (work.store.read(s.key) for s in specs[:3])
    assert good.reproducible() == record_of(specs[0], f"checkpoints/{specs[0].key}/last.ckpt").reproducible()
    assert (broken.outcome, broken.error, diverged.outcome) == ("failed", "RuntimeError: no such luck", "diverged")
    assert work.store.get(specs[3]) is None
    calls = [line.split() for line in (tmp_path / "calls.txt").read_text().splitlines()]
    assert [key for key, *_ in calls].count(specs[3].key) == 2 and {threads for *_, threads in calls} == {"1"}
    assert len(heard.said) == 1


@pytest.mark.slow
def test_real_runs_on_ray_and_on_this_machine_give_the_same_records(tmp_path: Path, engine: RayEngine) -> None:
    from tests.workers.compare_worker import comparison

    with LocalEngine(2) as local:
        made = [comparison(tmp_path / name, "real") for name in ("ray", "local")]
        for one, runner in zip(made, (engine, local), strict=True):
            one.open()
            from lightning_lift.compare.engines.progress import RunProgress

            with RunProgress() as progress:
                one.run(runner, progress)
    first, second = ([record.reproducible() for record in one.store.all()] for one in made)
    assert first == second and {record["outcome"] for record in first} == {"finished"}


def test_without_ray_installed_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"Ray is not installed; install it with `pip install lightning-lift\[ray\]`"):
        RayEngine(2)
