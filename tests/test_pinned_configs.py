"""Configurations of published runs say what they were trained with: a change of defaults does not reach them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.settings import read_config

ROOT = Path(__file__).parent.parent
BEFORE = json.loads((ROOT / "tests" / "fixtures" / "settings_before_defaults.json").read_text())


@pytest.mark.parametrize("name", BEFORE)
def test_start_parameterization_and_training_are_as_published(name: str) -> None:
    arguments = read_config(ROOT / "configs" / name)["model"]["init_args"]
    network, optimizer = arguments["network"]["init_args"], arguments["optimizer"]["init_args"]
    schedule: Any = arguments["lr_scheduler"]
    network["bias_std"] = network["bias_std"] or 0.0  # None is what belongs to the start: 0 for all but `scaled`
    assert network["weight_init"] != "scaled"
    assert {
        "network": {key: network[key] for key in BEFORE[name]["network"]},
        "parameterization": arguments["parameterization"]["class_path"].rpartition(".")[2],
        "latent_gain": arguments["parameterization"]["init_args"].get("latent_gain"),
        "betas": optimizer.get("betas"),
        "lr": optimizer.get("lr"),
        "lr_scheduler": schedule and schedule["class_path"].rpartition(".")[2],
    } == BEFORE[name]
