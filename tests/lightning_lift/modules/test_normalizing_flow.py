import io
import math
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule, TabularDataModule
from lightning_lift.flows.nflows_adapter import FlowKind
from lightning_lift.modules import FrozenNormalizingFlow, NormalizingFlow
from lightning_lift.testing import ModuleContract

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_features": 12, "num_blocks": 1, "num_bins": 4}
KINDS: tuple[FlowKind, ...] = ("maf", "realnvp", "rq_nsf_coupling", "rq_nsf_autoregressive")


def plane(**arguments: Any) -> EightGaussiansDataModule:
    sizes = {"batch_size": 32, "batches_per_epoch": 150, "num_val": 100, "num_test": 100, "num_calibration": 64}
    return EightGaussiansDataModule(**{**sizes, "std": 0.5, **arguments})


def wine() -> TabularDataModule:
    columns = ["alcohol", "color_intensity", "hue"]
    return TabularDataModule(table="load_wine", columns=columns, batch_size=32)


def fitted(data: Any, steps: int = 20, **arguments: Any) -> tuple[NormalizingFlow, L.Trainer]:
    L.seed_everything(0, verbose=False)
    module = NormalizingFlow(data.dim, **{**SMALL, "learning_rate": 1e-2, **arguments})
    # Without validation: it compares model and truth on a fine grid, several times a fit.
    trainer = ModuleContract()._trainer(max_steps=steps, limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    return module, trainer


class TestSplineCoupling(ModuleContract):
    test_callbacks_can_ask_for_the_loss_at_a_given_latent = None  # type: ignore[assignment]  # it has none

    def make(self) -> Any:
        return NormalizingFlow(3, **SMALL)

    def make_data(self) -> Any:
        return wine()


class TestMAFWithBatchNormAndDropoutOnATable(TestSplineCoupling):
    def make(self) -> Any:
        return NormalizingFlow(3, "maf", batch_norm=True, dropout=0.2, mixing="random", **SMALL)


class TestAutoregressiveSplineInOneDimension(TestSplineCoupling):
    def make(self) -> Any:
        return NormalizingFlow(1, "rq_nsf_autoregressive", **SMALL)

    def make_data(self) -> Any:
        return GumbelDataModule(batch_size=32, batches_per_epoch=5, num_val=100, num_test=100)


@pytest.mark.parametrize("kind", KINDS)
def test_density_samples_and_frozen_model_agree_in_original_units(kind: FlowKind) -> None:
    data = wine()
    module, _ = fitted(data, flow=kind)
    frozen = module.freeze()
    assert isinstance(frozen, FrozenNormalizingFlow)
    x = data.split("test")
    original = data.units.invert(x)
    with torch.no_grad():
        expected = module.log_prob_scaled(x) - data.log_scale
        torch.testing.assert_close(module.log_prob(original), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(frozen.log_prob(original), expected, rtol=1e-4, atol=1e-4)
    samples = frozen.sample(200, seed=3)
    torch.testing.assert_close(samples, module.sample(200, seed=3), rtol=1e-5, atol=1e-5)
    assert (samples.mean(0) - data.location).abs().le(data.units.spread).all()
    before = frozen.log_prob(original)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(frozen.log_prob(original), before), "the frozen flow shares weights with the module"


@pytest.mark.parametrize("kind", ["maf", "realnvp"])
def test_affine_kinds_are_exported(kind: FlowKind) -> None:
    data = wine()
    module, _ = fitted(data, steps=5, flow=kind)
    frozen = module.freeze()
    rows = data.units.invert(data.split("test"))
    program = torch.export.export(frozen, (rows,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    again = torch.export.load(stored).module()
    torch.testing.assert_close(again(rows[:7]), frozen(rows[:7]), rtol=1e-5, atol=1e-5)


def test_it_learns_and_integrates_to_one() -> None:
    data = plane()
    module, trainer = fitted(data, steps=100, num_layers=2, hidden_features=24, num_bins=8)
    figures = trainer.test(module, datamodule=data, verbose=False)[0]
    assert figures["test/excess_nll"] == pytest.approx(figures["test/nll"] - data.entropy, abs=1e-4)
    variance = 2.0**2 / 2.0 + 0.5**2  # of each column
    gaussian = math.log(2.0 * math.pi * math.e * variance) - data.entropy
    assert figures["test/excess_nll"] < 0.5 * gaussian, "hardly better than the best single Gaussian"
    assert 0.0 < figures["test/inverse_error"] < 1e-3
    line = torch.linspace(-8.0, 8.0, 321)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    with torch.no_grad():
        mass = float(module.log_prob(grid).double().exp().sum()) * (16.0 / 320) ** 2
    assert mass == pytest.approx(1.0, abs=5e-3)


def test_maps_go_both_ways_and_the_inverse_is_flagged() -> None:
    data = plane()
    module, _ = fitted(data)
    x = data.split("test")
    with torch.no_grad():
        noise = module.map(x)
    found = module.inverse_map(noise)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.x.float(), x, rtol=1e-4, atol=1e-4)
    noise[3] = torch.nan
    assert module.inverse_map(noise).converged.logical_not().nonzero().flatten().tolist() == [3]


def test_dropout_and_batch_statistics_only_in_training() -> None:
    data = wine()
    module, _ = fitted(data, flow="maf", dropout=0.5, batch_norm=True)
    module.train()
    x = data.split("test")
    with torch.no_grad():
        torch.testing.assert_close(module.log_prob(x), module.log_prob(x))
        torch.testing.assert_close(module.log_prob(x)[:5], module.log_prob(x[:5]), rtol=1e-5, atol=1e-5)
        assert module.batch_loss(x) != module.batch_loss(x)
    assert module.training
    assert all(part.training for part in module.flow.modules())


def test_resume_is_bit_for_bit(tmp_path: Path) -> None:
    def run(steps: int, checkpoint: Path | None = None) -> NormalizingFlow:
        L.seed_everything(0, verbose=False)
        module = NormalizingFlow(3, "maf", batch_norm=True, learning_rate=1e-2, **SMALL)
        settings = {"enable_checkpointing": True, "default_root_dir": tmp_path, "limit_val_batches": 0}  # no selection
        trainer = ModuleContract()._trainer(max_steps=steps, **settings)
        trainer.fit(module, datamodule=wine(), ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return module

    whole = run(12).state_dict()
    run(7)
    resumed = run(12, tmp_path / "last.ckpt").state_dict()
    for name, tensor in whole.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, resumed[name]), name


def test_weight_averaging_and_schedules() -> None:
    L.seed_everything(0, verbose=False)
    schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10)
    module = NormalizingFlow(3, optimizer=partial(torch.optim.AdamW, lr=1e-2), lr_scheduler=schedule, **SMALL)
    data = wine()
    trainer = ModuleContract()._trainer(max_steps=10, callbacks=[EMAWeightAveraging(decay=0.9)], limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    figures = trainer.test(module, datamodule=data, verbose=False)[0]
    assert math.isfinite(figures["test/nll"])


def test_half_precision_of_the_trainer_leaves_the_density_alone() -> None:
    data = plane()
    module, _ = fitted(data, steps=2)
    x = data.split("test")
    with torch.no_grad():
        expected = module.log_prob(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(module.log_prob(x), expected)
            assert torch.equal(module.sample(20, seed=0), module.sample(20, seed=0))


def test_seeded_sampling_leaves_the_global_random_state_alone() -> None:
    module = NormalizingFlow(2, **SMALL)
    state = torch.get_rng_state()
    for model in (module, module.freeze()):
        model.sample(10, seed=0)
        model.sample(10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state())


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="one column: choose maf"):
        NormalizingFlow(1)
    with pytest.raises(ValueError, match="num_layers=0"):
        NormalizingFlow(2, num_layers=0)
    module = NormalizingFlow(2, **SMALL)
    with pytest.raises(ValueError, match=r"expected \(N, 2\)"):
        module.log_prob(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="num_samples=0"):
        module.sample(0)
    with torch.no_grad():
        next(module.parameters()).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="diverged"):
        module.sample(5)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_works_under_float64_as_the_default(kind: FlowKind) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        module = NormalizingFlow(2, kind, mixing="random", **SMALL)
        for model in (module, module.freeze()):
            x = model.sample(20, seed=0)
            assert x.dtype == torch.float64
            assert torch.isfinite(model.log_prob(x)).all()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["maf", "realnvp"])
def test_batch_normalisation_of_one_row_is_refused_and_evaluation_of_one_is_not(kind: FlowKind) -> None:
    module = NormalizingFlow(2, kind, batch_norm=True, **SMALL)
    module.train()
    with pytest.raises(ValueError, match="batch_norm=True and a training batch of one row"):
        module.batch_loss(torch.zeros(1, 2))
    assert torch.isfinite(module.batch_loss(torch.randn(2, 2, generator=torch.Generator().manual_seed(0))))
    assert torch.isfinite(module.log_prob(torch.zeros(1, 2))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_no_number_has_no_density(kind: FlowKind) -> None:
    frozen = NormalizingFlow(2, kind, **SMALL).freeze()
    rows = torch.tensor([[math.nan, 0.0], [0.0, math.nan], [0.0, 0.0]])
    assert frozen.log_prob(rows).isnan().tolist() == [True, True, False]
