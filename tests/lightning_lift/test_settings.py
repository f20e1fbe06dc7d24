"""Settings from files and overrides: configurations by name, class paths of before, what a constructor says."""

from pathlib import Path
from typing import Any

import pytest

from lightning_lift.settings import instantiated, read_config

OLD = """
model:
  class_path: lightning_lift.modules.LogConcaveEBM
  init_args: {network: {class_path: lightning_lift.networks.icnn.ICNN, init_args: {widths: [8]}}}
data: {class_path: datamodules.GumbelDataModule, init_args: {data_seed: 5}}
"""


def test_configurations_by_their_names() -> None:
    settings = read_config("ebm_gumbel.yaml", ["--config", "parameterization/pgd.yaml", "--data.batch_size=7"])
    assert settings["data"]["class_path"] == "lightning_lift.datamodules.GumbelDataModule"
    assert settings["data"]["init_args"]["batch_size"] == 7
    assert settings["model"]["init_args"]["parameterization"]["class_path"] == "lightning_lift.ProjectedGradient"


def test_a_configuration_that_version_0_1_saved(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OLD)
    settings = read_config(tmp_path / "config.yaml")
    assert settings["data"]["class_path"] == "lightning_lift.datamodules.GumbelDataModule"
    made = instantiated({key: settings[key] for key in ("model", "data")})
    assert type(made.data).__module__ == "lightning_lift.datamodules.gumbel" and made.data.data_seed == 5
    assert made.model.hparams["network"]["init_args"]["widths"] == [8] and made.model.dim == 1


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["--model.network.widths=[-3]"], "widths=[-3]: give at least one hidden layer, each of at least one unit."),
        (["--model.parameterization=direct", "--model.parameterization.latent_gain=0"], "latent_gain=0.0: must be"),
        (["--data.batch_size=0"], "batch_size must be an integer of at least 1, got 0"),
        (["--trainer.callbacks+=ShoulderOccupancy", "--trainer.callbacks.every_n_steps=0"], "every_n_steps=0: give"),
    ],
)
def test_a_constructor_s_sentence_stands_alone(overrides: list[str], sentence: str) -> None:
    settings: dict[str, Any] = read_config("ebm_gumbel.yaml", overrides)
    with pytest.raises(ValueError) as error:
        instantiated({key: settings[key] for key in ("model", "data", "trainer")})
    assert str(error.value).startswith(sentence)
