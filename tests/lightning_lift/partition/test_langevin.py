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
from lightning_lift.partition import Langevin, langevin
from lightning_lift.potential import Potential
from tests.problems import CorrelatedQuadratic, GammaEnergy, SeparableGumbel, potential_of


def prepared(network: torch.nn.Module, **arguments: object) -> tuple[Langevin, Potential]:
    low = network.mean if isinstance(network, GammaEnergy) else -math.inf
    partition = Langevin(**arguments)
    partition.prepare(torch.tensor([[low], [math.inf]]).expand(2, network.dim), None)
    return partition, potential_of(network)


@pytest.mark.parametrize(
    ("energy", "dim", "expected", "deviation"),
    [
        (CorrelatedQuadratic, 8, 4.0, 2.0),  # E is chi-square(8) / 2
        (GammaEnergy, 5, 5 * (2.0 - 0.42278), math.sqrt(5 * (2.0 + 0.64493 - 2.0))),  # z - log z under Gamma(2)
        (SeparableGumbel, 3, 3 * (0.57722 + 1.0), math.sqrt(3 * (math.pi**2 / 6 + 1.0 - 2.0))),
    ],
)
def test_value_and_gradient_in_the_stiffness(energy: type, dim: int, expected: float, deviation: float) -> None:
    """d log Z / d s = -E[E] at s = 1; the value is minus the mean energy of the chains, no log Z."""
    network = energy(dim)
    partition, potential = prepared(network, num_chains=256)
    slopes = []
    for _ in range(40):
        value = partition(potential)
        (slope,) = torch.autograd.grad(value, network.stiffness)
        assert float(value.detach()) == pytest.approx(float(slope), rel=1e-5)
        slopes.append(float(slope))
    # 40 calls of 256 chains, five steps apart: as good as about a quarter as many independent draws
    error = deviation / math.sqrt(256 * 10)
    assert sum(slopes) / 40 == pytest.approx(-expected, abs=4.0 * error)


def test_the_chains_follow_a_density_that_moves_and_narrows() -> None:
    network = CorrelatedQuadratic(4, condition=2.0)
    partition, potential = prepared(network)
    partition(potential)
    with torch.no_grad():
        for step in range(100):
            network.mean = 0.1 * step
            network.stiffness.mul_(1.03)
            partition(potential)
    stiffness = float(network.stiffness)
    assert stiffness > 15
    energies = [float(partition(potential).detach()) for _ in range(40)][20:]
    assert sum(energies) / 20 == pytest.approx(-2.0, abs=0.15)
    figures = partition.diagnostics()
    assert figures["chain_acceptance"] == pytest.approx(0.57, abs=0.1)


def test_diagnostics_of_settled_chains() -> None:
    partition, potential = prepared(SeparableGumbel(4))
    assert partition.diagnostics() == {}
    for _ in range(60):
        partition(potential)
    figures = partition.diagnostics()
    assert figures["chain_acceptance"] == pytest.approx(0.574, abs=0.05)
    assert 1.0 <= figures["chain_r_hat"] < 1.15
    assert 256 < figures["chain_effective_sample_size"] < 24 * 256


def test_evaluation_and_draws_are_those_of_annealed_importance() -> None:
    network = SeparableGumbel(8)
    partition, potential = prepared(network)
    partition(potential)
    before = copy.deepcopy(partition.get_extra_state())
    quick, careful = partition.evaluate_quickly(potential), partition.evaluate(potential)
    for estimate in (quick, careful):
        error = estimate.diagnostics["log_partition_standard_error"]
        assert float(estimate.log_partition) == pytest.approx(0.0, abs=4.0 * error)
    assert "bracket_width" in careful.diagnostics
    x = partition.sample(potential, 500, torch.Generator().manual_seed(0))
    assert float(x.mean()) == pytest.approx(0.577, abs=0.1)
    assert partition.sampling_diagnostics["r_hat"] < 1.05
    after = partition.get_extra_state()
    assert torch.equal(before["state"]["generator"], after["state"]["generator"])
    assert torch.equal(before["state"]["points"], after["state"]["points"])


def test_a_diagnostic_can_put_the_chains_back() -> None:
    partition, potential = prepared(SeparableGumbel(3))
    partition(potential)
    with undisturbed(partition):
        first = [float(partition(potential)) for _ in range(3)]
    assert [float(partition(potential)) for _ in range(3)] == first


def test_an_inference_mode_call_does_not_spoil_training() -> None:
    network = SeparableGumbel(3)
    partition, potential = prepared(network)
    with torch.inference_mode():
        partition(potential)
    torch.autograd.grad(partition(potential), network.stiffness)


def test_a_diverged_model_gives_no_number_and_keeps_the_chains() -> None:
    network = SeparableGumbel(3)
    partition, potential = prepared(network)
    partition(potential)
    with torch.no_grad():
        network.stiffness.fill_(math.nan)
    assert math.isnan(float(partition(potential)))
    with torch.no_grad():
        network.stiffness.fill_(1.0)
    assert float(partition(potential)) == pytest.approx(-3 * 1.577, abs=0.5)
    fresh, _ = prepared(network)
    with torch.no_grad():
        network.stiffness.fill_(math.nan)
    loss = fresh(potential)
    assert math.isnan(float(loss))
    assert loss.requires_grad


def test_an_acceptance_that_tells_nothing_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, potential = prepared(SeparableGumbel(2))
    monkeypatch.setattr(langevin, "adapted", lambda *_: 0.01)  # such steps are all accepted, and lead nowhere
    with pytest.warns(UserWarning, match="is not to be trusted") as caught:
        for _ in range(140):
            partition(potential)
    assert len([w for w in caught if "Langevin accepts" in str(w.message)]) == 1


def test_chains_that_hardly_move_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, potential = prepared(SeparableGumbel(2))
    monkeypatch.setattr(langevin, "adapted", lambda *_: 0.01)
    for _ in range(24):
        partition(potential)
    with pytest.warns(UserWarning, match="have not mixed over the last 24 steps of training: R-hat"):
        figures = partition.diagnostics()
    assert figures["chain_r_hat"] > 1.5


@pytest.mark.parametrize(("name", "value"), [("num_chains", 8), ("num_steps", 0)])
def test_numbers_below_their_least_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        Langevin(**{name: value})


ARMS = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": Lift}


@pytest.mark.parametrize("arm", list(ARMS))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(arm: str, tmp_path: Path) -> None:
    def run(folder: Path, ckpt_path: Path | None = None) -> dict[str, object]:
        L.seed_everything(0, verbose=False)
        module = LogConcaveEBM(
            1, functools.partial(ICNN, widths=[8, 8]), ARMS[arm], functools.partial(Langevin, num_chains=32)
        )
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
        last: dict[str, object] = torch.load(folder / "step=12.ckpt", weights_only=True)["state_dict"]
        return last

    # A folder each: in one, the resumed run would save under another name and the first run be compared with itself.
    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", tmp_path / "whole" / "step=4.ckpt")
    for name, tensor in whole.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, resumed[name]), name
    one, two = (state["partition._extra_state"]["state"] for state in (whole, resumed))
    assert one["calls"] == two["calls"] == 12
    for key in ("points", "covariance", "factor", "generator", "support"):
        assert torch.equal(one[key], two[key]), key
    assert one["step_size"] == two["step_size"]
    assert all(torch.equal(a, b) for a, b in zip(one["history"], two["history"], strict=True))


def test_ranks_have_chains_of_their_own_and_diverge_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    network = SeparableGumbel(3)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    chains = []
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        partition, potential = prepared(network)
        partition(potential)
        chains.append(partition.get_extra_state()["state"]["points"])
    assert not torch.equal(*chains)
    saved = copy.deepcopy(partition.get_extra_state())
    moved = []
    for rank in (0, 1):  # both ranks load the checkpoint of one
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        partition, potential = prepared(network)
        partition.set_extra_state(copy.deepcopy(saved))
        partition(potential)
        moved.append(partition.get_extra_state()["state"]["points"])
    assert not torch.equal(*moved)
