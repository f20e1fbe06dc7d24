import math

import pytest
import torch
from torch import Tensor

from lightning_lift.diagnostics.mcmc import effective_sample_size, split_r_hat


def autoregressive(steps: int, chains: int, correlation: float, seed: int = 0, offsets: float = 0.0) -> Tensor:
    """Stationary AR(1) chains of unit variance, shape (steps, chains, 1), each moved by a constant of its own."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, chains, generator=generator, dtype=torch.float64)
    states = [noise[0]]
    for row in noise[1:]:
        states.append(correlation * states[-1] + math.sqrt(1.0 - correlation**2) * row)
    shifts = offsets * torch.randn(chains, generator=generator, dtype=torch.float64)
    return (torch.stack(states) + shifts).unsqueeze(2)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, -0.5])
def test_effective_sample_size_of_autoregressive_chains(correlation: float) -> None:
    """AR(1) with coefficient r has the autocorrelation time (1 + r) / (1 - r)."""
    steps, chains = 2000, 64
    expected = steps * chains * (1.0 - correlation) / (1.0 + correlation)
    found = float(effective_sample_size(autoregressive(steps, chains, correlation)))
    assert found == pytest.approx(expected, rel=0.06)


def test_effective_sample_size_foresees_the_spread_of_the_mean() -> None:
    means, sizes = [], []
    for seed in range(200):
        history = autoregressive(50, 16, 0.6, seed=seed)
        means.append(float(history.mean()))
        sizes.append(float(effective_sample_size(history)))
    spread = torch.tensor(means).std() ** 2
    # the variance of 200 means has a relative standard error of 10 %
    assert float(spread) == pytest.approx(sum(1.0 / size for size in sizes) / 200, rel=0.3)


@pytest.mark.parametrize("offset", [0.0, 0.3, 1.0, 3.0])
def test_r_hat_of_chains_that_differ_by_constants(offset: float) -> None:
    """Unit variance within and offset^2 between: R-hat^2 tends to 1 + offset^2."""
    history = autoregressive(400, 2000, 0.0, offsets=offset)
    assert float(split_r_hat(history)) == pytest.approx(math.sqrt(1.0 + offset**2), rel=0.02)


def test_r_hat_by_hand() -> None:
    history = torch.tensor([[0.0, 4.0], [2.0, 6.0], [0.0, 4.0], [2.0, 6.0]]).unsqueeze(2)
    # halves of means 1, 5, 1, 5 and variances 2: between 16 / 3, so R-hat^2 = 1 / 2 + (16 / 3) / 2
    assert float(split_r_hat(history)) == pytest.approx(math.sqrt(0.5 + 8.0 / 3.0))


def test_r_hat_sees_a_drift_that_all_chains_share() -> None:
    history = autoregressive(100, 32, 0.0) + torch.linspace(0.0, 5.0, 100, dtype=torch.float64).view(-1, 1, 1)
    assert float(split_r_hat(history)) > 1.3


def test_several_quantities_are_read_one_by_one() -> None:
    one, two = autoregressive(100, 8, 0.5), autoregressive(100, 8, 0.9, seed=1, offsets=1.0)
    both = torch.cat([one, two], 2)
    for function in (split_r_hat, effective_sample_size):
        torch.testing.assert_close(function(both), torch.cat([function(one), function(two)]))


def test_chains_that_never_move() -> None:
    still = torch.zeros(10, 4, 1)
    assert float(split_r_hat(still)) == 1.0
    apart = still + torch.arange(4.0).view(1, 4, 1)
    assert float(split_r_hat(apart)) == math.inf
    assert math.isnan(float(effective_sample_size(still)))


@pytest.mark.parametrize("shape", [(3, 4, 1), (10, 4)])
def test_short_or_misshapen_histories_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 4 steps"):
        split_r_hat(torch.zeros(shape))
