import copy
import functools
import math
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_lift.datamodules import GammaDataModule
from lightning_lift.diagnostics import undisturbed
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition import FlowImportance
from lightning_lift.potential import Potential
from tests.problems import CorrelatedQuadratic, GammaEnergy, Quadratic, SeparableGumbel, Shifted, potential_of


def prepared(network: torch.nn.Module, **arguments: object) -> tuple[FlowImportance, Potential]:
    low = network.mean if isinstance(network, GammaEnergy) else -math.inf
    partition = FlowImportance(**arguments)
    partition.prepare(torch.tensor([[low], [math.inf]]).expand(2, network.dim), None)
    return partition, potential_of(network)


SMALL = {"hidden_features": 16, "num_layers": 2}
CHEAP = {"flow": "maf", "hidden_features": 8, "num_layers": 2, "flow_batch_size": 64, "evaluation_samples": 1024}


@pytest.mark.parametrize(
    ("energy", "dim", "flow"),
    [
        (CorrelatedQuadratic, 4, "rq_nsf_autoregressive"),
        (CorrelatedQuadratic, 8, "maf"),
        (SeparableGumbel, 1, "rq_nsf_autoregressive"),
        (SeparableGumbel, 2, "rq_nsf_coupling"),
        (SeparableGumbel, 6, "rq_nsf_autoregressive"),
        (GammaEnergy, 3, "rq_nsf_autoregressive"),
    ],
)
def test_known_log_partition_within_three_standard_errors(energy: type, dim: int, flow: str) -> None:
    network = energy(dim)
    partition, potential = prepared(network, flow=flow, warm_up=100, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = partition.evaluate(potential)
    figures = estimate.diagnostics
    error = figures["log_partition_standard_error"]
    assert error < 0.05
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=3.0 * error)
    # With lognormal weights KL = s^2 / 2 and the efficiency is exp(-s^2): the two figures must tell the same story.
    efficiency = figures["effective_sample_size"] / partition.evaluation_samples
    assert efficiency > 0.1
    assert figures["flow_relative_entropy"] > 0.0


@pytest.mark.parametrize(
    ("energy", "dim", "expected", "deviation"),
    [
        (CorrelatedQuadratic, 4, 2.0, math.sqrt(2.0)),  # E is chi-square(4) / 2
        (GammaEnergy, 3, 3 * (2.0 - 0.42278), math.sqrt(3 * (2.0 + 0.64493 - 2.0))),  # z - log z under Gamma(2)
    ],
)
def test_value_and_gradient_in_the_stiffness(energy: type, dim: int, expected: float, deviation: float) -> None:
    """d log Z / d s = -E[E] at s = 1, and the value is log Z."""
    network = energy(dim)
    partition, potential = prepared(network, warm_up=80, max_flow_steps=5, **SMALL)
    slopes, values = [], []
    for _ in range(20):
        value = partition(potential)
        (slope,) = torch.autograd.grad(value, network.stiffness)
        slopes.append(float(slope))
        values.append(float(value.detach()))
    efficiency = partition.diagnostics()["flow_efficiency"]
    assert efficiency > 0.3
    error = 1.0 / math.sqrt(20 * 512 * efficiency)
    assert sum(slopes) / 20 == pytest.approx(-expected, abs=4.0 * deviation * error)
    assert sum(values) / 20 == pytest.approx(network.log_partition, abs=4.0 * error)


def test_the_flow_follows_a_density_that_moves_and_narrows() -> None:
    network = CorrelatedQuadratic(3, condition=2.0)
    partition, potential = prepared(network, warm_up=50, **CHEAP)
    with torch.no_grad():
        partition(potential)
        for step in range(40):
            network.mean = 0.05 * step
            network.stiffness.mul_(1.05)
            value = float(partition(potential))
    expected = network.log_partition - 1.5 * math.log(float(network.stiffness.detach()))
    assert expected < network.log_partition - 2.0
    assert value == pytest.approx(expected, abs=0.25)
    assert partition.diagnostics()["flow_efficiency"] > 0.5


def test_one_flow_step_where_the_flow_is_good_and_most_where_it_is_not() -> None:
    network = Quadratic(2)
    easy, potential = prepared(network, warm_up=100, relative_entropy=0.2, **CHEAP)
    strict, _ = prepared(network, warm_up=0, max_flow_steps=2, relative_entropy=1e-9, **CHEAP)
    with torch.no_grad():
        for _ in range(60):
            easy(potential)
            strict(potential)
    assert easy.diagnostics()["flow_steps"] < 1.1
    assert easy.diagnostics()["training_relative_entropy"] < 0.2
    assert strict.diagnostics()["flow_steps"] == pytest.approx(2.0 - 0.95**60, abs=1e-6)


def test_an_untrained_flow_is_flagged_and_its_estimate_is_low() -> None:
    network = Quadratic(6)
    partition, potential = prepared(network, warm_up=0, max_flow_steps=1, **CHEAP)
    with torch.no_grad():
        partition(potential)
    network.sd = 4.0  # the flow has not followed
    with pytest.warns(UserWarning, match="biased low"):
        estimate = partition.evaluate_quickly(potential)
    figures = estimate.diagnostics
    assert figures["log_partition_trusted"] == 0.0
    assert figures["effective_sample_size"] < 0.1 * partition.evaluation_samples
    assert float(estimate.log_partition) < network.log_partition


def test_a_flow_that_cannot_follow_is_warned_of_once() -> None:
    network = Quadratic(6)
    arguments = {**CHEAP, "learning_rate": 1e-9, "num_samples": 64}
    partition, potential = prepared(network, warm_up=0, max_flow_steps=1, **arguments)
    with torch.no_grad():
        partition(potential)
        network.sd = 6.0
        with pytest.warns(UserWarning, match="are not to be trusted") as caught:
            for _ in range(130):
                partition(potential)
    assert len([w for w in caught if "effective" in str(w.message)]) == 1


def test_evaluation_is_repeatable_and_spares_the_training_state() -> None:
    network = CorrelatedQuadratic(3)
    partition, potential = prepared(network, warm_up=30, **CHEAP)
    partition(potential)
    before = partition.get_extra_state()
    with torch.inference_mode():
        first = partition.evaluate(potential)
        assert partition.evaluate(potential) is first
    assert_equal(before, partition.get_extra_state())
    partition._memory.clear()
    assert float(partition.evaluate(potential).log_partition) == float(first.log_partition)
    torch.autograd.grad(partition(potential), network.stiffness)
    assert partition.evaluate(potential) is not first


def test_the_global_random_state_is_left_alone() -> None:
    partition, potential = prepared(Quadratic(2), warm_up=5, **CHEAP)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    partition(potential)
    partition.evaluate_quickly(potential)
    assert torch.equal(state, torch.get_rng_state())


def test_a_diagnostic_can_put_the_flow_back() -> None:
    partition, potential = prepared(SeparableGumbel(3), warm_up=20, **CHEAP)
    partition(potential)
    with undisturbed(partition):
        first = [float(partition(potential).detach()) for _ in range(3)]
    assert [float(partition(potential).detach()) for _ in range(3)] == first


def test_a_state_can_be_stored_with_weights_only_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    partition, potential = prepared(SeparableGumbel(3), warm_up=20, **CHEAP)
    partition(potential)
    torch.save(partition.get_extra_state(), tmp_path / "state.pt")
    other, _ = prepared(SeparableGumbel(3), warm_up=20, **CHEAP)
    other.set_extra_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(3):
        assert torch.equal(partition(potential), other(potential))
    assert_equal(partition.get_extra_state(), other.get_extra_state())


def test_the_flow_changes_precision_with_the_energy() -> None:
    network = Quadratic(2)
    partition, potential = prepared(network, warm_up=100, **CHEAP)
    partition(potential)
    value = partition(potential_of(copy.deepcopy(network).double()))
    assert value.dtype == torch.float64
    assert float(value.detach()) == pytest.approx(network.log_partition, abs=0.1)


def test_a_diverged_model_gives_no_number_and_keeps_the_flow() -> None:
    network = CorrelatedQuadratic(3)
    partition, potential = prepared(network, warm_up=50, **CHEAP)
    partition(potential)
    with torch.no_grad():
        network.stiffness.fill_(math.nan)
    loss = partition(potential)
    assert math.isnan(float(loss.detach()))
    assert loss.requires_grad
    assert math.isnan(float(partition.evaluate(potential).log_partition))
    with torch.no_grad():
        network.stiffness.fill_(1.0)
    assert float(partition(potential).detach()) == pytest.approx(network.log_partition, abs=0.15)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_samples", 8),
        ("evaluation_samples", 100),
        ("flow_batch_size", 1),
        ("warm_up", -1),
        ("max_flow_steps", 0),
        ("learning_rate", 0.0),
        ("relative_entropy", math.nan),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        FlowImportance(**{name: value})


def test_a_coupling_flow_on_one_column_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="couples columns"):
        prepared(Quadratic(1), flow="realnvp")


ARMS = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": Lift}


@pytest.mark.parametrize("arm", list(ARMS))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(arm: str, tmp_path: Path) -> None:
    factory = functools.partial(FlowImportance, num_samples=64, warm_up=10, max_flow_steps=3, **CHEAP)

    def run(folder: Path, ckpt_path: Path | None = None) -> dict[str, object]:
        L.seed_everything(0, verbose=False)
        module = LogConcaveEBM(1, functools.partial(ICNN, widths=[8, 8]), ARMS[arm], factory)
        names = {name for name, _ in module.named_parameters()}
        data = GammaDataModule(batch_size=16, batches_per_epoch=6, num_val=64, num_test=64, num_calibration=64)
        keep = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        trainer = L.Trainer(
            max_epochs=2,
            callbacks=[keep],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
        assert {name for name, _ in module.named_parameters()} == names  # no parameter of the flow
        stepped = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
        assert stepped == {id(p) for p in module.parameters()}
        last: dict[str, object] = torch.load(folder / "step=12.ckpt", weights_only=True)["state_dict"]
        return last

    # In folders of their own: in one, the second run's files get a version in their names, and the first's are read.
    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", tmp_path / "whole" / "step=4.ckpt")
    assert whole["partition._extra_state"]["state"]["calls"] == 12
    assert not any(name.startswith("partition.") and name != "partition._extra_state" for name in whole)
    assert_equal(whole, resumed)


def assert_equal(one: object, two: object, path: str = "") -> None:
    assert type(one) is type(two), path
    if isinstance(one, dict):
        assert one.keys() == two.keys(), path
        for key in one:
            assert_equal(one[key], two[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), path
        for index, pair in enumerate(zip(one, two, strict=True)):
            assert_equal(*pair, f"{path}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), path
    else:
        assert one == two, path


@pytest.mark.filterwarnings("ignore:log Z = .* is not to be trusted")
@pytest.mark.parametrize("constant", [1e6, -1e6])
def test_a_large_constant_in_a_float32_energy_moves_log_z_by_just_that(constant: float) -> None:
    network = Shifted(CorrelatedQuadratic(2), constant)
    partition, potential = prepared(network, warm_up=30, **CHEAP)
    estimate = partition.evaluate(potential)
    trained = partition(potential)
    assert estimate.log_partition.dtype == trained.dtype == torch.float64
    error = estimate.diagnostics["log_partition_standard_error"]
    assert error < 0.03, "the weights carry no round-off of the constant"
    assert float(estimate.log_partition) == pytest.approx(network.log_partition, abs=4.0 * error + 1e-3)
    assert float(trained.detach()) == pytest.approx(network.log_partition, abs=6.0 * error + 1e-3)
