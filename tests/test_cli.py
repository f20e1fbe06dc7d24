"""The command line, in process: short names, overlays, checkpoints, prediction, errors."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_lift.cli import LiftCLI, main
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.testing import ModuleContract

CONFIG = str(Path(__file__).parent.parent / "configs" / "ebm_gumbel.yaml")
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
EARLY = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/nll"]
SMALL = [
    *["--trainer.max_epochs", "2", "--data.batches_per_epoch", "4", "--data.batch_size", "32"],
    *["--data.num_val", "200", "--data.num_test", "200", "--data.num_calibration", "200"],
    *EARLY,
    *QUIET,
]

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def fit(*flags: str) -> LiftCLI:
    return LiftCLI(["fit", "--config", CONFIG, *SMALL, *flags])


def last(cli: LiftCLI) -> str:
    return next(c.last_model_path for c in cli.trainer.checkpoint_callbacks if c.last_model_path)


def record(cli: LiftCLI) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(cli.trainer.loggers[0].log_dir) / "metrics.json").read_text())
    return loaded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pgd", ProjectedGradient),
        ("direct", DirectSoftplus),
        ("lift", Lift),
        ("ProjectedGradient", ProjectedGradient),
        ("lightning_lift.parameterizations.DirectSoftplus", DirectSoftplus),
    ],
)
def test_parameterizations_by_short_name_and_class_path(name: str, expected: type) -> None:
    cli = fit("--model.parameterization", name)
    assert isinstance(cli.model.parameterization, expected)
    checkpoint = torch.load(last(cli), weights_only=True)
    assert checkpoint["hyper_parameters"]["parameterization"]["class_path"].endswith(name.split(".")[-1])
    assert type(cli.model).load_from_checkpoint(last(cli), weights_only=True).parameterization.num_weights > 0


def test_arguments_of_a_parameterization_by_flag() -> None:
    cli = fit("--model.parameterization", "direct", "--model.parameterization.latent_gain", "10")
    assert cli.model.parameterization.latent_gain == 10.0


def test_test_in_a_new_process_gives_the_metrics_that_fit_printed() -> None:
    cli = fit("--test_after_fit")
    expected = {k: v for k, v in record(cli)["metrics"].items() if k.startswith("test/")}
    best = cli.trainer.checkpoint_callback.best_model_path
    code = (
        "import sys; from lightning_lift.cli import LiftCLI; import json;"
        "cli = LiftCLI(sys.argv[2:]); m = cli.trainer.callback_metrics;"
        "json.dump({k: float(v) for k, v in m.items()}, open(sys.argv[1], 'w'))"
    )
    arguments = ["test", "--config", CONFIG, *SMALL, "--ckpt_path", best]
    done = subprocess.run(
        [sys.executable, "-c", code, "out.json", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(Path("out.json").read_text())
    assert {k: v for k, v in found.items() if k.startswith("test/")} == expected


def test_summary_says_where_everything_is(capsys: pytest.CaptureFixture[str]) -> None:
    cli = fit("--test_after_fit")
    printed = capsys.readouterr().out
    for word in ("test/nll", "test/total_variation", "metrics.json", "checkpoint", "figures"):
        assert word in printed
    written = record(cli)
    assert Path(written["checkpoints"]["best"]).is_file()
    assert "tested_checkpoint" not in written, "training batches are drawn fresh: the last weights are tested"
    assert "the last ones of fit (step " in printed
    assert written["data"] == "gumbel"
    assert all(Path(figure).is_file() for figure in written["figures"])


def test_hparams_tab_holds_the_final_test_metrics() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cli = fit("--test_after_fit")
    accumulator = EventAccumulator(cli.trainer.loggers[0].log_dir, size_guidance={"tensors": 0})
    accumulator.Reload()
    plugin = accumulator.summary_metadata
    assert any(tag.startswith("_hparams_") for tag in plugin)
    assert "test/nll" in accumulator.Tags()["scalars"]
    assert "density/test" in accumulator.Tags()["images"]
    assert accumulator.Tags()["histograms"]


def test_predict_writes_a_log_density_for_each_row() -> None:
    cli = fit()
    out = ["--trainer.callbacks+=PredictionWriter", "--trainer.callbacks.path=out/rows.csv"]
    predict = LiftCLI(["predict", "--config", CONFIG, *SMALL, "--ckpt_path", last(cli), *out])
    with Path("out/rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    frozen = predict.model.freeze()
    x = torch.tensor([[float(row["x1"])] for row in rows])
    log_density = torch.tensor([float(row["log_density"]) for row in rows])
    torch.testing.assert_close(frozen.log_prob(x), log_density, rtol=1e-4, atol=1e-4)


def test_what_is_linked_from_the_data_agrees_with_a_checkpoint(recwarn: pytest.WarningsRecorder) -> None:
    config = ["--config", "conditional_two_moons.yaml", "--data.num_simulations", "300", "--trainer.callbacks", "[]"]
    small = [*config, "--model.network.widths", "[4]", "--model.num_blocks", "1", *QUIET]
    fitted = LiftCLI(["fit", *small, "--trainer.max_steps", "1", "--trainer.max_epochs", "1"])
    predicted = LiftCLI(["predict", *small, "--ckpt_path", last(fitted)])
    assert predicted.model.context_shape == fitted.model.context_shape == (2,)
    assert not [warning for warning in recwarn if "context_shape" in str(warning.message)]


def test_predict_needs_no_callback_to_write() -> None:
    cli = fit()
    predict = LiftCLI(["predict", "--config", CONFIG, *SMALL, "--ckpt_path", last(cli)])
    assert (Path(predict.trainer.log_dir) / "predictions.csv").is_file()
    assert not Path("predictions.csv").exists()


def test_a_checkpoint_from_python_is_tested_by_the_command_line() -> None:
    from lightning_lift.datamodules import GumbelDataModule

    data = GumbelDataModule(batch_size=32, batches_per_epoch=4, num_val=200, num_test=200, num_calibration=200)
    module = LogConcaveEBM(dim=1, network=ICNN, parameterization=DirectSoftplus)
    trainer = ModuleContract()._trainer()
    trainer.fit(module, datamodule=data)
    expected = trainer.test(module, datamodule=data, verbose=False)[0]
    trainer.save_checkpoint("python.ckpt")
    cli = LiftCLI(["test", "--config", CONFIG, *SMALL, "--ckpt_path", "python.ckpt"])
    assert isinstance(cli.model.parameterization, DirectSoftplus)
    assert float(cli.trainer.callback_metrics["test/nll"]) == pytest.approx(expected["test/nll"], abs=1e-6)


def test_a_checkpoint_warns_of_each_setting_that_it_replaces() -> None:
    cli = fit("--model.parameterization", "pgd")
    with pytest.warns(
        UserWarning, match=r"model.network.widths=\[16, 16\] is replaced by the checkpoint's \[32, 32, 32\]"
    ):
        LiftCLI(["test", "--config", CONFIG, *SMALL, "--model.network.widths", "[16, 16]", "--ckpt_path", last(cli)])


def test_resume_by_the_command_line_equals_the_whole_run() -> None:
    whole = fit()
    half = fit("--trainer.max_epochs", "1")
    resumed = fit("--ckpt_path", last(half))
    for name, tensor in whole.model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_a_longer_schedule_of_the_command_line_wins_on_resume(caplog: pytest.LogCaptureFixture) -> None:
    """From 8 steps to 16: the rate is what the longer cosine has there, not that of the old one climbing again."""
    half = fit("--trainer.max_epochs", "2", "--model.lr_scheduler.T_max", "8")
    with caplog.at_level("INFO"):
        more = ["--trainer.max_epochs", "3", "--model.lr_scheduler.T_max", "16"]
        resumed = fit("--ckpt_path", last(half), *more)
    assert [m for m in caplog.messages if "T_max=16 (was 8): the present settings win" in m]
    rate = resumed.trainer.optimizers[0].param_groups[0]["lr"]
    assert rate == pytest.approx(3e-2 * (1 + math.cos(math.pi * 12 / 16)) / 2, rel=1e-5)


def test_a_run_keeps_the_best_and_the_last_step_apart() -> None:
    cli = fit("--trainer.max_steps", "7", "--trainer.val_check_interval", "2", "--test_after_fit")
    written = record(cli)
    assert torch.load(last(cli), weights_only=True)["global_step"] == 7
    assert written["checkpoints"]["last"] == last(cli)
    assert written["checkpoints"]["best"] != last(cli)


def test_a_diverged_fit_is_one_sentence_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", CONFIG, *SMALL, *QUIET, "--model.optimizer.lr", "1e6", "--test_after_fit"])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert "training has diverged at step" in error
    assert "learning rate 1e+06" in error
    assert "Traceback" not in error
    assert not list(Path("runs").rglob("*.ckpt")), "nothing that a test could take for the best"


def test_a_terminated_fit_ends_with_a_status_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LogConcaveEBM.training_step

    def terminated(self: LogConcaveEBM, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(LogConcaveEBM, "training_step", terminated)
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", CONFIG, *SMALL, *QUIET])
    assert end.value.code == 128 + signal.SIGTERM
    (kept,) = Path("runs").rglob("*.ckpt")
    assert kept.name == "exception.ckpt"
    assert torch.load(kept, weights_only=True)["global_step"] == 3


def test_print_config_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", CONFIG, "--print_config"])
    assert end.value.code == 0
    assert "divide_by_fan_in: true" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["fit", "--model.help", "LogConcaveEBM"])
    assert "factory of the estimator of log Z" in " ".join(capsys.readouterr().out.split())


def test_default_seed_is_fixed() -> None:
    assert fit().config["fit"]["seed_everything"] == 0


def table(folder: str, rows: list[list[Any]], header: str = "a,b") -> str:
    path = Path(folder) / "rows.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


GOOD = [[math.sin(i), math.cos(3 * i)] for i in range(200)]


def tabular(path: str, *flags: str) -> list[str]:
    config = str(Path(CONFIG).with_name("ebm_tabular.yaml"))
    columns = ["--data.columns", "[a, b]"]
    return ["fit", "--config", config, "--data.path", path, "--data.table", "null", *columns, *QUIET, *flags]


def test_a_users_own_file_trains() -> None:
    flags = ["--trainer.max_epochs", "1", "--trainer.check_val_every_n_epoch", "1", "--test_after_fit"]
    flags += ["--trainer.val_check_interval", "1.0"]
    cli = LiftCLI(tabular(table(".", GOOD), *flags))
    assert math.isfinite(record(cli)["metrics"]["test/nll"])


def bad_rows(value: Any, column: int = 1) -> list[list[Any]]:
    rows = [list(row) for row in GOOD]
    rows[7][column] = value
    return rows


def not_a_checkpoint() -> str:
    Path("broken.ckpt").write_bytes(b"not a checkpoint")
    return "broken.ckpt"


def foreign_checkpoint() -> str:
    torch.save({"state_dict": {}}, "foreign.ckpt")
    return "foreign.ckpt"


def written(text: str) -> str:
    Path("own.yaml").write_text(text)
    return "own.yaml"


def not_a_configuration() -> str:
    Path("own.yaml").write_bytes(bytes(range(256)))
    return "own.yaml"


def constant() -> str:
    return table(".", [[row[0], 1.0] for row in GOOD])


def empty() -> str:
    Path("empty.csv").write_text("")
    return "empty.csv"


def npy() -> str:
    np.save("rows.npy", np.zeros((4, 2, 2)))
    return "rows.npy"


GUMBEL = ["fit", "--config", CONFIG, *SMALL]
FLOW = ["fit", "--config", "flow_eight_gaussians.yaml", *QUIET]
BAD: dict[str, tuple[Any, str]] = {
    "unknown key": (lambda: [*GUMBEL, "--model.network.widthz", "[8]"], "widthz"),
    "unknown class": (lambda: [*GUMBEL, "--model.parameterization", "adam"], "adam"),
    "wrong type": (lambda: [*GUMBEL, "--model.learning_rate", "fast"], "fast"),
    "missing config": (lambda: ["fit", "--config", "missing.yaml"], "missing.yaml"),
    "negative width": (lambda: [*GUMBEL, "--model.network.widths", "[-3]"], r"widths=\[-3\]"),
    "negative k": (lambda: [*GUMBEL, "--model.network.strong_convexity", "-1"], "strong_convexity=-1"),
    "unknown activation": (lambda: [*GUMBEL, "--model.network.activation", "tanh"], "tanh"),
    "negative learning rate": (lambda: [*GUMBEL, "--model.learning_rate", "-1"], "learning_rate=-1"),
    "zero gain": (
        lambda: [*GUMBEL, "--model.parameterization", "direct", "--model.parameterization.latent_gain", "0"],
        "latent_gain=0",
    ),
    "even grid": (lambda: [*GUMBEL, "--model.partition.num_points", "100"], "num_points=100.*odd"),
    "number of blocks": (lambda: [*FLOW, "--model.num_blocks=0"], "^lightning-lift: error: num_blocks=0: a flow needs"),
    "half precision": (lambda: [*GUMBEL, "--trainer.precision", "bf16-true"], "bf16-true.*bf16-mixed"),
    "batch size": (lambda: [*GUMBEL, "--data.batch_size", "0"], "batch_size"),
    "cadence": (
        lambda: [*GUMBEL, "--trainer.callbacks+=ShoulderOccupancy", "--trainer.callbacks.every_n_steps=0"],
        "every_n_steps=0",
    ),
    "missing checkpoint": (lambda: ["test", "--config", CONFIG, "--ckpt_path", "no.ckpt"], "no.ckpt: no such file"),
    "best in a new process": (lambda: ["test", "--config", CONFIG, "--ckpt_path", "best"], "test_after_fit"),
    "unreadable checkpoint": (
        lambda: ["test", "--config", CONFIG, "--ckpt_path", not_a_checkpoint()],
        "broken.ckpt cannot be read",
    ),
    "foreign checkpoint": (
        lambda: ["test", "--config", CONFIG, "--ckpt_path", foreign_checkpoint()],
        "no checkpoint of lightning_lift",
    ),
    "test of nothing": (lambda: ["test", "--config", CONFIG, *SMALL], "test without --ckpt_path.*untrained"),
    "validate nothing": (lambda: ["validate", "--config", CONFIG], "validate without --ckpt_path.*untrained"),
    "predict by nothing": (lambda: ["predict", "--config", CONFIG, "--data.loc=x"], "data.loc=x: expected float"),
    "unknown network": (lambda: [*GUMBEL, "--model.network", "icn"], "model.network=icn: .*known are .*ICNN"),
    "unknown partition": (
        lambda: [*GUMBEL, "--model.partition", "Grid"],
        "partition=Grid: .*Langevin, Quadrature;",
    ),
    "unknown data": (lambda: [*GUMBEL, "--data", "Gumble"], "data=Gumble: .*known are .*GumbelDataModule, "),
    "unknown model": (lambda: [*GUMBEL, "--model", "EBM"], "model=EBM: .*known are .*LogConcaveEBM, "),
    "unknown callback": (
        lambda: [*GUMBEL, "--trainer.callbacks+=Shoulder"],
        "Shoulder: .*ShoulderOccupancy, ",
    ),
    "unknown logger": (lambda: [*GUMBEL, "--trainer.logger", "Board"], "trainer.logger=Board: .*TensorBoardLogger"),
    "unknown optimizer": (lambda: [*GUMBEL, "--model.optimizer", "Adamm"], "model.optimizer=Adamm: .*Adam, AdamW, "),
    "unknown scheduler": (lambda: [*GUMBEL, "--model.lr_scheduler", "Cosine"], "CosineAnnealingLR, .*StepLR"),
    "unknown module": (
        lambda: [*GUMBEL, "--model.network", "mine.Net"],
        "network=mine.Net: No module named 'mine'",
    ),
    "no network": (lambda: [*GUMBEL, "--model.network", "torch.nn.Linear"], "torch.nn.Linear: is no ConvexNetwork"),
    "unknown in a list": (
        lambda: [*GUMBEL, "--trainer.logger=[CSVLogger, Foo]"],
        "trainer.logger=Foo: .*known are CSVLogger",
    ),
    "null": (lambda: [*GUMBEL, "--data.batch_size=null"], "GumbelDataModule: batch_size=null is no value"),
    "argument that is fixed": (
        lambda: [*GUMBEL, "--data.dim=3"],
        "data.dim: GumbelDataModule has no .*it has loc, scale, b",
    ),
    "unknown argument of a callback": (
        lambda: [*GUMBEL, "--trainer.callbacks+=ShoulderOccupancy", "--trainer.callbacks.every=0"],
        "callbacks.every: ShoulderOccupancy has no such argument; it has every_n_steps",
    ),
    "wrong type in an optimizer": (
        lambda: [*GUMBEL, "--model.optimizer.lr", "fast"],
        "lr=fast: expected float",
    ),
    "refused by the optimizer": (lambda: [*GUMBEL, "--model.optimizer.lr", "-3"], "Invalid learning rate: -3"),
    "refused by a scheduler": (lambda: [*GUMBEL, "--model.lr_scheduler", "StepLR"], "required: step_size"),
    "unknown argument of any kind": (lambda: [*GUMBEL, "--model.dict_kwargs.foo=1"], "LogConcaveEBM: .*'foo'"),
    "refused by an optimizer's step": (
        lambda: [*GUMBEL, "--model.optimizer", "SparseAdam"],
        "error: SparseAdam does not support dense",
    ),
    "a schedule of no steps": (lambda: [*GUMBEL, "--model.lr_scheduler.T_max=0"], "lr_scheduler: T_max=0: give"),
    "a callback in the place of a list": (
        lambda: [*GUMBEL, "--trainer.callbacks", "EarlyStop"],
        "callbacks=EarlyStop: no class.*known are .*EarlyStopping, ",
    ),
    "an argument that a callback needs": (
        lambda: [*GUMBEL, "--trainer.callbacks", "EarlyStopping"],
        "callbacks: the following .* required: monitor",
    ),
    "a logger that is not installed": (lambda: [*GUMBEL, "--trainer.logger", "CometLogger"], "comet"),
    "devices": (lambda: [*GUMBEL, "--trainer.devices=x", "--trainer.accelerator=cpu"], "`devices` .* int > 0"),
    "a scheduler's function": (
        lambda: [*GUMBEL, "--model.lr_scheduler=LambdaLR", "--model.lr_scheduler.lr_lambda=f"],
        "lr_lambda=f: no class of this name is known; give its full path",
    ),
    "refused by a callback": (
        lambda: [*GUMBEL, *EARLY, "--trainer.callbacks.mode=maxx"],
        "`mode` can be .*got maxx",
    ),
    "refused by the trainer": (lambda: [*GUMBEL, "--trainer.max_epochs=-5"], "max_epochs.*You passed in -5"),
    "unknown argument of the trainer": (
        lambda: [*GUMBEL, "--trainer.epochs=5"],
        "unrecognized.* --trainer.epochs",
    ),
    "unknown section": (lambda: ["fit", "--config", written("modell: 3")], "does not accept option 'modell'"),
    "no YAML": (lambda: ["fit", "--config", written("a: [1\nb: 2: 3")], "own.yaml: is no YAML file"),
    "list for a mapping": (lambda: ["fit", "--config", written("- 1")], "own.yaml: holds no mapping"),
    "binary configuration": (lambda: ["fit", "--config", not_a_configuration()], "own.yaml: is no YAML file"),
    "unknown module to import": (
        lambda: ["--import", "nowhere", *GUMBEL],
        "--import nowhere: No module",
    ),
    "missing file": (lambda: tabular("nowhere.csv"), "nowhere.csv"),
    "empty file": (lambda: tabular(empty()), "empty.csv"),
    "nan": (lambda: tabular(table(".", bad_rows("nan"))), r"b\b.*"),
    "infinite": (lambda: tabular(table(".", bad_rows("inf", 0))), r"a\b.*"),
    "text": (lambda: tabular(table(".", bad_rows("many"))), "b"),
    "constant column": (lambda: tabular(constant()), "b.*constant|constant.*b"),
    "unknown column": (lambda: tabular(table(".", GOOD), "--data.columns", "[a, z]"), "z.*a"),
    "too few rows": (lambda: tabular(table(".", GOOD[:5])), "rows"),
    "array of three dimensions": (lambda: tabular(npy(), "--data.columns", "[0, 1]"), "rows.npy"),
    "unknown ending": (lambda: tabular(table(".", GOOD) + ".xlsx"), "xlsx"),
    "path and table": (lambda: tabular(table(".", GOOD), "--data.table", "load_wine"), "path.*table|table.*path"),
    "three columns": (
        lambda: tabular(table(".", [[*row, row[0] ** 2] for row in GOOD], "a,b,c"), "--data.columns", "[a, b, c]"),
        "1 or 2 dimensions.*3",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the thing and the way out, the status is not 0, and no checkpoint is left behind."""
    import re

    make, message = BAD[case]
    with pytest.raises(SystemExit) as end:
        main(make())
    printed = capsys.readouterr().err
    sentence = " ".join(printed[printed.index("lightning-lift: error:") :].split())
    assert re.search(message, sentence), printed
    assert end.value.code == 1
    for noise in ("Traceback", "Union", "Namespace", "usage:", "Parser key"):
        assert noise not in sentence
    assert not list(Path("runs").rglob("*.ckpt")) if Path("runs").exists() else True


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_LIFT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="learning_rate"):
        main([*GUMBEL, "--model.learning_rate", "-1"])


def test_a_configuration_by_its_bare_name_and_a_class_path_of_version_0_1() -> None:
    flags = ["--data", "datamodules.gumbel.GumbelDataModule", "--data.num_val=200", "--trainer.fast_dev_run=true"]
    names = ["--config", "ebm_gumbel.yaml", "--config=parameterization/pgd.yaml"]
    cli = LiftCLI(["fit", *names, *flags, *QUIET])
    assert isinstance(cli.model.parameterization, ProjectedGradient)
    assert type(cli.datamodule).__module__ == "lightning_lift.datamodules.gumbel"


def test_old_spellings_of_flags_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", "ebm_gumbel.yaml", "--print-config", "--seed-everything=3"])
    printed = capsys.readouterr()
    assert end.value.code == 0 and "seed_everything: 3" in printed.out
    assert "--print-config is spelled --print_config now" in printed.err


# -- modules of the user's ------------------------------------------------------------------------------------------

OWN_TASK = "from lightning_lift import LogConcaveEBM\n\n\nclass MyTask(LogConcaveEBM):\n    pass\n"


@pytest.fixture
def my_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working directory, which nothing but the command line finds."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    Path("my_module.py").write_text(OWN_TASK)


def test_a_task_of_the_users_from_fit_to_test(my_module: None, capsys: pytest.CaptureFixture[str]) -> None:
    once = ["--trainer.max_epochs", "1", "--trainer.logger.save_dir", "runs", "--trainer.logger.version", "own"]
    main([*GUMBEL, "--model", "my_module.MyTask", *once])
    assert sys.path[-1] == str(Path.cwd())
    checkpoint = next(Path("runs").rglob("last.ckpt"))
    test = ["test", "--config", CONFIG, *SMALL, "--ckpt_path", str(checkpoint)]
    del sys.modules["my_module"]
    with pytest.raises(SystemExit):
        main(test)
    assert "--import my_module" in capsys.readouterr().err
    assert "my_module" not in sys.modules  # importing runs what is in a file
    main([*test, "--import", "my_module"])
    assert "my_module" in sys.modules and "test/nll" in capsys.readouterr().out


def test_import_gives_short_names_and_stands_anywhere(my_module: None, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--import", "my_module", *GUMBEL], [*GUMBEL, "--import=my_module"]):
        with pytest.raises(SystemExit) as end:
            main([*args, "--model", "MyTask", "--print_config"])
        assert end.value.code == 0 and "class_path: my_module.MyTask" in capsys.readouterr().out


# -- errors that are no bad values ----------------------------------------------------------------------------------


def test_what_this_package_raises_is_one_sentence_and_a_bug_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ICNN(2)
    lift = Lift().bind(network, 2)
    wrong: list[Any] = [lambda _: lift.bind(network, 2), lambda _: lift.eval().weights()]
    for call in wrong:
        monkeypatch.setattr("lightning_lift.cli.LiftCLI", call)
        with pytest.raises(SystemExit) as end:
            main(["fit"])
        printed = capsys.readouterr().err
        assert end.value.code == 1 and printed.startswith("lightning-lift: error: ") and printed.count("\n") == 2
    ours: dict[str, Any] = {"__name__": "lightning_lift.modules.base", "torch": torch}
    exec("def multiply(_):\n    return torch.ones(2) @ torch.ones(3)", ours)  # torch raises it, in a frame of ours
    bugs: list[Any] = [ours["multiply"], lambda _: {}["a"]]
    for call in bugs:
        monkeypatch.setattr("lightning_lift.cli.LiftCLI", call)
        with pytest.raises((RuntimeError, KeyError)):
            main(["fit"])


@pytest.mark.parametrize("flag", ["--trainer.fast_dev_run=true", "--trainer.logger=false"])
def test_nothing_is_written_without_a_logger_or_in_a_development_run(flag: str) -> None:
    fit("--test_after_fit", flag, "--trainer.max_epochs=1")
    assert list(Path().iterdir()) == []
