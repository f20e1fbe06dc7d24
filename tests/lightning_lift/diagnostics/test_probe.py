"""The probe on a problem with a closed form: linear latent, quadratic loss, Gaussian batches."""

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.diagnostics import collect, probe_cross_covariance, undisturbed

DIM, WEIGHTS, ROWS = 3, 5, 8


class Linear(nn.Module):
    """latent = slack + A mean(batch), or the slack alone."""

    slack_gain = 1.0

    def __init__(self, moves: bool = True, has_slack: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.emission = nn.Parameter(torch.randn(WEIGHTS, DIM, generator=generator, dtype=torch.float64))
        bias = nn.Parameter(torch.randn(WEIGHTS, generator=generator, dtype=torch.float64))
        self.register_parameter("slack", bias if has_slack else None)
        self.offset = bias
        self.moves = moves

    def latent(self, batch: Tensor | None = None) -> Tensor:
        if not self.training:
            raise AssertionError("the probe must condition on the batch, so it needs training mode")
        return self.slack_gain * self.offset + (
            self.emission @ batch.mean(0) if self.moves and batch is not None else 0.0
        )


class Quadratic(nn.Module):
    """loss = latent^T H latent / 2 + latent^T C mean(batch)."""

    def __init__(self, moves: bool = True, has_slack: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.parameterization = Linear(moves, has_slack)
        self.dropout = nn.Dropout()
        root = torch.randn(WEIGHTS, WEIGHTS, generator=generator, dtype=torch.float64)
        self.H = root @ root.T
        self.C = torch.randn(WEIGHTS, DIM, generator=generator, dtype=torch.float64)
        self.register_buffer("calls", torch.zeros(()))

    def batch_loss(self, batch: Tensor, latent: Tensor | None = None) -> Tensor:
        self.calls += 1.0
        torch.rand(1)  # a loss may draw from the global generator
        latent = self.parameterization.latent(batch) if latent is None else latent
        return 0.5 * latent @ self.H @ latent + latent @ self.C @ batch.mean(0)


def batches(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_rows_are_the_analytic_gradients() -> None:
    module = Quadratic()
    probes = batches(6)
    rows = collect(module, probes)
    for i, batch in enumerate(probes):
        z = batch.mean(0)
        latent = module.parameterization.offset + module.parameterization.emission @ z
        torch.testing.assert_close(rows.latents[i], latent.detach())
        torch.testing.assert_close(rows.gradients[i], (module.H @ latent + module.C @ z).detach())
    at_mean = rows.latents.mean(0) @ module.H
    expected = torch.stack([at_mean + module.C @ batch.mean(0) for batch in probes])
    torch.testing.assert_close(rows.objective_gradients, expected)
    # d latent / d slack is the identity: two measurements, one number.
    torch.testing.assert_close(rows.slack_gradients, rows.gradients)


def test_closed_form_covariance_within_three_standard_errors() -> None:
    module = Quadratic()
    A = module.parameterization.emission.detach()
    # mean(batch) ~ N(0, I / ROWS), latent = b + A z, g = H latent + C z.
    objective = A @ module.C.T / ROWS
    total = A @ A.T @ module.H / ROWS + objective
    readings = [probe_cross_covariance(module, batches(32, seed), 1).latent_gradient for seed in range(25)]
    for values, expected in [
        ([r.trace for r in readings], total.trace()),
        ([r.objective_trace for r in readings], objective.trace()),
        ([r.remainder_trace for r in readings], (total - objective).trace()),
    ]:
        sample = torch.tensor(values)
        error = sample.std().item() / math.sqrt(len(values))
        assert sample.mean().item() == pytest.approx(expected.item(), abs=3.0 * error)
    # The norm of a sample covariance is biased upwards by about 1/B; a large B shows the limit, within 1/sqrt(B).
    many = probe_cross_covariance(module, batches(800, 99), 1).latent_gradient
    assert many.frobenius == pytest.approx(total.norm().item(), rel=0.15)
    assert many.asymmetry == pytest.approx(((total - total.T).norm() / total.norm()).item(), abs=0.1)


def test_a_latent_that_ignores_the_batch_and_a_frozen_batch_read_roundoff_zero() -> None:
    still = probe_cross_covariance(Quadratic(moves=False), batches(16)).latent_gradient
    assert still.is_roundoff
    assert still.gradient_norm > 0.0
    frozen = probe_cross_covariance(Quadratic(), batches(1) * 16).latent_gradient
    assert frozen.is_roundoff
    moving = probe_cross_covariance(Quadratic(), batches(16)).latent_gradient
    assert not moving.is_roundoff
    assert moving.p_value < 0.05


def test_a_stored_slack_with_a_gain_reads_per_unit_of_latent() -> None:
    """latent = gain * stored + ...: the stored number's gradient is gain times the slack's."""
    plain, scaled = Quadratic(), Quadratic()
    scaled.parameterization.slack_gain = 8.0
    with torch.no_grad():
        scaled.parameterization.slack.div_(8.0)
    probes = batches(6)
    torch.testing.assert_close(collect(scaled, probes).slack_gradients, collect(plain, probes).slack_gradients)


def test_no_slack_is_undefined_not_zero() -> None:
    result = probe_cross_covariance(Quadratic(has_slack=False), batches(16))
    assert result.slack is None
    assert "no slack" in str(result)
    assert not result.latent_gradient.is_roundoff
    with_slack = probe_cross_covariance(Quadratic(), batches(16))
    assert with_slack.slack is not None
    assert with_slack.slack.trace == pytest.approx(with_slack.latent_gradient.trace, rel=1e-9)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("training", [True, False])
def test_the_probe_leaves_everything_as_it_was(context: type, training: bool) -> None:
    module = Quadratic().train(training)
    module.dropout.train(not training)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with context():
        rows = collect(module, batches(4))
    assert torch.equal(torch.rand(3), expected)
    assert module.training is training
    assert module.dropout.training is not training
    assert all(bool((parameter.grad == 1.0).all()) for parameter in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert rows.gradients.abs().sum() > 0.0


def test_batches_made_under_inference_mode_are_welcome() -> None:
    module = Quadratic()
    with torch.inference_mode():
        rows = collect(module, batches(3))
    torch.testing.assert_close(rows.gradients, collect(Quadratic(), batches(3)).gradients)


def test_undisturbed_restores_after_an_error() -> None:
    module = Quadratic().eval()
    with pytest.raises(RuntimeError, match="boom"), undisturbed(module):
        module.train()
        module.calls.fill_(7.0)
        raise RuntimeError("boom")
    assert not module.training
    assert module.calls.item() == 0.0


def test_bad_use_is_refused() -> None:
    with pytest.raises(ValueError, match="no batches"):
        collect(Quadratic(), [])
    with pytest.raises(ValueError, match="diverged"):
        probe_cross_covariance(Quadratic(), [torch.full((4, DIM), math.nan, dtype=torch.float64)] * 3)
