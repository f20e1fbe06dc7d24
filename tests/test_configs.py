"""Every shipped configuration runs by itself, with one --config, in process."""

import json
from pathlib import Path

import pytest
import yaml

from lightning_lift.cli import LiftCLI

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
OVERLAYS = sorted((ROOT / "configs" / "parameterization").glob("*.yaml"))
SHORT = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "2"]
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning-lift"])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_fit_then_test(config: Path) -> None:
    every = ["--trainer.check_val_every_n_epoch", "1", "--trainer.val_check_interval", "1.0"]
    cli = LiftCLI(["fit", "--config", str(config), "--test_after_fit", *SHORT, *every, *QUIET])
    directory = Path(cli.trainer.loggers[0].log_dir)
    record = json.loads((directory / "metrics.json").read_text())
    assert directory.parts[:2] == ("runs", config.stem)
    assert "test/nll" in record["metrics"]
    assert record["steps"] == 3
    assert (directory / "figures" / "density_test.png").stat().st_size > 5_000
    assert (directory / "config.yaml").is_file()
    assert list(directory.glob("checkpoints/best-*.ckpt"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_overlays_replace_the_parameterization(overlay: Path) -> None:
    expected = yaml.safe_load(overlay.read_text())["model"]["init_args"]["parameterization"]
    cli = LiftCLI(
        ["fit", "--config", str(ROOT / "configs" / "ebm_gumbel.yaml"), "--config", str(overlay), *SHORT, *QUIET]
    )
    parameterization = cli.model.parameterization
    assert type(parameterization).__name__ == expected["class_path"]
    for name, value in expected["init_args"].items():
        found = getattr(parameterization, name)
        assert (list(found) if isinstance(found, tuple) else found) == value


def test_there_is_a_config_for_each_target_of_the_gallery() -> None:
    expected = {"gumbel", "laplace", "gamma", "beta", "half_normal", "skew_normal", "tabular"}
    assert expected <= {path.stem.removeprefix("ebm_") for path in CONFIGS}
