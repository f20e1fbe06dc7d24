"""Every shipped configuration runs by itself, with one --config, in process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lightning_lift.cli import LiftCLI
from tests.problems import benchmark_pair

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
OVERLAYS = sorted((ROOT / "configs" / "parameterization").glob("*.yaml"))
FIGURES = {"DensityFigure": "density_test.png", "FlowFigure": "flow_test.png", "LatentImages": "images_test.png"}
FIGURES |= {"PosteriorFigure": "posterior_test.png", "TransportFigure": "transport_test.png"}
SHORT = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "2"]
SHORT += ["--trainer.limit_test_batches", "2"]
QUIET = [
    "--trainer.num_sanity_val_steps",
    "0",
    "--trainer.enable_progress_bar",
    "false",
    "--trainer.enable_model_summary",
    "false",
]


def smaller(settings: dict[str, Any]) -> list[str]:
    """Flags that make what is large quick; the path through the code stays."""
    flags = []
    if settings["data"]["class_path"] == "HEPMASSDataModule":
        flags += ["--data.num_train", "4096", "--data.num_val", "200", "--data.num_test", "200"]
    if settings["data"]["class_path"] == "MNISTLatentsDataModule":
        flags += ["--data.autoencoder_steps", "20"]
    if settings["model"]["class_path"].startswith("Conditional"):
        flags += ["--data.num_simulations", "600", "--data.num_test", "50", "--data.batch_size", "16"]
    if settings["model"]["class_path"] == "BrierMap":
        flags += ["--data.num_source", "2048", "--data.num_target", "2048", "--data.num_test", "500"]
    if settings["data"]["class_path"] == "W2BenchmarkDataModule":
        np.savez(settings["data"]["init_args"]["path"], **benchmark_pair(2))
    if settings["model"].get("init_args", {}).get("evaluation"):
        flags += ["--model.evaluation.num_chains", "64", "--model.evaluation.num_temperatures", "20"]
    return flags


pytestmark = pytest.mark.usefixtures("in_an_empty_folder", "coarse_grids")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_fit_then_test(config: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    every = ["--trainer.check_val_every_n_epoch", "1", "--trainer.val_check_interval", "1.0"]
    cli = LiftCLI(["fit", "--config", str(config), "--test_after_fit", *SHORT, *every, *QUIET, *smaller(settings)])
    directory = Path(cli.trainer.loggers[0].log_dir)
    record = json.loads((directory / "metrics.json").read_text())
    assert directory.parts[:2] == ("runs", config.stem)
    kinds = {"autoencoder": "test/loss", "regression": "test/loss", "transport": "test/w2_half_lower"}
    assert kinds.get(config.stem.partition("_")[0], "test/nll") in record["metrics"]
    assert record["steps"] == 3
    callbacks = {entry["class_path"] for entry in settings["trainer"]["callbacks"]}
    for callback in callbacks & FIGURES.keys():
        assert (directory / "figures" / FIGURES[callback]).stat().st_size > 5_000
    assert (directory / "config.yaml").is_file()
    assert list(directory.glob("checkpoints/best-*.ckpt"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_overlays_replace_the_parameterization(overlay: Path) -> None:
    expected = yaml.safe_load(overlay.read_text())["model"]["init_args"]["parameterization"]
    cli = LiftCLI(
        ["fit", "--config", str(ROOT / "configs" / "ebm_gumbel.yaml"), "--config", str(overlay), *SHORT, *QUIET]
    )
    assert type(cli.model.parameterization).__name__ == expected["class_path"]
    stored = cli.model.hparams["parameterization"]["init_args"]
    assert {name: stored[name] for name in expected["init_args"]} == expected["init_args"]


def test_there_is_a_config_for_each_target_of_the_gallery() -> None:
    energies = {"gumbel", "laplace", "gamma", "beta", "half_normal", "skew_normal", "tabular"}
    flows = {"eight_gaussians", "two_spirals", "tabular"}
    expected = {f"ebm_{name}" for name in energies} | {f"flow_{name}" for name in flows}
    assert expected <= {path.stem for path in CONFIGS}
