"""The shipped recipes reach what the documentation says: minutes of training, so `make test-slow`."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import MultivariateNormal

from lightning_lift.cli import LiftCLI
from lightning_lift.diagnostics import probe_cross_covariance

CONFIGS = Path(__file__).parent.parent / "configs"
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_an_empty_folder")]


def total_variation(config: str, seed: int, *flags: str) -> float:
    arguments = ["fit", "--config", str(CONFIGS / config), "--data.data_seed", str(seed), *flags, *QUIET]
    cli = LiftCLI([*arguments, "--seed_everything", str(seed)])
    return float(cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)[0]["test/total_variation"])


@pytest.mark.parametrize(("config", "bound"), [("ebm_gumbel.yaml", 0.005), ("ebm_laplace.yaml", 0.008)])
def test_shipped_recipe_reaches_its_total_variation(config: str, bound: float) -> None:
    """Mean of three seeds at the last step; the runs behind the bound are in docs/results.md."""
    assert sum(total_variation(config, seed) for seed in (0, 1, 2)) / 3 <= bound


@pytest.mark.parametrize("name", ["pgd", "direct"])
def test_the_gumbel_recipe_serves_every_parameterization(name: str) -> None:
    assert total_variation("ebm_gumbel.yaml", 0, "--model.parameterization", name) <= 0.008


@pytest.mark.parametrize("name", ["gamma", "beta", "half_normal", "skew_normal"])
def test_the_rest_of_the_gallery(name: str) -> None:
    assert total_variation(f"ebm_{name}.yaml", 0) <= 0.02


@pytest.mark.parametrize("name", ["pgd", "direct", "lift"])
def test_a_real_table_is_fitted_better_than_by_one_gaussian(name: str) -> None:
    flags = [] if name == "lift" else ["--model.parameterization", name]
    cli = LiftCLI(["fit", "--config", str(CONFIGS / "ebm_tabular.yaml"), "--test_after_fit", *flags, *QUIET])
    train, test = cli.datamodule.split("train").double(), cli.datamodule.split("test")
    gaussian = MultivariateNormal(train.mean(0), torch.cov(train.T, correction=0))
    difference = -cli.model.log_prob_scaled(test).double() + gaussian.log_prob(test.double())
    assert float(difference.mean()) < -2.0 * float(difference.std()) / math.sqrt(len(difference))


def test_cross_covariance_in_mid_training() -> None:
    readings = {}
    for name in ("pgd", "direct", "lift"):
        overlay = str(CONFIGS / "parameterization" / f"{name}.yaml")
        flags = ["--trainer.max_epochs", "3", "--trainer.callbacks", "null"]
        cli = LiftCLI(["fit", "--config", str(CONFIGS / "ebm_gumbel.yaml"), "--config", overlay, *flags, *QUIET])
        batches = list(cli.datamodule.probe_batches(64, seed=0))
        readings[name] = probe_cross_covariance(cli.model, batches)
        if name == "lift":
            readings["frozen"] = probe_cross_covariance(cli.model, batches[:1] * 64)
    for name in ("pgd", "direct", "frozen"):
        assert readings[name].latent_gradient.is_roundoff, name
    lift = readings["lift"].slack
    assert lift is not None
    assert lift.frobenius > 0
    assert lift.p_value < 0.05
    assert readings["direct"].slack is None
