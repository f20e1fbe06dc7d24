"""``lightning-lift compare``: options, plan, single tasks, resuming and the report, with stand-in runs."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.cli import main
from lightning_lift.commands import compare
from lightning_lift.commands.compare_options import OPTIONS, rate_list, seed_list
from lightning_lift.compare.directory import read_settings
from lightning_lift.compare.engines import Listener, Work, execute
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.records import RecordStore, RunSpec
from lightning_lift.compare.report.figures import Picture
from tests.workers.compare_runs import MODULE

CONFIG = Path(__file__).parents[3] / "configs" / "ebm_gumbel.yaml"
RUN = f"{MODULE}:run"


class InProcess(LocalEngine):
    """No processes; the stop comes as Ctrl-C would."""

    stop_after = 10**9
    runs_done = 0

    def run(self, specs: Sequence[RunSpec], work: Work, listener: Listener, *, alone: bool = False) -> list[str]:
        for spec in specs:
            if InProcess.runs_done == InProcess.stop_after:
                raise KeyboardInterrupt
            InProcess.runs_done += 1
            listener.finished(spec, execute(spec, work))
        return []


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "LocalEngine", InProcess)
    monkeypatch.setattr(InProcess, "stop_after", 10**9)
    monkeypatch.setattr(InProcess, "runs_done", 0)
    monkeypatch.setattr(Work.__init__, "__defaults__", (RUN, None))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take seconds: most tests are content with a file."""

    def write_report(directory: Path, settings: Any, records: Any) -> list[Path]:
        (directory / "report.md").write_text(f"{len(records)} records")
        return [directory / "report.md"]

    monkeypatch.setattr("lightning_lift.compare.report.write_report", write_report)


def command(directory: Path, *more: str, config: Path = CONFIG) -> None:
    main(["compare", "--config", str(config), "--output", str(directory), *more])


SMALL = ("--parameterizations", "pgd,lift", "--seeds", "2", "--steps", "20")
TUNED = (*SMALL, "--learning_rates", "1e-3,3e-3", "--tuning_seeds", "1")


def test_from_the_configuration_to_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Picture, "png", b"png")  # test_figures renders them
    monkeypatch.setattr(Picture, "svg", "<svg/>")
    command(tmp_path, *TUNED)
    printed = capsys.readouterr().out
    assert "2 of 2 timing runs, 4 of 4 tune runs, 4 of 4 final runs are done" in printed
    assert f"wrote {tmp_path / 'report.html'}" in printed and "figures" not in printed
    assert "ebm_gumbel" in (tmp_path / "report.html").read_text()
    records = RecordStore(tmp_path).all()
    assert len(records) == 10
    assert {r.learning_rate for r in records if r.purpose == "final"} == {3e-3}


@pytest.mark.usefixtures("no_figures")
def test_stopped_by_ctrl_c_it_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    InProcess.stop_after = 3
    with pytest.raises(SystemExit) as stopped:
        command(tmp_path, *SMALL)
    assert stopped.value.code == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped; 2 of 2 timing runs, 1 of 4 final runs are done. The same command goes on from there." in said
    InProcess.stop_after = 10**9
    command(tmp_path, *SMALL)
    assert InProcess.runs_done == 6


@pytest.mark.usefixtures("no_figures")
def test_the_plan_can_be_done_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(tmp_path, *TUNED, "--plan")
    printed = capsys.readouterr().out
    assert len(re.findall(r"^timing .* missing$", printed, re.MULTILINE)) == 2
    assert len(re.findall(r"^tune .* missing$", printed, re.MULTILINE)) == 4
    assert "final: its runs are known when those above are done" in printed and "6 runs; wrote" in printed
    for index in range(6):
        main(["compare", "--output", str(tmp_path), "--only", str(index)])
    command(tmp_path, *TUNED, "--plan")
    printed = capsys.readouterr().out
    assert len(re.findall(r"^tune .* finished$", printed, re.MULTILINE)) == 4
    assert len(re.findall(r"^final .* lr 0.003 .* missing$", printed, re.MULTILINE)) == 4
    for index in range(4):
        main(["compare", "--output", str(tmp_path), "--only", str(index)])
    command(tmp_path, *TUNED, "--plan")
    assert "nothing is missing: call the command without --plan for the report" in capsys.readouterr().out
    assert InProcess.runs_done == 0
    main(["compare", "--output", str(tmp_path), "--report_only"])
    assert (tmp_path / "report.md").read_text() == "10 records"
    command(tmp_path, *TUNED)
    assert InProcess.runs_done == 0


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command(tmp_path / "out", *SMALL, "--plan")
    with pytest.raises(SystemExit):
        main(["compare", "--output", "out", "--report_only"])
    main(["compare", "--output", "out", "--only", "0"])
    main(["compare", "--output", "out", "--report_only", "--metrics", "test/nll"])
    assert (tmp_path / "out" / "report.md").read_text() == "1 records"
    (tmp_path / "out").rename(tmp_path / "moved")
    main(["compare", "--config", str(CONFIG), "--output", "moved", "--report_only"])


def test_a_comparison_that_version_0_1_trained_at_once_is_reported_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_figures: None
) -> None:
    shutil.copytree(CONFIG.parents[1] / "tests" / "fixtures" / "compare", tmp_path / "old")
    main(["compare", "--output", str(tmp_path / "old"), "--report_only"])
    assert (tmp_path / "old" / "report.md").read_text() == "4 records"
    old = compare.opened(tmp_path / "old")
    runs = old.planned("final")
    assert runs is not None and [run.record and run.record.engine for run in runs] == ["vectorized"] * 4
    old.open()  # its settings are this version's, under today's names
    assert read_settings(tmp_path / "old")["settings"]["evaluate_every"] == 5
    assert old.missing("final") == [] and len(old.missing("timing") or ()) == 2


def test_a_run_of_the_plan_that_the_machine_ends_is_an_error_without_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(tmp_path, "--parameterizations", "full=pgd", "--seeds", "1", "--steps", "5", "--plan")
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--output", str(tmp_path), "--only", "0"])
    assert ended.value.code == 1 and "the disk is full" in capsys.readouterr().err
    assert RecordStore(tmp_path).all() == []


def test_a_failed_run_of_the_plan_ends_with_status_1(tmp_path: Path) -> None:
    command(tmp_path, "--parameterizations", "breaks=pgd", "--seeds", "1", "--steps", "5", "--plan")
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--output", str(tmp_path), "--only", "0"])
    assert ended.value.code == 1


@pytest.mark.usefixtures("no_figures")
def test_failed_runs_are_done_again_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--parameterizations", "breaks=pgd,lift", "--seeds", "2", "--steps", "5")
    command(tmp_path, *options)
    before = InProcess.runs_done
    command(tmp_path, *options)
    assert InProcess.runs_done == before
    command(tmp_path, *options, "--retry_failed")
    assert "3 failed runs are to be done again" in capsys.readouterr().out
    assert InProcess.runs_done == before + 3


@pytest.mark.usefixtures("no_figures")
def test_defaults_come_from_the_configuration_and_flags_win(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    own = {
        "parameterizations": ["pgd", {"label": "ten", "class_path": "direct", "init_args": {"latent_gain": 10.0}}],
        "seeds": [100, 101],
        "learning_rates": [3e-3, 1e-3],
        "tuning_seeds": 1,
        "steps": 30,
        "jobs": 2,
        "metrics": ["test/nll"],
    }
    config.write_text(CONFIG.read_text() + "\ncompare: " + json.dumps(own) + "\n")
    command(tmp_path / "out", "--seeds", "3", "--tuning_steps=10", config=config)
    content = read_settings(tmp_path / "out")
    settings = content["settings"]
    assert settings["seeds"] == [0, 1, 2] and settings["learning_rates"] == [1e-3, 3e-3]
    assert [arm["label"] for arm in settings["arms"]] == ["pgd", "ten"]
    assert (settings["steps"], settings["tuning_steps"]) == (30, 10)
    assert content["metrics"] == ["test/nll"] and content["name"] == "mine"
    assert "compare" not in settings["config"]


def test_every_flag_of_fit_overrides_the_configuration_in_the_order_of_the_line(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("data: {init_args: {batch_size: 32}}\ntrainer: {gradient_clip_val: 3.0}\n")
    before = [
        "--model.init_args.network.init_args.widths=[8]",
        "--data.batch_size",
        "64",
        "--trainer.precision=64-true",
    ]
    after = ["--trainer.gradient_clip_val", "2.5", "--trainer.precision=64-true", "--model.learning_rate", "1e-2"]
    command(tmp_path / "out", *SMALL, *before, f"--config={overlay}", *after, "--plan")
    config = read_settings(tmp_path / "out")["settings"]["config"]
    assert config["data"]["init_args"]["batch_size"] == 32 and config["trainer"]["gradient_clip_val"] == 2.5
    assert config["model"]["init_args"]["network"]["init_args"]["widths"] == [8]
    assert config["model"]["init_args"]["learning_rate"] == 1e-2 and config["trainer"]["precision"] == "64-true"


def test_old_spellings_work_and_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = ["--set", "data.init_args.batch_size=32", "--look_every", "5"]
    command(tmp_path / "out", *SMALL, *old, "--plan")
    said = capsys.readouterr().err
    assert "--set KEY=VALUE is spelled --KEY=VALUE now" in said and "look_every is called evaluate_every now" in said
    settings = read_settings(tmp_path / "out")["settings"]
    assert settings["config"]["data"]["init_args"]["batch_size"] == 32 and settings["evaluate_every"] == 5


def test_the_number_of_steps_and_the_directory_are_the_configuration_s_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["compare", "--config", str(CONFIG), "--seeds", "1", "--parameterizations", "pgd", "--plan"])
    assert read_settings(Path("runs/compare/ebm_gumbel"))["settings"]["steps"] == 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "x"], "seeds='x': give a number of seeds, or a list such as 100,101"),
        (["--seeds", "0"], "seeds: there are none"),
        (["--seeds", "1,1"], "seeds=1,1: they must be 0 or more, and each only once"),
        (["--seeds", "1000,1001", "--learning_rates", "1e-3"], "seeds=1000,1001 are those of the tuning runs"),
        (["--learning_rates", "1e-3,fast"], "learning_rates='1e-3,fast'|give numbers, such as 3e-4,1e-3,3e-3"),
        (["--learning_rates", "-1"], "learning_rates=-1: they must be positive"),
        (["--steps", "many"], "steps='many': give a whole number"),
        (["--steps", "0"], "steps='0': give a whole number, 1 or more"),
        (["--tuning_steps", "1.5"], "tuning_steps='1.5': give a whole number"),
        (["--seconds", "10"], "it must be positive, and goes with the budget 'seconds' only"),
        (["--budget", "seconds", "--seconds", "soon"], "seconds='soon': give a number"),
        (["--budget", "hours"], "budget='hours': give 'steps' or 'seconds'"),
        (["--engine", "slurm"], "engine='slurm': give 'local' or 'ray'"),
        (["--jobs", "0"], "jobs='0': give a whole number, 1 or more"),
        (["--vectorize"], "vectorize is gone: leave it out, and give --jobs 2"),
        (["--parameterizations", "pgd,nothing"], "there is no parameterization 'nothing'; known are"),
        (["--parameterizations", "direct:gain=3"], "direct has no argument 'gain'; its arguments are"),
        (["--data.batch_sise=3"], "batch_sise"),
        (["--data.batch_size=0"], "batch_size must be an integer of at least 1"),  # before any run begins
        (["--data=TabularDataModule", "--data.path=none.csv"], "no file 'none.csv'"),
        (["--sed", "3"], "--sed"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--only", "x"], "argument --only: invalid int value: 'x'"),
        (["--only", "0"], r"there is no .*plan\.jsonl: write it with --plan first|holds no comparison"),
        (["--report_only"], "holds no comparison"),
    ],
)
def test_a_bad_option_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(tmp_path / "out", *arguments)
    assert ended.value.code == 1
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("lightning-lift: error: ") and re.search(message, first), first
    assert rest == ["(LIGHTNING_LIFT_TRACEBACK=1 shows where it was raised.)"]
    assert not (tmp_path / "out" / "comparison.json").exists()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"seed": 3}, "compare has no option 'seed'; its options are parameterizations, seeds"),
        ({"vectorize": True}, "mine.yaml: compare.vectorize is gone: leave it out"),
        ({"engine": "pbs"}, "engine='pbs': give 'local' or 'ray'"),
        ({"budget": "hours"}, "budget='hours': give 'steps' or 'seconds'"),
        ({"seeds": [1.5]}, "seeds=.*: give a number of seeds"),
        ({"steps": True}, "steps=True: give a whole number"),
    ],
)
def test_a_bad_option_in_the_configuration_is_one_clear_line(own: Any, message: str, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(CONFIG.read_text() + "\ncompare: " + json.dumps(own) + "\n")
    with pytest.raises(ValueError, match=message):
        compare.main(["--config", str(config), "--output", str(tmp_path / "out")])


def test_what_must_be_given_is_asked_for() -> None:
    for arguments, message in (
        ([], "--config is missing"),
        (["--only", "3"], "--only needs --output"),
        (["--report_only"], "--report_only needs --output"),
    ):
        with pytest.raises(ValueError, match=message):
            compare.main(arguments)


def test_seeds_and_rates_as_text_numbers_or_lists() -> None:
    assert seed_list("3") == seed_list(3) == (0, 1, 2)
    assert seed_list("100,101") == seed_list([100, 101]) == (100, 101) and seed_list("7,") == (7,)
    assert rate_list("1e-2,1e-3") == rate_list([1e-3, "1e-2"]) == (1e-3, 1e-2)
    assert rate_list(1e-3) == rate_list("1e-3") == (1e-3,) and rate_list(()) == ()


def test_the_help_tells_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    for name in OPTIONS:
        assert f"--{name} " in printed
