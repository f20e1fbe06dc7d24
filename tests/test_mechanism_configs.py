"""The configuration with every instrument on, shortened: each writes what it promises, for each architecture."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from lightning_lift.cli import LiftCLI

CONFIG = Path(__file__).parent.parent / "configs" / "mechanism" / "four_architectures.yaml"


@pytest.mark.parametrize("parameterization", ["no_slack", "lift"])
def test_every_instrument_writes(parameterization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(CONFIG.read_text())
    settings["model"]["init_args"]["network"]["init_args"]["widths"] = [8, 8]
    settings["data"]["init_args"] |= {"num_val": 64, "num_test": 64, "batch_size": 32}
    settings["trainer"] |= {"max_epochs": -1, "max_steps": 12, "limit_val_batches": 1}
    shorter = {
        "CrossCovariance": {"every_n_steps": 10, "num_batches": 4},
        "TrailingCrossCovariance": {"every_n_steps": 10, "window": 5},
        "UpdateNoise": {"every_n_steps": 10, "num_batches": 4},
        "LatentStep": {"every_n_steps": 10},
        "ShoulderVisits": {"every_n_steps": 2},
    }
    for callback in settings["trainer"]["callbacks"]:
        if callback["class_path"] in shorter:
            callback["init_args"] = shorter.pop(callback["class_path"])
    assert not shorter, "the configuration has lost an instrument"
    Path("short.yaml").write_text(yaml.safe_dump(settings))
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    arm = ["--model.parameterization", parameterization]
    cli = LiftCLI(["fit", "--config", "short.yaml", *arm, *quiet])
    directory = Path(cli.trainer.loggers[0].log_dir)
    for name in ("cross_covariance", "trailing_cross_covariance"):
        lines = (directory / f"{name}.csv").read_text().splitlines()
        assert [line.split(",")[:2] for line in lines[1:]] == [["10", "latent_gradient"], ["10", "slack"]]
        assert ("no slack" in lines[2]) is (parameterization == "no_slack")
    assert len((directory / "update_noise.csv").read_text().splitlines()) == 5
    assert np.load(directory / "shoulder_visits.npz")["steps"].tolist() == [0, 2, 4, 6, 8, 10, 12]
