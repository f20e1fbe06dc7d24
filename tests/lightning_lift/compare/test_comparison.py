"""Stages, the store, resuming, and the settings that a directory is held to."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.directory import read_settings, sole_user
from lightning_lift.compare.engines import Engine, Listener, Work, execute
from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.plan import Settings
from lightning_lift.compare.records import RunRecord, RunSpec
from lightning_lift.settings import read_config
from tests.workers import compare_runs
from tests.workers.compare_runs import MODULE, record_of

ROOT = Path(__file__).parents[3]
WORKER = ROOT / "tests" / "workers" / "compare_worker.py"
CONFIG = read_config(ROOT / "configs" / "ebm_gumbel.yaml")


class InProcess(Engine):
    """An engine without processes that stops after a number of runs."""

    def __init__(self, stop_after: int = 10**9) -> None:
        super().__init__(1)
        self.stop_after = stop_after
        self.alone: list[tuple[str, bool]] = []
        self.results: list[tuple[RunSpec, RunRecord | Lost]] = []
        self.is_alone = False

    def begin(self, spec: RunSpec, work: Work) -> None:
        self.stop_after -= 1
        if self.stop_after < 0:
            raise KeyboardInterrupt
        self.alone.append((spec.purpose, self.is_alone))
        self.results.append((spec, execute(spec, work)))

    def ended(self) -> Sequence[tuple[RunSpec, RunRecord | Lost]]:
        return [self.results.pop()]

    def run(self, specs: Sequence[RunSpec], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        self.is_alone = alone
        return super().run(specs, work, listener, alone=alone)


def comparison(directory: Path, **changes: Any) -> PairedComparison:
    base: dict[str, Any] = {"config": CONFIG, "arms": parse_arms("pgd,lift"), "seeds": (0, 1, 2), "steps": 100}
    work = Work("", f"{MODULE}:run")
    return PairedComparison(Settings(**(base | changes)), directory, "test", work)


def run(made: PairedComparison, engine: InProcess | None = None) -> None:
    made.open()
    with RunProgress(Console(file=open(os.devnull, "w"))) as progress, engine or InProcess() as one:
        made.run(one, progress)


def reproducible(made: PairedComparison) -> list[dict[str, Any]]:
    return [record.reproducible() for record in made.store.all()]


TUNED: dict[str, Any] = {"learning_rates": (1e-3, 3e-3, 1e-2), "tuning_seeds": 2}


def test_timing_alone_then_tuning_then_the_finals_at_the_chosen_rates(tmp_path: Path) -> None:
    made, engine = comparison(tmp_path, **TUNED), InProcess()
    assert made.planned("final") is None
    run(made, engine)
    assert engine.alone == [("timing", True)] * 2 + [("tune", False)] * 12 + [("final", False)] * 6
    records = made.records()
    assert {r.learning_rate for r in records if r.purpose == "final"} == {3e-3}
    assert made.counts() == "2 of 2 timing runs, 12 of 12 tune runs, 6 of 6 final runs are done"
    said = made.report_settings()
    assert [row["learning_rate"] for row in said["tuning"]] == [3e-3, 3e-3]
    assert said["seconds_per_step"] == {"pgd": 0.01, "lift": 0.01} and said["steps_by_arm"]["lift"] == 100


def test_without_a_grid_the_configuration_s_own_rate_is_used(tmp_path: Path) -> None:
    made = comparison(tmp_path)
    run(made)
    assert {(r.purpose, r.learning_rate) for r in made.records()} == {("timing", None), ("final", None)}
    assert made.choices() == {} and made.report_settings()["tuning"] == []


def test_arms_get_equal_seconds(tmp_path: Path) -> None:
    made = comparison(tmp_path, arms=parse_arms("fast=pgd,slow=lift"), budget="seconds", **TUNED)
    assert made.planned("tune") is None
    run(made)
    steps = {(r.arm, r.purpose): r.steps for r in made.records()}
    assert steps == {
        ("fast", "timing"): 50, ("slow", "timing"): 50, ("fast", "tune"): 100, ("slow", "tune"): 50,
        ("fast", "final"): 100, ("slow", "final"): 50,
    }  # fmt: skip


@pytest.mark.parametrize("stop_after", [0, 1, 5, 13, 17])
def test_stopped_anywhere_it_goes_on_and_ends_with_the_same_records(tmp_path: Path, stop_after: int) -> None:
    whole = comparison(tmp_path / "whole", **TUNED)
    run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(comparison(tmp_path / "stopped", **TUNED), InProcess(stop_after))
    again, engine = comparison(tmp_path / "stopped", **TUNED), InProcess()
    run(again, engine)
    assert len(engine.alone) == 20 - stop_after
    assert reproducible(again) == reproducible(whole)


def test_a_finished_comparison_runs_nothing_and_failed_runs_only_on_request(tmp_path: Path) -> None:
    arms = parse_arms("pgd,breaks=direct,diverges=lift")
    made = comparison(tmp_path, arms=arms)
    run(made)
    assert sorted({(r.arm, r.outcome) for r in made.records() if r.purpose == "final"}) == [
        ("breaks", "failed"), ("diverges", "diverged"), ("pgd", "finished"),
    ]  # fmt: skip
    engine = InProcess()
    run(comparison(tmp_path, arms=arms), engine)
    assert engine.alone == []
    assert made.forget_failed() == 4  # three finals and a timing run
    run(comparison(tmp_path, arms=arms), engine)
    assert len(engine.alone) == 4


def test_what_the_machine_ended_is_no_record_and_is_done_on_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = parse_arms("pgd,starves=direct")
    with pytest.raises(RuntimeError, match=r"1 timing runs could not be done: timing starves.*not enough memory"):
        run(comparison(tmp_path, arms=arms))
    assert {(r.arm, r.outcome) for r in comparison(tmp_path, arms=arms).store.all()} == {("pgd", "finished")}
    monkeypatch.setattr(compare_runs, "run", lambda spec, directory, checkpoint_every: record_of(spec))
    again = comparison(tmp_path, arms=arms)
    run(again)
    assert again.counts() == "2 of 2 timing runs, 6 of 6 final runs are done"


def test_on_a_full_disk_no_further_run_begins(tmp_path: Path) -> None:
    made, engine = comparison(tmp_path, arms=parse_arms("full=pgd,direct")), InProcess()
    with pytest.raises(RuntimeError, match=r"2 timing runs could not be done: timing full.*the disk is full"):
        run(made, engine)
    assert len(engine.alone) == 1 and made.store.all() == []


def test_other_settings_in_the_same_directory_are_refused_by_name(tmp_path: Path) -> None:
    comparison(tmp_path).open()
    before = (tmp_path / "comparison.json").read_bytes()
    other = json.loads(json.dumps(CONFIG))
    other["model"]["init_args"]["network"]["init_args"]["widths"] = [4, 4]
    for changes, text in (
        ({"steps": 200}, "steps is 100 there and 200 now"),
        ({"seeds": (0, 1)}, r"seeds is \[0, 1, 2\] there and \[0, 1\] now"),
        ({"arms": parse_arms("pgd,direct")}, "arms is "),
        ({"learning_rates": (1e-3,)}, r"learning_rates is \[\] there and \[0.001\] now"),
        (
            {"config": other},
            r"config.model.init_args.network.init_args.widths is \[32, 32, 32\] there and \[4, 4\] now",
        ),
        ({"steps": 200, "tuning_steps": 9}, "steps is 100 there and 200 now; tuning_steps is null there and 9 now"),
    ):
        with pytest.raises(ValueError, match=f"holds a comparison with other settings: {text}") as raised:
            comparison(tmp_path, **changes).open()
        assert "\n" not in str(raised.value)
    assert (tmp_path / "comparison.json").read_bytes() == before


def test_seeds_and_arms_may_be_added(tmp_path: Path) -> None:
    run(comparison(tmp_path))
    more = comparison(tmp_path, seeds=(0, 1, 2, 3), arms=parse_arms("pgd,direct,lift"))
    engine = InProcess()
    run(more, engine)
    assert len(engine.alone) == 1 + 6  # the new arm's timing, its four seeds, one seed more of the two others
    assert read_settings(tmp_path)["settings"]["seeds"] == [0, 1, 2, 3]


def test_an_arm_is_not_added_where_it_could_change_everyone_s_budget(tmp_path: Path) -> None:
    comparison(tmp_path, budget="seconds").open()
    with pytest.raises(ValueError, match="other settings: arms is"):
        comparison(tmp_path, budget="seconds", arms=parse_arms("pgd,lift,direct")).open()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no comparison \(there is no comparison.json in it\)"):
        read_settings(tmp_path)
    run(comparison(tmp_path))
    whole = (tmp_path / "comparison.json").read_bytes()
    for damaged, said in (
        (b"{", "Expecting"),
        (b"\xff\xfe", "utf-8"),
        (b"[]", "its format is 'list'"),
        (b'{"format": 99}', "its format is 99 and this version reads 1"),
        (whole.replace(b'"notes": []', b'"notes": 3'), "its notes is 3"),
        (whole.replace(b'"steps": 100', b'"steps": "100"'), "its steps is '100'"),
        (whole.replace(b'"arms": [', b'"arms": [3, '), "of another version"),
    ):
        (tmp_path / "comparison.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"comparison\.json.*" + said) as raised:
            comparison(tmp_path).open()
        assert "\n" not in str(raised.value)
    (tmp_path / "comparison.json").unlink()
    with pytest.raises(ValueError, match=r"holds records but no comparison\.json"):
        comparison(tmp_path).open()


def test_two_commands_do_not_work_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / ".half.json").write_text("{")
    with sole_user(tmp_path):
        assert not list((tmp_path / "records").iterdir())
        with pytest.raises(ValueError, match="another compare command is at work there"), sole_user(tmp_path):
            pass
    with sole_user(tmp_path):
        pass


def wait_for_records(process: subprocess.Popen[bytes], directory: Path, count: int, pause: float) -> bool:
    """Whether the process is still there when so many records are, and a while after."""
    deadline = time.monotonic() + 200
    while len(list((directory / "records").glob("[!.]*.json"))) < count:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(pause)
    return process.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_killed_three_times_at_random_moments_it_ends_with_the_same_records(tmp_path: Path, kind: str) -> None:
    seconds = "0.5" if kind == "fake" else "0"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "FAKE_RUN_SECONDS": seconds}

    def start(directory: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(WORKER), str(directory), kind], env=environment, cwd=ROOT)

    random = np.random.default_rng(0)
    killed = tmp_path / "killed"
    for low, high in ((0, 4), (4, 9), (9, 15)):
        process = start(killed)
        alive = wait_for_records(process, killed, int(random.integers(low, high)), random.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert alive, "it was through before it was killed"
        for path in (killed / "records").glob("[!.]*.json"):
            json.loads(path.read_text())
    whole = tmp_path / "whole"
    for directory in (killed, whole):
        assert start(directory).wait(400) == 0
    records = [{path.name: path for path in (d / "records").iterdir()} for d in (killed, whole)]
    assert sorted(records[0]) == sorted(records[1]) and len(records[0]) == 2 + 8 + 6
    one, two = (PairedComparison(Settings.of_plain(read_settings(d)["settings"]), d) for d in (killed, whole))
    assert reproducible(one) == reproducible(two)
    for record in one.records():
        assert record.outcome == "finished"
        for name, path in record.checkpoints.items():
            assert (killed / path).is_file(), (record.key, name)
    left = {p.relative_to(killed) for p in killed.rglob("*")} - {p.relative_to(whole) for p in whole.rglob("*")}
    assert not {path for path in left if path.parts[0] != "logs" and path.suffix != ".txt"}
