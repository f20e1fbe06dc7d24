import functools
import math

import lightning as L
import pytest
import torch

from datamodules import BetaDataModule, GammaDataModule, GumbelDataModule, TabularDataModule
from lightning_lift.modules import ConvexModule, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition.grids import grid_points, log_integral
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[8, 8])


def gumbel(**arguments: object) -> GumbelDataModule:
    sizes = {"batch_size": 32, "batches_per_epoch": 5, "num_val": 200, "num_test": 200, "num_calibration": 256}
    return GumbelDataModule(**{**sizes, **arguments})


class TestLift1D(ModuleContract):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(dim=1, network=SMALL)

    def make_data(self) -> object:
        return gumbel()


class TestLiftOfEverything(TestLift1D):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(dim=1, network=SMALL, parameterization=functools.partial(Lift, emit="all"))


class TestDirectOnAHalfLine(ModuleContract):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(dim=1, network=SMALL, parameterization=DirectSoftplus)

    def make_data(self) -> object:
        return GammaDataModule(batch_size=32, batches_per_epoch=5, num_val=200, num_test=200)


class TestProjectedInThePlane(ModuleContract):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(dim=2, network=SMALL, parameterization=ProjectedGradient)

    def make_data(self) -> object:
        return TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=32)


def fitted(data: L.LightningDataModule, steps: int = 60, **arguments: object) -> tuple[LogConcaveEBM, L.Trainer]:
    L.seed_everything(0, verbose=False)
    module = LogConcaveEBM(dim=data.dim, network=SMALL, learning_rate=1e-2, **arguments)
    trainer = TestLift1D()._trainer(max_steps=steps)
    trainer.fit(module, datamodule=data)
    return module, trainer


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus, Lift])
def test_density_integrates_to_one_in_original_units_and_training_helps(parameterization: type) -> None:
    data = TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=64)
    module, trainer = fitted(data, steps=150, parameterization=parameterization)
    frozen = module.freeze()
    low = data.location + data.scale * data.window[0] - 5 * data.scale
    high = data.location + data.scale * data.window[1] + 5 * data.scale
    window = torch.stack([low, high])
    mass = log_integral(frozen.log_prob(grid_points(window, 401)), window, 401).exp()
    assert float(mass) == pytest.approx(1.0, abs=2e-3)
    untrained = LogConcaveEBM(dim=2, network=SMALL, parameterization=DirectSoftplus)
    before = TestLift1D()._trainer().test(untrained, datamodule=data, verbose=False)[0]["test/nll"]
    after = trainer.test(module, datamodule=data, verbose=False)[0]
    assert after["test/nll"] < before - 0.5
    assert after["test/nll_original"] == pytest.approx(after["test/nll"] + data.log_scale, abs=1e-5)


def test_loss_is_the_negative_log_likelihood() -> None:
    data = gumbel()
    module, _ = fitted(data, steps=5, parameterization=DirectSoftplus)
    batch = next(iter(data.test_dataloader()))
    loss = module.loss(module.potential(batch), batch)
    assert float(loss) == pytest.approx(-float(module.log_prob(batch).mean()), abs=1e-4)


def test_gradient_of_the_loss_is_data_mean_minus_model_mean() -> None:
    """d loss / d theta = E_data[dE / d theta] - E_model[dE / d theta], the model mean by its own samples."""
    data = gumbel()
    module, _ = fitted(data, steps=30, parameterization=ProjectedGradient)
    batch = next(iter(data.test_dataloader()))
    weights = module.parameterization.flat_weights
    (exact,) = torch.autograd.grad(module.loss(module.potential(), batch), weights)
    x = module.sample(20_000, seed=1)
    (model,) = torch.autograd.grad(module.potential().value(x).mean(), weights)
    (observed,) = torch.autograd.grad(module.potential().value(batch).mean(), weights)
    scale = float(observed.abs().max())
    assert float((observed - model - exact).abs().max()) < 0.05 * scale


def test_bounded_support_has_no_density_outside() -> None:
    data = BetaDataModule(batch_size=64, batches_per_epoch=10, num_val=100, num_test=100)
    module, _ = fitted(data, steps=10, parameterization=DirectSoftplus)
    outside = torch.tensor([[-0.01], [1.01]])
    assert module.log_prob(outside).tolist() == [-math.inf, -math.inf]
    assert module.freeze().log_prob(outside).tolist() == [-math.inf, -math.inf]
    draws = module.sample(1000)
    assert ((draws >= 0) & (draws <= 1)).all()


def test_metrics_of_a_known_truth_are_consistent() -> None:
    data = gumbel(num_test=5000)
    module, trainer = fitted(data, steps=100)
    metrics = trainer.test(module, datamodule=data, verbose=False)[0]
    assert metrics["test/excess_nll"] == pytest.approx(metrics["test/nll"] - data.entropy, abs=1e-5)
    # The excess is the KL divergence up to the sampling error of the test rows.
    assert abs(metrics["test/excess_nll"] - metrics["test/kl_divergence"]) < 4 * metrics["test/nll_standard_error"]
    # Pinsker and Le Cam: H^2 <= TV <= sqrt(KL / 2).
    assert metrics["test/hellinger_distance"] ** 2 <= metrics["test/total_variation"]
    assert metrics["test/total_variation"] <= math.sqrt(metrics["test/kl_divergence"] / 2)
    assert 0 < metrics["test/tail_bound"] <= 1e-6


def test_log_density_does_not_depend_on_the_rest_of_the_batch() -> None:
    data = gumbel()
    module, _ = fitted(data)
    x = data.split("test")[:20]
    module.eval()
    together = module.log_prob(x)
    torch.testing.assert_close(together, torch.cat([module.log_prob(row[None]) for row in x]), rtol=1e-5, atol=1e-5)


def test_log_partition_of_an_evaluation_is_not_kept_beyond_it() -> None:
    data = gumbel()
    module, trainer = fitted(data, parameterization=DirectSoftplus)
    trainer.test(module, datamodule=data, verbose=False)
    before = module.log_prob(torch.zeros(1, 1))
    with torch.no_grad():
        module.parameterization.raw_latent.add_(0.5)
    assert not torch.equal(module.log_prob(torch.zeros(1, 1)), before)
    assert module._estimate is None


def test_an_interrupted_evaluation_leaves_no_stale_log_partition() -> None:
    class Interrupted(LogConcaveEBM):
        def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            raise ValueError("stop")

    module = Interrupted(dim=1, network=SMALL, parameterization=DirectSoftplus)
    with pytest.raises(ValueError, match="stop"):
        TestLift1D()._trainer().test(module, datamodule=gumbel(), verbose=False)
    before = module.log_prob(torch.zeros(1, 1))
    with torch.no_grad():
        module.parameterization.raw_latent.add_(0.5)
    fresh = LogConcaveEBM(dim=1, network=SMALL, parameterization=DirectSoftplus)
    fresh.load_state_dict(module.state_dict())
    assert not torch.equal(module.log_prob(torch.zeros(1, 1)), before)
    torch.testing.assert_close(module.log_prob(torch.zeros(1, 1)), fresh.log_prob(torch.zeros(1, 1)))


def test_three_dimensions_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="1 or 2 dimensions and the data have 3"):
        LogConcaveEBM(dim=3, network=SMALL)


def test_learning_rate_finder_and_early_stopping() -> None:
    from lightning.pytorch.callbacks import EarlyStopping
    from lightning.pytorch.tuner import Tuner

    data = gumbel(batches_per_epoch=30)
    module = LogConcaveEBM(dim=1, network=SMALL)
    stop = EarlyStopping(monitor="val/nll", patience=1, min_delta=10.0)
    trainer = TestLift1D()._trainer(max_steps=-1, max_epochs=50, callbacks=[stop])
    found = Tuner(trainer).lr_find(module, datamodule=data, num_training=25, min_lr=1e-5, max_lr=1e-1)
    assert found is not None
    assert module.learning_rate == found.suggestion()
    assert module.configure_optimizers().param_groups[0]["lr"] == found.suggestion()
    trainer.fit(module, datamodule=data)
    assert trainer.current_epoch < 5
