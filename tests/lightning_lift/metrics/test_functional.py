import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.distributions import kl_divergence as exact_kl

from lightning_lift.metrics import functional as M


def grid(low: float = -30.0, high: float = 30.0, size: int = 40001) -> tuple[Tensor, Tensor]:
    x = torch.linspace(low, high, size, dtype=torch.float64)
    weights = torch.full_like(x, (high - low) / (size - 1))
    weights[[0, -1]] *= 0.5
    return x, weights


def gaussian(x: Tensor, mean: float, std: float) -> Tensor:
    return Normal(torch.tensor(mean, dtype=x.dtype), torch.tensor(std, dtype=x.dtype)).log_prob(x)


def phi(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


@pytest.mark.parametrize(("shift", "std"), [(0.3, 1.0), (2.0, 0.7), (5.0, 1.5)])
def test_total_variation_of_shifted_gaussians(shift: float, std: float) -> None:
    x, w = grid()
    tv = M.total_variation(gaussian(x, 0.0, std), gaussian(x, shift, std), w)
    # The integrand has a kink where the densities cross, so the trapezoid rule is only second order here.
    assert tv.item() == pytest.approx(2.0 * phi(shift / (2.0 * std)) - 1.0, abs=1e-6)


@pytest.mark.parametrize(("m", "s"), [(0.3, 1.0), (2.0, 0.7), (-1.0, 2.0)])
def test_kl_and_hellinger_of_two_gaussians(m: float, s: float) -> None:
    x, w = grid()
    p, q = gaussian(x, 0.0, 1.0), gaussian(x, m, s)
    kl = exact_kl(Normal(0.0, 1.0), Normal(torch.tensor(m, dtype=torch.float64), torch.tensor(s, dtype=torch.float64)))
    affinity = math.sqrt(2.0 * s / (1.0 + s * s)) * math.exp(-m * m / (4.0 * (1.0 + s * s)))
    assert M.kl_divergence(p, q, w).item() == pytest.approx(kl.item(), rel=1e-9)
    assert M.hellinger_distance(p, q, w).item() == pytest.approx(math.sqrt(1.0 - affinity), rel=1e-9)


def test_densities_are_renormalised_on_the_grid() -> None:
    x, w = grid(size=2001)
    p, q = gaussian(x, 0.0, 1.0), gaussian(x, 1.0, 1.2)
    for distance in (M.total_variation, M.kl_divergence, M.hellinger_distance):
        torch.testing.assert_close(distance(p + 7.0, q - 300.0, w), distance(p, q, w), rtol=1e-10, atol=1e-12)
        assert distance(p, p - 3.0, w).item() == pytest.approx(0.0, abs=1e-12)


def test_zero_density_counts_as_zero_and_disjoint_supports_are_far() -> None:
    x, w = grid(-1.0, 1.0, 2001)
    left = torch.where(x < 0, 0.0, -torch.inf).double()
    right = torch.where(x > 0, 0.0, -torch.inf).double()
    both = torch.zeros_like(x)
    assert M.total_variation(left, right, w).item() == pytest.approx(1.0, abs=1e-12)
    assert M.hellinger_distance(left, right, w).item() == pytest.approx(1.0, abs=1e-12)
    assert M.kl_divergence(left, right, w).item() == math.inf
    # p is 0 on half of the grid: 0 log 0 = 0 there, so the divergence from the uniform is log 2.
    assert M.kl_divergence(left, both, w).item() == pytest.approx(math.log(2.0), abs=2e-3)


def test_small_divergences_survive_float32() -> None:
    x, w = (t.float() for t in grid(-8.0, 8.0, 8000))
    shift = 1e-2
    kl = M.kl_divergence(gaussian(x, 0.0, 1.0), gaussian(x, shift, 1.0), w)
    assert kl.item() == pytest.approx(shift**2 / 2.0, rel=1e-2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_density_reads_nan_never_a_number(bad: float) -> None:
    x, w = grid(size=501)
    p, q = gaussian(x, 0.0, 1.0), gaussian(x, 0.0, 1.0)
    q[100] = bad
    nothing = torch.full_like(p, -torch.inf)
    for distance in (M.total_variation, M.kl_divergence, M.hellinger_distance):
        assert distance(p, q, w).isnan()
        assert distance(p, nothing, w).isnan()


def test_bad_grids_are_refused() -> None:
    p = torch.zeros(5)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        M.total_variation(p, p, torch.ones(4))
    with pytest.raises(ValueError, match="nonnegative"):
        M.total_variation(p, p, -torch.ones(5))


def test_moments_of_pieces_merge_to_those_of_the_whole() -> None:
    values = 1e4 + torch.randn(4000, generator=torch.Generator().manual_seed(0))
    pieces = torch.stack([M.moments(piece) for piece in values.split([1, 999, 0, 2000, 1000])])
    count, mean, spread = M.merge_moments(pieces)
    exact = values.double()
    assert count.item() == 4000
    assert mean.item() == pytest.approx(exact.mean().item(), rel=1e-6)
    # Sums of squares in float32 would have lost this spread altogether: 4000 * 1e8 against 4000.
    assert spread.item() == pytest.approx((exact - exact.mean()).square().sum().item(), rel=1e-3)
    assert M.mean_standard_error(M.merge_moments(pieces)).item() == pytest.approx(
        exact.std().item() / math.sqrt(4000), rel=1e-3
    )
