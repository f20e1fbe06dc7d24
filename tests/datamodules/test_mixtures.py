import math

import pytest
import torch
from scipy import stats

from lightning_lift.datamodules import mixtures
from lightning_lift.datamodules.mixtures import PlanarMixture


def scattered(count: int, std: float, side: float = 0.0) -> PlanarMixture:
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(count, generator=generator, dtype=torch.float64)
    centres = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return PlanarMixture(centres, weights / weights.sum(), std, side)


def grid(low: float, high: float, count: int) -> torch.Tensor:
    line = torch.linspace(low, high, count, dtype=torch.float64)
    return torch.cartesian_prod(line, line)


def test_log_density_is_the_reference() -> None:
    mixture = scattered(7, 0.3)
    points = grid(-4.0, 4.0, 9)
    parts = [
        math.exp(log_weight) * stats.multivariate_normal(centre.numpy(), 0.09).pdf(points.numpy())
        for centre, log_weight in zip(mixture.centres, mixture.log_weights, strict=True)
    ]
    torch.testing.assert_close(mixture.log_prob(points).exp(), torch.from_numpy(sum(parts)), rtol=1e-10, atol=0.0)


def test_blurred_squares_are_the_reference() -> None:
    mixture = PlanarMixture(torch.tensor([[0.5, -1.0]]), torch.ones(1), std=0.1, side=0.4)
    points = torch.tensor([[0.5, -1.0], [0.75, -0.7], [1.3, -1.9]], dtype=torch.float64)
    offset = -abs(points.numpy() - mixture.centres.numpy())  # tails on the left, where cdf has digits
    reference = ((stats.norm.cdf(offset, -0.2, 0.1) - stats.norm.cdf(offset, 0.2, 0.1)) / 0.4).prod(axis=1)
    torch.testing.assert_close(mixture.log_prob(points).exp(), torch.from_numpy(reference), rtol=1e-9, atol=0.0)


def test_the_two_forms_of_a_blurred_square_agree(monkeypatch) -> None:
    mixture = scattered(20, 0.1, side=0.2)
    points = grid(-2.0, 2.0, 15)
    plain = mixture.log_prob(points)
    monkeypatch.setattr(mixtures, "_UNDERFLOW", -math.inf)
    torch.testing.assert_close(mixture.log_prob(points), plain, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("side", [0.0, 0.05])
def test_leaving_components_out_changes_nothing(side, monkeypatch) -> None:
    mixture = scattered(500, 0.03, side)
    points = torch.cat([grid(-3.5, 3.5, 41), torch.tensor([[40.0, 1.0], [-1e4, 1e5]], dtype=torch.float64)])
    everything = mixture._sum(points, torch.arange(500))
    sizes = []
    whole = PlanarMixture._sum
    monkeypatch.setattr(PlanarMixture, "_sum", lambda self, x, which: sizes.append(len(which)) or whole(self, x, which))
    monkeypatch.setattr(mixture, "_few", 0)  # so that the points are sorted into cells
    torch.testing.assert_close(mixture.log_prob(points), everything, rtol=1e-12, atol=1e-9)
    assert len(sizes) > 100 and sum(sizes) / len(sizes) < 250


@pytest.mark.parametrize("side", [0.0, 0.3])
def test_far_out_the_nearest_component_decides(side) -> None:
    mixture = scattered(30, 0.1, side)
    for far in (1e3, 1e6, 1e12, 1e18):
        points = torch.tensor([[far, 0.0], [0.0, -far]], dtype=torch.float64)
        expected = -0.5 * (far / 0.1) ** 2
        # together with near points, whose digits must not suffer either
        near = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
        value = mixture.log_prob(torch.cat([points, near]))
        relative = value[:2] / expected - 1.0
        assert float(relative.abs().max()) < 20.0 / far + 1e-14
        torch.testing.assert_close(value[2:], mixture.log_prob(near), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("side", [0.0, 0.3])
def test_gradient_in_both_ways_of_summing(side, monkeypatch) -> None:
    mixture = scattered(50, 0.2, side)
    point = torch.tensor([[0.3, -0.2], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    (few_grad,) = torch.autograd.grad(mixture.log_prob(point).sum(), point)
    monkeypatch.setattr(mixture, "_few", 0)
    (many_grad,) = torch.autograd.grad(mixture.log_prob(torch.cat([point, grid(-3.0, 3.0, 9)]))[:2].sum(), point)
    torch.testing.assert_close(few_grad, many_grad, rtol=1e-9, atol=1e-9)
    step = 1e-5 * torch.eye(2, dtype=torch.float64)
    slope = (mixture.log_prob(point[0] + step) - mixture.log_prob(point[0] - step)) / 2e-5
    torch.testing.assert_close(few_grad[0], slope.detach(), rtol=1e-6, atol=1e-6)


def test_entropy_of_one_gaussian_and_of_separate_ones() -> None:
    one = math.log(2.0 * math.pi * math.e * 0.09)
    assert PlanarMixture(torch.tensor([[3.0, -1.0]]), torch.ones(1), 0.3).entropy().value == pytest.approx(
        one, abs=1e-12
    )
    apart = PlanarMixture(torch.tensor([[-9.0, 0.0], [9.0, 2.0]]), torch.tensor([0.25, 0.75]), 0.3).entropy()
    mixing = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert apart.value == pytest.approx(one + mixing, abs=1e-12) and 0.0 < apart.error < 1e-9


def test_entropy_of_a_blurred_square() -> None:
    # independent columns: twice the entropy of one, by a fine sum
    line = torch.linspace(-2.0, 2.0, 40001, dtype=torch.float64)
    density = torch.from_numpy(stats.norm.cdf(line + 0.2, scale=0.1) - stats.norm.cdf(line - 0.2, scale=0.1)) / 0.4
    column = float(torch.special.entr(density).sum()) * 1e-4
    found = PlanarMixture(torch.zeros(1, 2), torch.ones(1), 0.1, side=0.4).entropy()
    assert abs(found.value - 2.0 * column) <= found.error + 1e-9 and found.error < 1e-6


def test_entropy_error_covers_a_coarse_grid() -> None:
    mixture = scattered(12, 0.3)
    fine, coarse = mixture.entropy(0.2), mixture.entropy(1.2)
    assert fine.error < 1e-7 < coarse.error
    assert abs(coarse.value - fine.value) <= coarse.error
