import math

import pytest
import torch
from scipy import stats

from lightning_lift.partition import Quadrature
from tests.problems import GumbelEnergy, Quadratic, potential_of

OPEN = {dim: torch.tensor([[-math.inf] * dim, [math.inf] * dim]) for dim in (1, 2)}


def draws(network: Quadratic, num_samples: int = 20_000, seed: int = 0) -> torch.Tensor:
    quadrature = Quadrature()
    quadrature.prepare(OPEN[network.dim], None)
    return quadrature.sample(potential_of(network), num_samples, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("network", "truth"),
    [
        (Quadratic(1, 3.0, 0.5), stats.norm(3.0, 0.5)),
        (GumbelEnergy(1, -1.0, 2.0), stats.gumbel_r(-1.0, 2.0)),
        (Quadratic(2, 3.0, 0.5), stats.norm(3.0, 0.5)),
        (GumbelEnergy(2, -1.0, 2.0), stats.gumbel_r(-1.0, 2.0)),
    ],
)
def test_each_coordinate_follows_its_distribution(network: Quadratic, truth: stats.rv_continuous) -> None:
    for column in draws(network).T:
        assert stats.kstest(column.double().numpy(), truth.cdf).pvalue > 1e-3


def test_coordinates_of_a_product_are_uncorrelated() -> None:
    x = draws(GumbelEnergy(2))
    assert abs(float(torch.corrcoef(x.T)[0, 1])) < 4 / math.sqrt(len(x))


def test_a_coarse_grid_in_the_plane_is_corrected() -> None:
    """Uniform draws inside cells alone would add a twelfth of the squared cell to the variance."""
    quadrature = Quadrature(evaluation_points=17)
    quadrature.prepare(OPEN[2], None)
    x = quadrature.sample(potential_of(Quadratic(2)), 40_000, torch.Generator().manual_seed(0))
    error = math.sqrt(2.0 / len(x))
    for column in x.T:
        assert abs(float(column.double().var()) - 1.0) < 4 * error


def test_seeded_and_independent_of_the_global_generator() -> None:
    state = torch.get_rng_state()
    one, two, three = draws(Quadratic(2), 100), draws(Quadratic(2), 100), draws(Quadratic(2), 100, seed=1)
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert torch.equal(torch.get_rng_state(), state)
