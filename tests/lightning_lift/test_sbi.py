import math
import pickle
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

pytest.importorskip("sbi", reason="sbi is not installed: pip install 'lightning-lift[sbi]'")

from sbi.diagnostics import run_sbc, run_tarp
from sbi.inference import NPE
from sbi.inference.posteriors import DirectPosterior

from lightning_lift.networks import PICNN
from lightning_lift.parameterizations import ADMM, DirectGain, Lift, ProjectedGradient
from lightning_lift.sbi import ConvexFlowEstimator, convex_flow

PRIOR = MultivariateNormal(torch.zeros(2), torch.eye(2))
NOISE = 0.5
SMALL = partial(PICNN, widths=[8, 8], context_width=8)


def simulations(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """theta ~ N(0, I_2), x = theta + N(0, I_2 / 4): the posterior is N(0.8 x, 0.2 I_2)."""
    source = torch.Generator().manual_seed(seed)
    theta = torch.randn(count, 2, generator=source)
    return theta, theta + NOISE * torch.randn(count, 2, generator=source)


def estimator(parameterization: Any = DirectGain, **arguments: Any) -> ConvexFlowEstimator:
    torch.manual_seed(0)
    return convex_flow(network=SMALL, parameterization=parameterization, **arguments)(*simulations(200))


@pytest.fixture(scope="module", params=[ProjectedGradient, Lift])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[NPE, DirectPosterior]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sbi"))  # where sbi logs
        torch.manual_seed(0)
        builder = convex_flow(network=SMALL, parameterization=request.param, num_blocks=2)
        inference = NPE(PRIOR, density_estimator=builder, show_progress_bars=False)
        inference.append_simulations(*simulations(1000)).train(
            training_batch_size=100, learning_rate=1e-2, max_num_epochs=12, show_train_summary=False
        )
        return inference, inference.build_posterior()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_npe_trains_samples_and_evaluates(trained: tuple[NPE, DirectPosterior]) -> None:
    inference, posterior = trained
    fitted = inference._neural_net
    assert isinstance(fitted, ConvexFlowEstimator) and not fitted.training
    parameterization = fitted.net.parameterization
    assert parameterization.is_feasible() and not parameterization.is_stale
    observed = torch.tensor([1.0, -0.5])
    torch.manual_seed(1)
    draws = posterior.sample((2000,), x=observed, show_progress_bars=False)
    assert draws.dtype == torch.float32
    assert (draws.mean(0) - 0.8 * observed).abs().max() < 0.12
    assert (draws.std(0) / math.sqrt(0.2) - 1.0).abs().max() < 0.15
    # the prior covers all: nothing was rejected, and log_prob is that of the estimator
    found = posterior.log_prob(draws[:50], x=observed, leakage_correction_params={"num_rejection_samples": 100})
    torch.testing.assert_close(found, fitted.log_prob(draws[:50, None], observed[None])[:, 0], rtol=0.0, atol=1e-4)
    exact = MultivariateNormal(0.8 * observed, 0.2 * torch.eye(2)).log_prob(draws)
    ours = fitted.log_prob(draws[:, None], observed[None])[:, 0]
    assert abs(float((ours - exact).mean())) < 0.1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_sbi_does_with_a_posterior(
    trained: tuple[NPE, DirectPosterior], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a loaded NPE logs
    inference, posterior = trained
    theta, x = simulations(120, seed=1)
    observed = torch.tensor([1.0, -0.5])
    posterior.set_default_x(observed)
    torch.manual_seed(1)
    mode = posterior.map(num_iter=40, num_init_samples=100, num_to_optimize=10, show_progress_bars=False)
    assert (mode - 0.8 * observed).abs().max() < 0.25
    many = posterior.sample_batched((300,), x=x[:10], show_progress_bars=False)
    assert many.shape == (300, 10, 2)
    assert (many.mean(0) - 0.8 * x[:10]).abs().max() < 0.4
    ranks, _ = run_sbc(theta, x, posterior, num_posterior_samples=49, show_progress_bar=False)
    assert ranks.shape == (120, 2)
    assert (ranks.mean(0) / 49.0 - 0.5).abs().max() < 4.0 * math.sqrt(1.0 / 12.0 / 120)
    coverage, levels = run_tarp(theta, x, posterior, num_posterior_samples=49, num_bins=10, show_progress_bar=False)
    assert (coverage - levels).abs().max() < 4.0 * math.sqrt(0.25 / 120)
    for copied in (pickle.loads(pickle.dumps(posterior)), pickle.loads(pickle.dumps(inference)).build_posterior()):
        copied.set_default_x(observed)
        assert torch.equal(copied.log_prob(theta), posterior.log_prob(theta))


def test_a_parameterization_is_followed_through_steps_that_it_does_not_see() -> None:
    """A rate that throws weights out: what a loss or an evaluation reads is the projection."""
    theta, x = simulations(200)
    fitted = estimator(ProjectedGradient)
    optimizer = torch.optim.Adam(fitted.parameters(), lr=2.0)
    fitted.train()
    parameterization = fitted.net.parameterization
    for _ in range(2):
        optimizer.zero_grad()
        fitted.loss(theta, x).mean().backward()
        assert parameterization.is_feasible()
        optimizer.step()
        assert not parameterization.is_feasible()
    fitted.eval()
    assert parameterization.is_feasible()


def test_every_step_is_followed_once_and_a_penalty_is_in_the_loss_of_training() -> None:
    theta, x = simulations(200)
    fitted = estimator(ADMM)
    optimizer = torch.optim.Adam(fitted.parameters(), lr=1e-2)
    for _ in range(3):
        fitted.train()
        for part in range(4):  # gradients of two batches to a step
            (fitted.loss(theta, x) / 2.0).mean().backward()
            fitted.loss(theta[:10], x[:10])
            if part % 2:
                optimizer.step()
                optimizer.zero_grad()
        fitted.eval()
        fitted.loss(theta, x)
    parameterization = fitted.net.parameterization
    assert parameterization.get_extra_state() == {"steps": 6}
    fitted.train()
    with torch.no_grad():
        difference = fitted.loss(theta, x) + fitted.log_prob(theta, x)[0]
    torch.testing.assert_close(difference, parameterization.penalty().detach().expand(200))
    with pytest.raises(ValueError, match="force_first_round_loss"):
        fitted.log_prob(theta, x)


def test_a_lift_sees_the_batch_in_training_and_the_training_rows_in_evaluation() -> None:
    theta, x = simulations(200)
    fitted = estimator(Lift)
    fitted.train()
    for parameter in fitted.net.parameterization.parameters():  # an emission that is not 0
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    assert (fitted.log_prob(theta[:5], x[:5]) - fitted.log_prob(theta, x)[:, :5]).abs().max() > 1e-4
    fitted.eval()
    torch.testing.assert_close(fitted.log_prob(theta[:5], x[:5]), fitted.log_prob(theta, x)[:, :5])
    summary = fitted.net.parameterization.reference_summary.clone()
    fitted.net.parameterization.calibrate([fitted.net.summary_rows(fitted.net.to_batch(theta, x))])
    torch.testing.assert_close(fitted.net.parameterization.reference_summary, summary)
    fitted.train()
    assert fitted.sample(torch.Size([3]), x[:2]).shape == (3, 2, 2) and fitted.training


def test_a_density_in_original_units_of_images() -> None:
    """Its integral over theta is 1, for each image; shapes are those of sbi's contract."""
    torch.manual_seed(0)
    theta = 50.0 + 200.0 * torch.rand(300, 1)
    x = theta[:, :, None, None] / 100.0 + 0.1 * torch.randn(300, 1, 4, 4)
    embedding = partial(nn.Conv2d, in_channels=1, out_channels=2, kernel_size=3)
    builder = convex_flow(network=partial(SMALL, embedding=embedding))
    fitted = builder(theta, x)
    assert fitted.input_shape == (1,) and fitted.condition_shape == (1, 4, 4)
    assert all(bool(block.is_initialized) for block in fitted.net._blocks())
    grid = torch.linspace(-2000.0, 2300.0, 4001)
    log_prob = fitted.log_prob(grid.view(-1, 1, 1).expand(-1, 3, 1), x[:3])
    assert log_prob.shape == (4001, 3)
    torch.testing.assert_close(torch.trapezoid(log_prob.exp().T, grid), torch.ones(3), rtol=0.0, atol=2e-3)
    torch.testing.assert_close(fitted.log_prob(theta[:7], x[:1]), fitted.log_prob(theta[:7], x[:1].expand(7, 1, 4, 4)))
    draws, of_draws = fitted.sample_and_log_prob(torch.Size([2, 5]), x[:3])
    assert draws.shape == (2, 5, 3, 1) and of_draws.shape == (2, 5, 3)
    assert fitted.loss(theta, x).shape == (300,)
    with pytest.raises(ValueError, match=r"theta of shape \(300, 1, 1\)"):
        builder(theta.unsqueeze(1), x)


def test_without_sbi_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sbi.neural_nets.estimators", None)
    monkeypatch.delitem(sys.modules, "lightning_lift.sbi")
    with pytest.raises(ImportError, match=r"pip install 'lightning-lift\[sbi\]'"):
        import_module("lightning_lift.sbi")
