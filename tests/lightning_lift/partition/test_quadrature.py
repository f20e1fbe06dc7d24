import math

import pytest
import torch
from scipy import stats

from lightning_lift.networks import ICNN
from lightning_lift.partition import Quadrature
from tests.problems import GumbelEnergy, Quadratic, potential_of

OPEN = {dim: torch.tensor([[-math.inf] * dim, [math.inf] * dim]) for dim in (1, 2)}


def prepared(dim: int, **arguments: object) -> Quadrature:
    quadrature = Quadrature(**arguments)
    quadrature.prepare(OPEN[dim], None)
    return quadrature


@pytest.mark.parametrize("energy", [Quadratic, GumbelEnergy])
@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (50.0, 0.1), (-300.0, 4.0)])
@pytest.mark.parametrize("dim", [1, 2])
def test_log_partition_of_known_densities_wherever_they_lie(dim: int, mean: float, sd: float, energy: type) -> None:
    network = energy(dim, mean, sd)
    quadrature = Quadrature()
    quadrature.prepare(OPEN[dim], torch.tensor([[mean - 8.0], [mean + 8.0]]).expand(2, dim))
    potential = potential_of(network)
    estimate = quadrature.evaluate(potential)
    # float32 energies at 300 standard units carry 1e-5 of their own
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=2e-5)
    assert float(quadrature(potential)) == pytest.approx(network.log_partition, abs=5e-5)
    assert estimate.diagnostics["tail_bound"] <= 1e-6
    assert estimate.diagnostics["quadrature_error"] <= 1e-4


@pytest.mark.parametrize("dim", [1, 2])
def test_gradient_is_minus_the_mean_of_the_energys(dim: int) -> None:
    """d log Z / d s = -E[d energy / d s] = -D / 2 for a Gaussian of stiffness s = 1."""
    network = Quadratic(dim).double()
    potential = potential_of(network)
    (slope,) = torch.autograd.grad(prepared(dim)(potential), network.stiffness)
    assert float(slope) == pytest.approx(-dim / 2, abs=1e-6)


@pytest.mark.parametrize("dim", [1, 2])
def test_the_window_follows_a_density_that_moves_and_shrinks(dim: int) -> None:
    quadrature = prepared(dim)
    for mean, sd in ((0.0, 1.0), (30.0, 1.0), (30.0, 0.05), (-5.0, 3.0)):
        network = Quadratic(dim, mean, sd)
        assert float(quadrature(potential_of(network))) == pytest.approx(network.log_partition, abs=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_the_tail_bound_is_above_the_true_tail(dim: int) -> None:
    """On a window that is too small on purpose, against the exact mass outside."""
    quadrature = Quadrature(tail_tolerance=1e-2)
    quadrature.prepare(OPEN[dim], torch.tensor([[-3.0], [3.0]]).expand(2, dim))
    potential = potential_of(Quadratic(dim))
    quadrature(potential)  # moves the window if it must
    estimate = quadrature.evaluate(potential)
    inside = (stats.norm.cdf(quadrature.window[1].double()) - stats.norm.cdf(quadrature.window[0].double())).prod()
    assert 1.0 - inside <= estimate.diagnostics["tail_bound"] <= 1e-2


def test_a_closed_support_is_the_window() -> None:
    quadrature = Quadrature()
    quadrature.prepare(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
    estimate = quadrature.evaluate(potential_of(Quadratic(1, mean=0.5, sd=0.1)))
    assert estimate.diagnostics["tail_bound"] == 0.0
    inside = stats.norm.cdf(5) - stats.norm.cdf(-5)
    assert float(estimate.log_partition) == pytest.approx(
        Quadratic(1, 0.5, 0.1).log_partition + math.log(inside), abs=1e-5
    )
    assert quadrature.window.flatten().tolist() == [0.0, 1.0]


def test_a_half_open_support_grows_on_its_open_side_only() -> None:
    quadrature = Quadrature()
    quadrature.prepare(torch.tensor([[0.0], [math.inf]]), torch.tensor([[0.0], [1.0]]))
    estimate = quadrature.evaluate(potential_of(Quadratic(1, sd=3.0)))
    expected = math.log(0.5) + Quadratic(1, sd=3.0).log_partition
    assert float(estimate.log_partition) == pytest.approx(expected, abs=1e-5)
    assert float(quadrature.window[0]) == 0.0


def test_step_halving_error_sees_a_kink_that_the_grid_cannot_resolve() -> None:
    sharp = prepared(1, evaluation_points=21).evaluate(potential_of(Quadratic(1, sd=0.02)))
    fine = prepared(1).evaluate(potential_of(Quadratic(1, sd=0.02)))
    assert fine.diagnostics["quadrature_error"] < 1e-5
    assert sharp.diagnostics["quadrature_error"] >= fine.diagnostics["quadrature_error"]


def test_an_energy_that_cannot_be_normalised_is_an_error() -> None:
    network = Quadratic(1)
    network.stiffness.data.zero_()
    with pytest.raises(RuntimeError, match="strong_convexity"):
        prepared(1).evaluate(potential_of(network))


def test_a_diverged_model_gives_nan_and_no_endless_search() -> None:
    network = Quadratic(1)
    network.stiffness.data.fill_(float("nan"))
    assert math.isnan(float(prepared(1)(potential_of(network))))


def test_icnn_energies_integrate_to_one() -> None:
    torch.manual_seed(0)
    for dim in (1, 2):
        quadrature = prepared(dim)
        potential = potential_of(ICNN(dim, (32, 32), strong_convexity=0.02, bias_std=1.0))
        estimate = quadrature.evaluate(potential)
        fine = Quadrature(evaluation_points=20001 if dim == 1 else 1001)
        fine.prepare(OPEN[dim], quadrature.window * 1.5)
        assert float(estimate.log_partition) == pytest.approx(float(fine.evaluate(potential).log_partition), abs=1e-4)


def test_state_goes_through_a_checkpoint() -> None:
    quadrature = prepared(1)
    quadrature(potential_of(Quadratic(1, 30.0)))
    again = Quadrature()
    again.load_state_dict(quadrature.state_dict())
    assert torch.equal(again.window, quadrature.window)
    again.prepare(OPEN[1], torch.tensor([[-1.0], [1.0]]))
    assert torch.equal(again.window, quadrature.window), "a restored window is kept"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 4}, "num_points=4"),
        ({"evaluation_points": 100}, "evaluation_points=100"),
        ({"tail_tolerance": 0.0}, r"tail_tolerance=0.0"),
        ({"tail_tolerance": 0.5}, r"tail_tolerance=0.5"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Quadrature(**arguments)


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (torch.tensor([[-math.inf] * 3, [math.inf] * 3]), "1 or 2 dimensions"),
        (torch.tensor([[1.0], [0.0]]), "lower end"),
        (torch.tensor([[0.0, -math.inf], [1.0, math.inf]]), "finite box"),
    ],
)
def test_problems_that_it_cannot_treat_are_refused(support: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Quadrature().prepare(support, None)


@pytest.mark.parametrize("dim", [1, 2])
def test_energies_that_overflow_at_the_edge_tighten_the_window(dim: int) -> None:
    quadrature = Quadrature()
    quadrature.prepare(OPEN[dim], torch.tensor([[-200.0], [200.0]]).expand(2, dim))
    estimate = quadrature.evaluate(potential_of(GumbelEnergy(dim)))
    assert float(estimate.log_partition) == pytest.approx(0.0, abs=2e-5)


def test_an_evaluation_leaves_the_window_of_training_alone() -> None:
    quadrature = prepared(1)
    quadrature(potential_of(Quadratic(1)))
    before = quadrature.window.clone()
    quadrature.evaluate(potential_of(Quadratic(1, mean=100.0)))
    quadrature.sample(potential_of(Quadratic(1, mean=-100.0)), 10, torch.Generator().manual_seed(0))
    assert torch.equal(quadrature.window, before)
