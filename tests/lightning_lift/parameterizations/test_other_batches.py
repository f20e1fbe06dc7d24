import copy
import functools

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.diagnostics import collect, undisturbed
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import FrozenBatch, IndependentBatch, Lift, Parameterization, other_batches
from lightning_lift.parameterizations.other_batches import joined_rows, same_rows
from lightning_lift.testing import ParameterizationContract

BODY = (16, 8)


class TestFrozenBatch(ParameterizationContract):
    def make(self) -> Parameterization:
        return FrozenBatch(BODY)


class TestFrozenBatchOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return FrozenBatch(BODY, emission_width=12, emit="all")


class TestIndependentBatch(ParameterizationContract):
    def make(self) -> Parameterization:
        return IndependentBatch(BODY)


class TestIndependentBatchOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return IndependentBatch(BODY, emission_width=12, emit="all")


def bound(kind: type[Lift]) -> Lift:
    torch.manual_seed(0)
    return kind(BODY, slack_start=-2.0).bind(ICNN(2, (8, 8)))


def batches(count: int, rows: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 2, generator=generator) for _ in range(count)]


def module_of(kind: type[Lift]) -> LogConcaveEBM:
    torch.manual_seed(0)
    parameterization = functools.partial(kind, body_widths=BODY, slack_start=-2.0)
    return LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), parameterization)


# -- the frozen batch -------------------------------------------------------------------------------------------------


def test_the_first_batch_is_the_one_that_stays() -> None:
    frozen, lift = bound(FrozenBatch), bound(Lift)
    first, *others = batches(3)
    expected = lift.latent(first)
    assert torch.equal(frozen.latent(first), expected)
    assert all(torch.equal(frozen.latent(batch), expected) for batch in others)
    assert not frozen.is_stale
    torch.testing.assert_close(frozen.eval().latent(), expected)


def test_the_body_is_trained_and_evaluation_follows_it_without_calibration() -> None:
    frozen = bound(FrozenBatch)
    first, second = batches(2)
    frozen.latent(first)
    frozen.latent(second).square().sum().backward()
    assert all(p.grad is not None and float(p.grad.norm()) > 0 for p in frozen.body.parameters())
    torch.optim.SGD(frozen.parameters(), lr=0.1).step()
    assert not frozen.is_stale
    torch.testing.assert_close(frozen.latent(second), frozen.eval().latent())


def test_the_frozen_rows_are_a_copy() -> None:
    frozen = bound(FrozenBatch)
    (batch,) = batches(1)
    before = frozen.latent(batch).detach().clone()
    batch.zero_()
    assert torch.equal(frozen.latent(batch), before)


def test_before_training_evaluation_is_the_lifts() -> None:
    frozen, lift = bound(FrozenBatch), bound(Lift)
    assert frozen.is_stale
    with pytest.raises(RuntimeError, match="calibrate"):
        frozen.eval().latent()
    for part in (frozen, lift):
        part.calibrate(batches(2))
    assert torch.equal(frozen.latent(), lift.eval().latent())
    with pytest.raises(ValueError, match=r"eval\(\)"):
        frozen.train().latent()


def test_a_probe_freezes_nothing_and_reads_a_constant_latent() -> None:
    module = module_of(FrozenBatch)
    rows = collect(module, batches(4))
    assert bool((rows.latents == rows.latents[:1]).all())
    assert module.parameterization.get_extra_state()["frozen"] is None


def test_averaged_weights_get_the_frozen_batch_too() -> None:
    """Weight averaging keeps a copy made before training, which has seen no batch."""
    frozen = bound(FrozenBatch)
    state = {f"p.{name}": value for name, value in copy.deepcopy(frozen.state_dict()).items()}
    assert frozen.is_state_stale(state, "p.")
    frozen.latent(batches(1)[0])
    frozen.calibrate_state(state, "p.", [])
    assert not frozen.is_state_stale(state, "p.")
    assert same_rows(state["p._extra_state"]["frozen"], batches(1)[0])


# -- the batch before -------------------------------------------------------------------------------------------------


def codes_of() -> list[Tensor]:
    """What the lift makes of each of the six batches."""
    reference = bound(Lift)
    return [reference.latent(batch) for batch in batches(6)]


def test_the_code_is_that_of_the_batch_before() -> None:
    lift = bound(IndependentBatch)
    expected = codes_of()
    found = [lift.latent(batch) for batch in batches(6)]
    assert torch.equal(found[0], expected[0]), "the first batch has none before it"
    for number in range(1, 6):
        assert torch.equal(found[number], expected[number - 1])


def test_readings_of_one_batch_in_a_row_do_not_shift_the_memory() -> None:
    lift = bound(IndependentBatch)
    expected = codes_of()
    one, two, three = batches(3)
    lift.latent(one)
    for reading in (two, two.clone(), two):
        assert torch.equal(lift.latent(reading), expected[0])
        assert torch.equal(lift.code(reading), lift.code(reading))
    assert torch.equal(lift.latent(three), expected[1])


def test_the_memory_is_a_copy() -> None:
    lift = bound(IndependentBatch)
    expected = codes_of()
    one, two, *_ = batches(2)
    lift.latent(one)
    one.zero_()  # a loader may write the next batch into the same memory
    assert torch.equal(lift.latent(two), expected[0])


def test_a_probe_sees_each_batch_with_the_code_of_the_one_before_and_leaves_the_memory() -> None:
    module = module_of(IndependentBatch)
    before, *probes = batches(5)
    parameterization = module.parameterization
    assert isinstance(parameterization, IndependentBatch)
    parameterization.latent(before)
    state = copy.deepcopy(parameterization.get_extra_state())
    rows = collect(module, probes)
    with undisturbed(module):
        reference = [Lift.latent(_as_lift(parameterization), batch).detach() for batch in (before, *probes)]
    for number in range(len(probes)):
        torch.testing.assert_close(rows.latents[number], reference[number], rtol=0.0, atol=0.0)
    # The gradients are those of the probe's own batch at that latent.
    for number, probe in enumerate(probes):
        latent = reference[number].requires_grad_()
        (gradient,) = torch.autograd.grad(module.batch_loss(probe, latent), latent)
        torch.testing.assert_close(rows.gradients[number], gradient)
    after = parameterization.get_extra_state()
    assert same_rows(after["current"], state["current"])
    assert after["previous"] is state["previous"] is None


def _as_lift(parameterization: Lift) -> Lift:
    lift = bound(Lift)
    lift.load_state_dict(
        {**parameterization.state_dict(), "_extra_state": {"reference_summary": None, "fingerprint": None}}
    )
    return lift


def test_the_memory_travels_in_the_state() -> None:
    lift, other = bound(IndependentBatch), bound(IndependentBatch)
    one, two, three, *_ = batches(3)
    for batch in (one, two):
        lift.latent(batch)
    other.load_state_dict(copy.deepcopy(lift.state_dict()))
    assert torch.equal(other.latent(two), lift.latent(two))
    assert torch.equal(other.latent(three), lift.latent(three))


def test_the_memory_holds_the_rows_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is written by one process, and every process goes on from it."""
    others = batches(4)[3]
    monkeypatch.setattr(other_batches, "joined_rows", lambda rows: torch.cat([rows, others]))
    lift, reference = bound(IndependentBatch), bound(Lift)
    one, two, *_ = batches(2)
    lift.latent(one)
    expected = reference.latent(torch.cat([one, others]))
    torch.testing.assert_close(lift.latent(two), expected)
    torch.testing.assert_close(lift.latent(two), expected)
    assert same_rows(lift.get_extra_state()["previous"], torch.cat([one, others]))


def test_calibrating_a_state_keeps_its_batches() -> None:
    lift = bound(IndependentBatch)
    lift.latent(batches(1)[0])
    state = {f"p.{name}": value for name, value in copy.deepcopy(lift.state_dict()).items()}
    lift.calibrate_state(state, "p.", batches(2))
    assert not lift.is_state_stale(state, "p.")
    other = bound(IndependentBatch)
    other.load_state_dict({name[2:]: value for name, value in state.items()})
    assert same_rows(other.get_extra_state()["current"], batches(1)[0])
    assert not other.is_stale


@pytest.mark.parametrize("kind", [FrozenBatch, IndependentBatch])
def test_a_fit_with_sanity_check_validation_and_test(kind: type[Lift]) -> None:
    L.seed_everything(0, verbose=False)
    network = functools.partial(ICNN, widths=[8, 8])
    module = LogConcaveEBM(1, network, functools.partial(kind, body_widths=BODY), learning_rate=1e-2)
    data = GumbelDataModule(batch_size=16, batches_per_epoch=6, num_val=64, num_test=64, num_calibration=64)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    assert torch.isfinite(torch.tensor(trainer.test(module, datamodule=data, verbose=False)[0]["test/nll"]))
    frozen = module.freeze()
    assert torch.isfinite(frozen.log_prob(torch.zeros(3, 1))).all()


def test_rows_of_one_process_are_a_copy() -> None:
    rows = torch.randn(3, 2)
    joined = joined_rows(rows)
    assert torch.equal(joined, rows)
    assert joined.data_ptr() != rows.data_ptr()
