import copy
import math
import warnings

import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_lift.networks import ICNN
from lightning_lift.partition import Quadrature
from tests.problems import GumbelEnergy, LaplaceEnergy, Quadratic, SeparableGumbel, Shifted, potential_of

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


class Oblique(Quadratic):
    """E of any of the separable kinds in rotated and stretched coordinates."""

    def __init__(self, kind: type, angle: float, scales: tuple[float, float]) -> None:
        super().__init__(2)
        cos, sin = math.cos(angle), math.sin(angle)
        turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64) / torch.tensor([[s] for s in scales])
        self.kind, self.scales = kind(2), scales
        self.register_buffer("turn", turn)

    def forward(self, x: Tensor) -> Tensor:
        return self.stiffness * self.kind(x @ self.turn.to(x).T)

    @property
    def log_partition(self) -> float:
        return float(self.kind.log_partition) + math.log(self.scales[0] * self.scales[1])


class Correlated(Quadratic):
    """A Gaussian of unit variances and this correlation."""

    def __init__(self, correlation: float, mean: float = 0.0, sd: float = 1.0) -> None:
        super().__init__(2, mean, sd)
        self.correlation = correlation

    def forward(self, x: Tensor) -> Tensor:
        z, square = self._standard(x), 1.0 - self.correlation**2
        return 0.5 * self.stiffness * (z[:, 0].square() + (z[:, 1] - self.correlation * z[:, 0]).square() / square)

    @property
    def log_partition(self) -> float:
        return super().log_partition + 0.5 * math.log1p(-(self.correlation**2))


def gradient_of(quadrature: Quadrature, network: Quadratic) -> float:
    (slope,) = torch.autograd.grad(quadrature(potential_of(network)), network.stiffness)
    return float(slope)


@pytest.mark.parametrize("correlation", [0.9, -0.99, 0.999, 0.9998, 0.99999, -0.99999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correlated_columns(correlation: float, dtype: torch.dtype) -> None:
    """log Z to 1e-3 nats in training and evaluation, and d log Z / d stiffness = -D / 2."""
    network = Correlated(correlation).to(dtype)
    quadrature = prepared(2)
    estimate = quadrature.evaluate(potential_of(network))
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=1e-3)
    assert float(quadrature(potential_of(network)).detach()) == pytest.approx(network.log_partition, abs=1e-3)
    assert gradient_of(quadrature, network) == pytest.approx(-1.0, abs=1e-3)
    assert estimate.diagnostics["quadrature_error"] <= 1e-3
    assert estimate.diagnostics["training_quadrature_error"] <= 1e-3
    assert estimate.diagnostics["log_partition_trusted"] == 1.0


@pytest.mark.parametrize("kind", [Quadratic, LaplaceEnergy, SeparableGumbel])
@pytest.mark.parametrize(("angle", "scales"), [(0.3, (1.0, 1.0)), (1.2, (1.0, 1e-4))])
def test_oblique_shapes_with_kinks_and_skew(kind: type, angle: float, scales: tuple[float, float]) -> None:
    network = Oblique(kind, angle, scales)
    quadrature = prepared(2)
    estimate = quadrature.evaluate(potential_of(network))
    error = abs(float(estimate.log_partition) - network.log_partition)
    assert error <= 1e-3
    assert error <= estimate.diagnostics["quadrature_error"] + 1e-5, "what is stated is no less than what is true"
    assert float(quadrature(potential_of(network)).detach()) == pytest.approx(network.log_partition, abs=1e-2)


def log_exponential(rate: float) -> float:
    """log of the integral of exp(-rate x) over [0, 1]."""
    return max(-rate, 0.0) + math.log(-math.expm1(-abs(rate)) / abs(rate))


class Falling(Quadratic):
    """E = rates . x."""

    def __init__(self, *rates: float) -> None:
        super().__init__(len(rates))
        self.register_buffer("rates", torch.tensor(rates, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.stiffness * (x * self.rates.to(x)).sum(1)


@pytest.mark.parametrize("rates", [(1e-3,), (1e2,), (1e6,), (-1e6,), (1.0, 1e6), (1e6, 1e6), (-1e6, 1e3)])
def test_mass_at_the_walls_of_a_box(rates: tuple[float, ...]) -> None:
    network, dim = Falling(*rates), len(rates)
    quadrature = Quadrature()
    quadrature.prepare(torch.tensor([[0.0] * dim, [1.0] * dim]), None)
    truth = sum(log_exponential(rate) for rate in rates)
    estimate = quadrature.evaluate(potential_of(network))
    assert float(estimate.log_partition) == pytest.approx(truth, abs=1e-3)
    assert float(quadrature(potential_of(network)).detach()) == pytest.approx(truth, abs=1e-3)
    assert estimate.diagnostics["tail_bound"] <= 1e-6


def test_walls_that_cut_a_correlated_density() -> None:
    """The mass of a quadrant is 1/4 + arcsin(correlation) / (2 pi)."""
    for correlation, support in ((-0.9, [[0.0, 0.0], [math.inf, math.inf]]), (0.0, [[0.0, -math.inf], [math.inf] * 2])):
        network = Correlated(correlation)
        quadrature = Quadrature()
        quadrature.prepare(torch.tensor(support), None)
        share = 0.5 if correlation == 0.0 else 0.25 + math.asin(correlation) / (2.0 * math.pi)
        estimate = quadrature.evaluate(potential_of(network))
        assert float(estimate.log_partition) == pytest.approx(network.log_partition + math.log(share), abs=1e-3)
    quadrature = Quadrature()
    quadrature.prepare(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), None)
    network = Correlated(0.99999, mean=0.5, sd=0.05)
    assert float(quadrature.evaluate(potential_of(network)).log_partition) == pytest.approx(
        network.log_partition, abs=1e-3
    )


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize(
    ("mean", "sd", "dtype"), [(1e4, 1e-2, torch.float32), (1e4, 1e-4, torch.float64), (1e6, 1.0, torch.float32)]
)
def test_narrow_densities_far_from_0(dim: int, mean: float, sd: float, dtype: torch.dtype) -> None:
    network = Quadratic(dim, mean, sd).to(dtype)
    quadrature = prepared(dim)
    truth = network.log_partition
    assert float(quadrature(potential_of(network)).detach()) == pytest.approx(truth, abs=1e-3)
    assert float(quadrature.evaluate(potential_of(network)).log_partition) == pytest.approx(truth, abs=1e-3)
    assert gradient_of(quadrature, network) == pytest.approx(-dim / 2, abs=1e-3)
    x = quadrature.sample(potential_of(network), 400, torch.Generator().manual_seed(0)).double()
    assert x.std(0).tolist() == pytest.approx([sd] * dim, rel=0.15)


@pytest.mark.parametrize("constant", [1e6, -1e6])
@pytest.mark.parametrize("dim", [1, 2])
def test_a_large_constant_in_a_float32_energy_moves_log_z_by_just_that(dim: int, constant: float) -> None:
    network = Shifted(SeparableGumbel(dim), constant)
    quadrature = prepared(dim)
    for log_partition in (quadrature.evaluate(potential_of(network)).log_partition, quadrature(potential_of(network))):
        assert log_partition.dtype == torch.float64
        assert float(log_partition.detach()) == pytest.approx(-constant, abs=1e-3)


@pytest.mark.parametrize("activation", ["softplus", "relu"])
@pytest.mark.parametrize("dim", [1, 2])
def test_gradient_of_a_network_against_a_fine_grid_in_float64(dim: int, activation: str) -> None:
    torch.manual_seed(1)
    network = ICNN(dim, (12, 12), activation=activation, strong_convexity=0.05, bias_std=1.0, free_weight_std=1.0)
    exact, quadrature = copy.deepcopy(network).double(), Quadrature(num_points=2401 if dim == 1 else 193)
    quadrature.prepare(OPEN[dim], None)

    def gradient(found: Tensor, of: ICNN) -> Tensor:
        parts = torch.autograd.grad(found, list(of.parameters()), allow_unused=True)
        return torch.cat([part.flatten().double() for part in parts if part is not None])

    expected = gradient(quadrature(potential_of(exact)), exact)
    found = gradient(prepared(dim)(potential_of(network)), network)
    assert float((found - expected).norm()) <= 3e-3 * float(expected.norm())


def test_a_kink_on_few_points_is_refined_and_then_said_not_to_be_trusted() -> None:
    network = Oblique(LaplaceEnergy, 0.4, (1.0, 1.0))
    coarse = prepared(2, num_points=5, evaluation_points=5)
    with pytest.warns(UserWarning, match="quadrature_error is .* nats .at most 0.05.; raise evaluation_points"):
        estimate = coarse.evaluate(potential_of(network))
    assert estimate.diagnostics["log_partition_trusted"] == 0.0
    assert abs(float(estimate.log_partition) - network.log_partition) <= estimate.diagnostics["quadrature_error"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = prepared(2, num_points=17, evaluation_points=65).evaluate(potential_of(network))
    assert fine.diagnostics["log_partition_trusted"] == 1.0
    assert fine.diagnostics["training_quadrature_error"] <= 0.05


def test_the_training_grid_that_was_refined_goes_through_a_checkpoint_and_back_to_few_points() -> None:
    quadrature = prepared(2)
    sharp, smooth = potential_of(LaplaceEnergy(2)), potential_of(Quadratic(2))
    quadrature(sharp)
    again = Quadrature()
    again.load_state_dict(quadrature.state_dict())
    again.prepare(OPEN[2], None)
    assert torch.equal(again(sharp), quadrature(sharp))
    assert quadrature.get_extra_state()["refined"] == 1
    quadrature(smooth), quadrature(smooth)
    assert quadrature.get_extra_state()["refined"] == 0


def test_a_window_of_an_older_checkpoint_is_taken_over() -> None:
    quadrature = Quadrature()
    quadrature.set_extra_state({"window": torch.tensor([[20.0], [40.0]]), "support": OPEN[1]})
    quadrature.prepare(OPEN[1], torch.tensor([[-1.0], [1.0]]))
    assert quadrature.window.flatten().tolist() == [20.0, 40.0]
    assert float(quadrature(potential_of(Quadratic(1, 30.0))).detach()) == pytest.approx(0.9189385, abs=1e-5)
