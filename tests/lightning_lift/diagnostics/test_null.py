"""Every instrument's p-values are uniform where latent and gradient are unrelated, at any number of weights."""

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from lightning_lift.diagnostics import TrailingWindow, architecture_reading


class FirstRow(nn.Module):
    """latent = slack + the batch's first row."""

    slack_gain = 1.0

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.slack = nn.Parameter(torch.full((weights,), 3.0, dtype=torch.float64))

    def latent(self, batch: Tensor) -> Tensor:
        return self.slack + batch[0]


class Unrelated(nn.Module):
    """loss = |latent - target|^2 / 2, the targets every second row: H = 1, the gradient unrelated."""

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.parameterization = FirstRow(weights)

    def batch_loss(self, batch: Tensor, latent: Tensor) -> Tensor:
        return 0.5 * (latent - batch[1::2]).square().sum(1).mean()


def p_values(weights: int, rows: int, shuffles: int, seed: int, heavy: bool = False) -> dict[str, float]:
    """Of one repetition, by instrument."""
    generator = torch.Generator().manual_seed(seed)
    batches = torch.randn(rows, 2, weights, generator=generator, dtype=torch.float64)
    if heavy:
        batches *= torch.randn(rows, 2, 1, generator=generator, dtype=torch.float64).exp()
    # g = latent - target is not unrelated to the latent: what is left without H (latent - mean) is.
    found = architecture_reading(Unrelated(weights), list(batches), None, shuffles, seed)
    assert found.movement is not None
    window = TrailingWindow()
    line = torch.linspace(-9.0, 9.0, rows, dtype=torch.float64)[:, None]
    window.steps = list(range(100, 100 + rows))
    window.latents, window.gradients = (list(batches[:, k] + (2.0 - k) * line) for k in (0, 1))
    window.slack_gradients = window.gradients
    timed = window.read(True, shuffles, seed)
    assert timed.slack is not None
    window.latents, window.gradients = list(batches[:, 0]), list(batches[:, 1])
    centred = window.read(False, shuffles, seed).latent_gradient
    return {
        "objective part": found.probe.latent_gradient.objective_p_value,
        "total less Cov(latent) H": found.movement.rest_p_value,
        "norm": centred.p_value,
        "trace": centred.p_value_trace,
        "detrended norm": timed.latent_gradient.p_value,
        "detrended trace": timed.latent_gradient.p_value_trace,
        "detrended slack": timed.slack.p_value,
    }


def check_uniform(weights: int, rows: int, shuffles: int, repetitions: int, heavy: bool = False) -> None:
    found = [p_values(weights, rows, shuffles, seed, heavy) for seed in range(repetitions)]
    for name in found[0]:
        # On the grid k / (n + 1), k = 1 .. n + 1: spread over its cells, they are continuous and uniform.
        spread = torch.rand(repetitions, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = torch.tensor([one[name] for one in found], dtype=torch.float64) - spread / (shuffles + 1)
        assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-3, f"{name}: {values.sort().values}"


@pytest.mark.parametrize("weights", [8, 500, 8000])
def test_p_values_are_uniform_without_coupling(weights: int) -> None:
    check_uniform(weights, rows=12, shuffles=39, repetitions=40)


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("weights", [8, 500, 8000])
def test_p_values_are_uniform_at_full_size(weights: int, heavy: bool) -> None:
    check_uniform(weights, rows=64, shuffles=200, repetitions=60 if weights == 8000 else 200, heavy=heavy)
