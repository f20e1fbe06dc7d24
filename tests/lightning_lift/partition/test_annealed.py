import math
import warnings

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from lightning_lift.modules.factories import factory
from lightning_lift.networks import ICNN
from lightning_lift.partition import AnnealedImportanceSampling, Partition, Quadrature
from lightning_lift.partition.importance_weights import log_mean, systematic
from lightning_lift.potential import Potential
from tests.problems import (
    CorrelatedQuadratic,
    ExponentialEnergy,
    GammaEnergy,
    LaplaceEnergy,
    LogisticEnergy,
    Quadratic,
    SeparableGumbel,
    Shifted,
    potential_of,
)

BOUNDED = (GammaEnergy, ExponentialEnergy)


def prepared(network: torch.nn.Module, **arguments: object) -> tuple[AnnealedImportanceSampling, Potential]:
    estimator = AnnealedImportanceSampling(**{"num_temperatures": 150, **arguments})
    low = network.mean if isinstance(network, BOUNDED) else -math.inf
    estimator.prepare(torch.tensor([[low], [math.inf]]).expand(2, network.dim), None)
    return estimator, potential_of(network)


@pytest.mark.parametrize("dim", [2, 8, 21, 32])
@pytest.mark.parametrize("energy", [SeparableGumbel, LogisticEnergy, LaplaceEnergy, GammaEnergy, ExponentialEnergy])
def test_known_partition_functions(energy: type, dim: int) -> None:
    network = energy(dim, mean=0.5, sd=0.7)
    estimator, potential = prepared(network)
    estimate = estimator.evaluate(potential)
    error = float(estimate.log_partition) - network.log_partition
    figures = estimate.diagnostics
    assert abs(error) < 0.1
    assert abs(error) < 3.0 * figures["log_partition_standard_error"]
    assert figures["log_partition_standard_error"] < 0.05
    assert figures["effective_sample_size"] > 300
    # Both bounds have about the same standard error.
    room = 3.0 * figures["log_partition_standard_error"]
    assert float(estimate.log_partition) - room < network.log_partition < figures["log_partition_upper"] + room
    assert figures["log_partition_trusted"] == 1.0


@pytest.mark.parametrize("dim", [2, 8, 21, 32])
def test_a_quadratic_energy_is_exact(dim: int) -> None:
    network = CorrelatedQuadratic(dim, condition=10.0, mean=1.5)
    estimator, potential = prepared(network, num_temperatures=10)
    estimate = estimator.evaluate(potential)
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=2e-5)
    assert estimate.diagnostics["log_partition_standard_error"] < 1e-5
    assert estimate.diagnostics["bracket_width"] < 2e-5
    assert estimate.diagnostics["effective_sample_size"] == pytest.approx(512, rel=1e-5)
    assert estimate.diagnostics["laplace_start"] == 1.0


@pytest.mark.filterwarnings("ignore:log Z = .* is not to be trusted")
def test_the_standard_error_is_that_of_repetitions() -> None:
    network = SeparableGumbel(8)
    values, errors = [], []
    for seed in range(24):
        estimator, potential = prepared(network, num_temperatures=40, num_chains=128, bracket=False, seed=seed)
        estimate = estimator.evaluate(potential)
        values.append(float(estimate.log_partition))
        errors.append(estimate.diagnostics["log_partition_standard_error"])
    spread, mean = torch.tensor(values).std(), sum(values) / 24
    # 24 values: their standard deviation has a relative standard error of 15 %
    assert float(spread) == pytest.approx(sum(errors) / 24, rel=0.5)
    assert abs(mean - network.log_partition) < 4.0 * float(spread) / math.sqrt(24)


@pytest.mark.parametrize("activation", ["softplus", "relu"])
def test_a_convex_network_against_quadrature(activation: str) -> None:
    torch.manual_seed(0)
    network = ICNN(2, [32, 32], activation=activation, divide_by_fan_in=True, free_weight_std=2.0, bias_std=2.0)
    quadrature = Quadrature(evaluation_points=513)
    quadrature.prepare(torch.tensor([[-math.inf] * 2, [math.inf] * 2]), None)
    network.mean = None
    estimator, potential = prepared(network)
    expected = quadrature.evaluate(potential)
    found = estimator.evaluate(potential)
    assert found.log_partition.dtype == torch.float32
    error = found.diagnostics["log_partition_standard_error"]
    assert float(found.log_partition) == pytest.approx(float(expected.log_partition), abs=3.0 * error + 1e-3)
    assert error < 0.02


def test_the_same_potential_gives_the_same_numbers_and_no_other_generator_moves() -> None:
    estimator, potential = prepared(SeparableGumbel(4), num_temperatures=20)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = estimator.evaluate(potential)
    assert torch.equal(torch.get_rng_state(), before)
    assert estimator.evaluate(potential) is one, "remembered"
    again, _ = prepared(SeparableGumbel(4), num_temperatures=20)
    assert torch.equal(again.evaluate(potential).log_partition, one.log_partition)
    with torch.no_grad():
        potential.weights["stiffness"].mul_(2.0)
    moved = estimator.evaluate(potential)
    assert not torch.equal(moved.log_partition, one.log_partition), "weights changed in place are seen"
    # exp(-2 (z + e^-z)) integrates to Gamma(2) / 2^2
    assert float(moved.log_partition) == pytest.approx(4 * math.log(0.25), abs=0.1)


def test_validation_is_cheaper_and_one_way() -> None:
    estimator, potential = prepared(SeparableGumbel(8), validation_temperatures=30)
    quick = estimator.evaluate_quickly(potential)
    assert "bracket_width" not in quick.diagnostics
    assert float(quick.log_partition) == pytest.approx(0.0, abs=4.0 * quick.diagnostics["log_partition_standard_error"])


def test_too_few_temperatures_are_seen_by_the_figures_and_warned_of() -> None:
    estimator, potential = prepared(LaplaceEnergy(32), num_temperatures=1, num_chains=64)
    with pytest.warns(UserWarning, match="not to be trusted: its standard error"):
        estimate = estimator.evaluate(potential)
    assert estimate.diagnostics["log_partition_trusted"] == 0.0
    assert estimate.diagnostics["bracket_width"] > 0.1


def test_a_diverged_model_is_not_a_number() -> None:
    network = SeparableGumbel(3)
    with torch.no_grad():
        network.stiffness.fill_(math.nan)
    estimator, potential = prepared(network)
    estimate = estimator.evaluate(potential)
    assert math.isnan(float(estimate.log_partition))
    assert estimate.diagnostics["log_partition_trusted"] == 0.0


@pytest.mark.parametrize("energy", [CorrelatedQuadratic, SeparableGumbel, GammaEnergy])
@pytest.mark.parametrize("count", [1, 3000])
def test_draws(energy: type, count: int) -> None:
    estimator, potential = prepared(energy(6))
    x = estimator.sample(potential, count, torch.Generator().manual_seed(4))
    assert x.shape == (count, 6)
    assert torch.equal(x, estimator.sample(potential, count, torch.Generator().manual_seed(4)))
    assert not torch.equal(x, estimator.sample(potential, count, torch.Generator().manual_seed(5)))
    figures = estimator.sampling_diagnostics
    assert figures["r_hat"] < 1.05
    if count == 1:
        return
    if energy is CorrelatedQuadratic:
        expected = torch.linalg.inv(potential.network.precision)
        torch.testing.assert_close(torch.cov(x.T), expected, rtol=0.2, atol=0.05)
    else:
        mean, variance = (0.57722, math.pi**2 / 6) if energy is SeparableGumbel else (2.0, 2.0)
        assert float(x.mean()) == pytest.approx(mean, abs=5.0 * math.sqrt(variance / count / 6))
        assert float(x.var(0).mean()) == pytest.approx(variance, rel=0.1)


def test_chains_that_have_not_mixed_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_lift.partition import hmc

    estimator, potential = prepared(CorrelatedQuadratic(8, condition=1e4))
    monkeypatch.setattr(hmc, "quarter_turn", lambda step_size: 1)
    monkeypatch.setattr(hmc, "adapted", lambda *_, **__: 0.05)
    with pytest.warns(UserWarning, match="have not mixed: R-hat"):
        estimator.sample(potential, 200, torch.Generator().manual_seed(0))


def test_it_does_not_train() -> None:
    estimator, potential = prepared(Quadratic(3))
    with pytest.raises(NotImplementedError, match="train with partition Langevin"):
        estimator(potential)
    with pytest.raises(RuntimeError, match="knows no support yet"):
        AnnealedImportanceSampling().evaluate(potential)


@pytest.mark.parametrize("name", ["num_chains", "num_temperatures", "validation_temperatures", "num_leapfrog"])
def test_numbers_below_their_least_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        AnnealedImportanceSampling(**{name: 0})


def test_log_mean_of_known_weights() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    value, error, size = log_mean(weights.log() + 1000.0)
    assert value == pytest.approx(math.log(3.0) + 1000.0)
    assert error == pytest.approx(float(weights.std()) / 3.0 / 2.0)
    assert size == pytest.approx(144.0 / 50.0)
    nothing = log_mean(torch.full((4,), -math.inf, dtype=torch.float64))
    assert nothing[0] == -math.inf


def test_systematic_resampling_takes_each_in_proportion() -> None:
    weights = torch.tensor([0.0, 0.1, 0.4, 0.5], dtype=torch.float64)
    positions: Tensor = systematic(weights.log(), 1000, torch.Generator().manual_seed(0))
    counts = torch.bincount(positions, minlength=4)
    assert (counts - 1000 * weights).abs().max() <= 1


def test_under_inference_mode_without_warnings() -> None:
    estimator, potential = prepared(GammaEnergy(3), num_temperatures=10)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = estimator.evaluate(potential)
    fresh, _ = prepared(GammaEnergy(3), num_temperatures=10)
    assert torch.equal(fresh.evaluate(potential).log_partition, inside.log_partition)


@pytest.mark.parametrize("module", ["lightning_lift.partition", "lightning_lift.partition.annealed"])
def test_the_former_name_still_resolves(module: str) -> None:
    former = factory(
        "evaluation", {"class_path": f"{module}.AnnealedImportance", "init_args": {"num_chains": 32}}, Partition
    )()
    assert isinstance(former, AnnealedImportanceSampling)
    assert former.num_chains == 32


def test_the_former_name_still_resolves_on_the_command_line() -> None:
    parser = ArgumentParser()
    parser.add_subclass_arguments(Partition, "evaluation")
    settings = parser.parse_args(["--evaluation", "AnnealedImportance", "--evaluation.num_chains", "32"])
    assert isinstance(parser.instantiate(settings).evaluation, AnnealedImportanceSampling)


@pytest.mark.filterwarnings("ignore:log Z = .* is not to be trusted")
def test_the_upper_bound_has_a_standard_error_and_the_width_a_sign() -> None:
    """Small runs: the bound lies on the wrong side about as often as its error says, and the width is what is left."""
    network = SeparableGumbel(2)
    deviations, widths = [], []
    for seed in range(12):
        estimator, potential = prepared(network, num_temperatures=12, num_chains=32, seed=seed)
        figures = estimator.evaluate(potential).diagnostics
        upper, error = figures["log_partition_upper"], figures["log_partition_upper_standard_error"]
        deviations.append((upper - network.log_partition) / error)
        widths.append(figures["bracket_width"])
        value = float(estimator.evaluate(potential).log_partition)
        assert figures["bracket_width"] == pytest.approx(upper - value, abs=1e-5)
    spread = torch.tensor(deviations)
    assert float(spread.square().mean().sqrt()) < 2.0
    assert float(spread.min()) > -4.0
    assert min(widths) < 0.0 < max(widths)


@pytest.mark.parametrize("constant", [1e6, -1e6])
def test_a_large_constant_in_a_float32_energy_moves_log_z_by_just_that(constant: float) -> None:
    inner = CorrelatedQuadratic(3)
    network = Shifted(inner, constant)
    estimator, potential = prepared(network, num_temperatures=10)
    estimate = estimator.evaluate(potential)
    assert estimate.log_partition.dtype == torch.float64
    # the precision matrix is stated in float32, and so is its determinant
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=1e-5)
    x = estimator.sample(potential, 2000, torch.Generator().manual_seed(0))
    assert x.dtype == torch.float32
    torch.testing.assert_close(torch.cov(x.T), torch.linalg.inv(inner.precision), rtol=0.2, atol=0.05)


def test_narrow_chains_far_from_0_are_run_in_float64() -> None:
    network = SeparableGumbel(2, 1e4, 1e-2)
    estimator = AnnealedImportanceSampling(num_temperatures=60)
    window = torch.tensor([[1e4 - 1.0] * 2, [1e4 + 1.0] * 2])
    estimator.prepare(torch.tensor([[-math.inf] * 2, [math.inf] * 2]), window)
    estimate = estimator.evaluate(potential_of(network))
    error = estimate.diagnostics["log_partition_standard_error"]
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=4.0 * error)
    x = estimator.sample(potential_of(network), 1000, torch.Generator().manual_seed(0)).double()
    assert x.std(0).tolist() == pytest.approx([1e-2 * math.pi / math.sqrt(6.0)] * 2, rel=0.15)
