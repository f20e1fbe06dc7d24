"""Every experiment of the paper is a comparison that can be planned, and each of its arms can be made and trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.cli import main
from lightning_lift.compare import RecordStore
from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.records import RunSpec
from lightning_lift.compare.run import run
from lightning_lift.compare.specification import resolve
from lightning_lift.settings import read_config

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs" / "paper").glob("*.yaml"))
# What is large is made small; the path through the code stays.
SMALL = {
    "HEPMASSDataModule": ["num_train=4096", "num_val=200", "num_test=200"],
    "MNISTLatentsDataModule": ["autoencoder_steps=20", "source=digits"],
}


def overrides(config: Path) -> list[str]:
    settings = read_config(config)
    small = [f"--data.init_args.{item}" for item in SMALL.get(settings["data"]["class_path"].rpartition(".")[2], [])]
    if settings["model"]["init_args"].get("evaluation"):
        small += [f"--model.init_args.evaluation.init_args.{item}" for item in ("num_chains=64", "num_temperatures=20")]
    if len(settings["model"]["init_args"]["network"]["init_args"]["widths"]) > 3:
        small += ["--model.init_args.network.init_args.widths=[16, 16, 16]"]
    return small


def alike(config: Path) -> Any:
    """The configuration, left to the slow tests where another of its kind is tested by the fast ones."""
    first = ("capacity_matched", "ebm_hepmass", "flow_eight_gaussians", "flow_hepmass", "gumbel", "mnist_latents_2d")
    return pytest.param(config, id=config.stem, marks=() if config.stem in first else pytest.mark.slow)


@pytest.mark.parametrize("config", map(alike, CONFIGS))
def test_planned(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = read_config(config)["compare"]
    flags = [flag for item in overrides(config) for flag in ("--set", item.removeprefix("--"))]
    main(["compare", "--config", str(config), "--plan", "--output", str(tmp_path / "out"), *flags])
    plan = (tmp_path / "out" / "plan.jsonl").read_text()
    printed = capsys.readouterr().out
    # The first stage, tuning and timing, has every arm; the final runs depend on the rates that it chooses.
    for arm in settings["parameterizations"]:
        assert json.dumps(arm) in plan
        assert arm.partition(":")[0] in printed


@pytest.mark.slow
@pytest.mark.parametrize("config", [c for c in CONFIGS if "_short" not in c.stem], ids=lambda path: path.stem)
def test_each_arm_trains(config: Path, tmp_path: Path) -> None:
    settings = read_config(config, overrides(config))
    arms = parse_arms([name for name in settings["compare"]["parameterizations"] if "match_parameters" not in name])
    for arm in arms:
        resolved = resolve(settings, arm, 1e-3, 0, 2)
        record = run(RunSpec(arm.label, "final", 1e-3, 0, 2, resolved), tmp_path)
        assert record.outcome == "finished", record.error
        assert "test/nll" in record.metrics["last"]
    assert not RecordStore(tmp_path).all()  # run() leaves writing to its caller
