import functools
import math

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_lift.datamodules import BetaDataModule, GammaDataModule, GumbelDataModule, TabularDataModule
from lightning_lift.modules import ConvexModule, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition import AnnealedImportanceSampling, Langevin, Quadrature
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


QUICK = functools.partial(AnnealedImportanceSampling, num_chains=64, num_temperatures=20, validation_temperatures=10)
LANGEVIN = functools.partial(Langevin, num_chains=32, num_steps=2)
FLOWERS = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]


def flowers(**arguments: object) -> TabularDataModule:
    return TabularDataModule(**{"table": "load_iris", "columns": FLOWERS, "batch_size": 32, **arguments})


class TestLangevinInFourDimensions(ModuleContract):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(dim=4, network=SMALL, partition=LANGEVIN, evaluation=QUICK)

    def make_data(self) -> object:
        return flowers()


class TestLangevinOnAHalfLine(ModuleContract):
    def make(self) -> ConvexModule:
        return LogConcaveEBM(
            dim=1, network=SMALL, parameterization=DirectSoftplus, partition=LANGEVIN, evaluation=Quadrature
        )

    def make_data(self) -> object:
        return GammaDataModule(batch_size=32, batches_per_epoch=5, num_val=200, num_test=200)


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
    low = data.units.invert(data.window).amin(0) - 5 * data.units.spread
    high = data.units.invert(data.window).amax(0) + 5 * data.units.spread
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
    assert float(loss) == pytest.approx(-float(module.log_prob_scaled(batch).mean()), abs=1e-4)


def test_gradient_of_the_loss_is_data_mean_minus_model_mean() -> None:
    """d loss / d theta = E_data[dE / d theta] - E_model[dE / d theta], the model mean by its own samples."""
    data = gumbel()
    module, _ = fitted(data, steps=30, parameterization=ProjectedGradient)
    batch = next(iter(data.test_dataloader()))
    weights = module.parameterization.flat_weights
    (exact,) = torch.autograd.grad(module.loss(module.potential(), batch), weights)
    x = module.sample_scaled(20_000, torch.Generator().manual_seed(1))
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
    assert module.log_prob(torch.tensor([[math.nan], [0.5]])).isnan().tolist() == [True, False]
    assert module.freeze().log_prob(torch.tensor([[math.nan], [0.5]])).isnan().tolist() == [True, False]
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


def test_double_precision_where_the_truth_is_known() -> None:
    results = {}
    for precision in ("32-true", "64-true"):
        torch.manual_seed(0)
        module = LogConcaveEBM(1, SMALL, ProjectedGradient, learning_rate=1e-2)
        trainer = TestLift1D()._trainer(max_epochs=1, precision=precision)
        data = gumbel()
        trainer.fit(module, datamodule=data)
        results[precision] = trainer.test(module, datamodule=data, verbose=False)[0]
    for name, value in results["64-true"].items():
        if name not in ("test/quadrature_error", "test/tail_bound"):
            assert value == pytest.approx(results["32-true"][name], abs=1e-4), name


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
    assert module.configure_optimizers()["optimizer"].param_groups[0]["initial_lr"] == found.suggestion()
    trainer.fit(module, datamodule=data)
    assert trainer.current_epoch < 5


def four_dimensional(steps: int = 60, **arguments: object) -> tuple[LogConcaveEBM, L.LightningDataModule, L.Trainer]:
    data = flowers()
    L.seed_everything(0, verbose=False)
    settings = {"parameterization": DirectSoftplus, "partition": LANGEVIN, "evaluation": QUICK, **arguments}
    module = LogConcaveEBM(dim=4, network=SMALL, learning_rate=1e-2, **settings)
    trainer = TestLift1D()._trainer(max_steps=steps, check_val_every_n_epoch=steps)
    trainer.fit(module, datamodule=data)
    return module, data, trainer


def test_training_in_four_dimensions_lowers_the_likelihood_that_is_evaluated() -> None:
    module, data, trainer = four_dimensional(steps=300)
    after = trainer.test(module, datamodule=data, verbose=False)[0]
    untrained = LogConcaveEBM(
        dim=4, network=SMALL, parameterization=DirectSoftplus, partition=LANGEVIN, evaluation=QUICK
    )
    before = TestLift1D()._trainer().test(untrained, datamodule=data, verbose=False)[0]
    assert after["test/nll"] < before["test/nll"] - 0.5
    assert after["test/log_partition_standard_error"] < 0.05


def test_the_gradient_is_data_mean_minus_model_mean_in_four_dimensions() -> None:
    """Averaged over the chains of 100 calls, against 20,000 draws for evaluation."""
    module, data, _ = four_dimensional(steps=30, parameterization=ProjectedGradient)
    batch = next(iter(data.test_dataloader()))
    weights = module.parameterization.flat_weights
    chains = [torch.autograd.grad(module.batch_loss(batch), weights)[0] for _ in range(100)]
    mean, error = torch.stack(chains).mean(0), torch.stack(chains).std(0) / math.sqrt(100)
    x = module.sample_scaled(20_000, torch.Generator().manual_seed(1))
    (model,) = torch.autograd.grad(module.potential().value(x).mean(), weights)
    (observed,) = torch.autograd.grad(module.potential().value(batch).mean(), weights)
    # 100 correlated calls are worth perhaps 25
    assert bool(((mean - (observed - model)).abs() < 5.0 * 2.0 * error + 1e-3 * observed.abs().max()).all())


def test_the_test_always_comes_with_its_errors() -> None:
    module, data, trainer = four_dimensional()
    metrics = trainer.test(module, datamodule=data, verbose=False)[0]
    partition, rows = metrics["test/log_partition_standard_error"], metrics["test/nll_standard_error"]
    assert partition > 0
    assert metrics["test/nll_total_error"] == pytest.approx(math.hypot(partition, rows), rel=1e-4)
    assert {"test/bracket_width", "test/effective_sample_size", "test/log_partition_trusted"} <= set(metrics)
    validation = trainer.validate(module, datamodule=data, verbose=False)[0]
    assert {"val/nll", "val/log_partition_standard_error", "val/chain_acceptance"} <= set(validation)
    assert "val/bracket_width" not in validation
    x = data.split("test")
    assert metrics["test/nll"] == pytest.approx(-float(module.log_prob_scaled(x).mean()), abs=1e-5)


def test_annealed_importance_agrees_with_quadrature_on_a_trained_model() -> None:
    data = TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=64)
    module, trainer = fitted(data, steps=100, parameterization=DirectSoftplus)
    exact = trainer.test(module, datamodule=data, verbose=False)[0]
    again = LogConcaveEBM(
        dim=2, network=SMALL, parameterization=DirectSoftplus, evaluation=functools.partial(AnnealedImportanceSampling)
    )
    again.load_state_dict(module.state_dict(), strict=False)
    annealed = TestLift1D()._trainer().test(again, datamodule=data, verbose=False)[0]
    error = annealed["test/log_partition_standard_error"]
    assert annealed["test/log_partition"] == pytest.approx(exact["test/log_partition"], abs=3 * error + 1e-3)
    assert annealed["test/nll"] == pytest.approx(exact["test/nll"], abs=3 * error + 1e-3)


def test_frozen_density_draws_in_original_units_in_four_dimensions() -> None:
    module, data, _ = four_dimensional(steps=200)
    frozen = module.freeze()
    draws = frozen.sample(2000, seed=0)
    rows = data.units.invert(data.split("train"))
    error = rows.std(0) / math.sqrt(len(rows))
    assert bool(((draws.mean(0) - rows.mean(0)).abs() < 6 * error + 0.1 * rows.std(0)).all())
    expected = module.log_prob_scaled(data.units.apply(draws).float()) - data.log_scale
    for model in (frozen, module):
        torch.testing.assert_close(model.log_prob(draws), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(module.sample(2000, seed=0), draws)
    assert module.sampling_diagnostics["r_hat"] < 1.05


def test_checkpoints_without_evaluation_have_no_new_keys() -> None:
    module = LogConcaveEBM(dim=1, network=SMALL)
    assert not [name for name in module.state_dict() if "evaluation" in name]
    assert module.sampling_diagnostics == {}


class HighICNN(ICNN):
    """An ICNN plus a constant that float32 cannot hold beside it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e6


def test_a_large_constant_in_the_energy_changes_no_log_density() -> None:
    modules = []
    for network in (ICNN, HighICNN):
        torch.manual_seed(0)
        factory = functools.partial(network, widths=(8, 8), bias_std=1.0)
        modules.append(LogConcaveEBM(dim=1, network=factory, parameterization=DirectSoftplus))
    x = torch.linspace(-3.0, 3.0, 50).unsqueeze(1)
    expected = modules[0].log_prob(x)
    for model in (modules[1], modules[1].freeze()):
        torch.testing.assert_close(model.log_prob(x).to(expected), expected, rtol=0.0, atol=2e-4)
    losses = [module.batch_loss(x) for module in modules]
    assert float(losses[1]) == pytest.approx(float(losses[0]), abs=0.01), "each row's energy is float32"
