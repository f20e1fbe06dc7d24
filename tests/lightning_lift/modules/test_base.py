import functools
from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import ConvexModule
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, Parameterization, ProjectedGradient
from lightning_lift.potential import Potential
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[8, 8])
PARAMETERIZATIONS = [ProjectedGradient, DirectSoftplus, Lift]


def data() -> GumbelDataModule:
    return GumbelDataModule(batch_size=16, batches_per_epoch=4, num_val=64, num_test=64, num_calibration=64)


class Regression(ConvexModule):
    """The smallest task: one method."""

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        return (potential.value(batch) - batch.abs().sum(1)).square().mean()


class TwoPotentials(ConvexModule):
    def build(self, network: object) -> nn.Module:
        assert callable(network)
        return nn.ModuleDict({"up": network(self.dim), "down": network(self.dim)})

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        up, down = self.potentials(batch if self.training else None)
        return (up.value(batch) - down.value(batch) - batch.sum(1)).square().mean()

    def frozen(self) -> nn.Module:
        raise NotImplementedError


class TestUserTask(ModuleContract):
    def make(self) -> ConvexModule:
        return Regression(dim=1, network=SMALL)

    def make_data(self) -> GumbelDataModule:
        return data()


class TestUserTaskProjected(TestUserTask):
    def make(self) -> ConvexModule:
        return Regression(dim=1, network=SMALL, parameterization=ProjectedGradient)


@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_every_parameterization_starts_from_the_same_network(parameterization: type[Parameterization]) -> None:
    torch.manual_seed(3)
    reference = ICNN(1, [8, 8])
    torch.manual_seed(3)
    module = Regression(dim=1, network=SMALL, parameterization=parameterization)
    x = torch.randn(5, 1)
    torch.testing.assert_close(module.potential(x).value(x), reference(x), rtol=1e-6, atol=1e-6)


def test_several_networks_get_their_own_weights() -> None:
    module = TwoPotentials(dim=2, network=SMALL, parameterization=DirectSoftplus)
    assert module.parameterization.names[0].startswith("up.")
    up, down = module.potentials()
    x = torch.randn(4, 2)
    assert not torch.equal(up.value(x), down.value(x))
    loss = module.loss(up, x)
    loss.backward()
    assert module.parameterization.raw_latent.grad is not None


def test_learning_rate_replaces_the_optimizers_own() -> None:
    module = Regression(1, SMALL, optimizer=functools.partial(torch.optim.SGD, lr=0.1), learning_rate=0.02)
    assert module.configure_optimizers()["optimizer"].param_groups[0]["lr"] == 0.02
    scheduled = Regression(
        1, SMALL, learning_rate=0.02, lr_scheduler=functools.partial(torch.optim.lr_scheduler.StepLR, step_size=2)
    ).configure_optimizers()
    assert scheduled["lr_scheduler"]["interval"] == "step"
    assert scheduled["optimizer"].param_groups[0]["initial_lr"] == 0.02


def test_hyperparameters_are_plain() -> None:
    module = Regression(dim=1, network=SMALL, parameterization=functools.partial(DirectSoftplus, latent_gain=10.0))
    assert module.hparams["network"]["class_path"] == "lightning_lift.networks.icnn.ICNN"
    assert module.hparams["network"]["init_args"]["widths"] == [8, 8]
    assert module.hparams["parameterization"]["init_args"]["latent_gain"] == 10.0
    again = Regression(**{k: v for k, v in module.hparams.items() if not k.startswith("_")})
    assert isinstance(again.parameterization, DirectSoftplus)
    assert again.parameterization.latent_gain == 10.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim=0"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate=-1.0"),
        ({"network": lambda dim: ICNN(dim)}, TypeError, "network=.*lambda"),
        ({"parameterization": Lift()}, TypeError, "parameterization=.*built object"),
        ({"parameterization": ICNN}, TypeError, "dim|Parameterization"),
        ({"parameterization": nn.Identity}, TypeError, "Identity, not a Parameterization"),
        ({"network": functools.partial(nn.Linear, out_features=1)}, ValueError, "no ConvexNetwork"),
        ({"optimizer": 1e-3}, TypeError, "optimizer=0.001"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Regression(**{"dim": 1, "network": SMALL, **arguments})


def test_a_task_without_a_loss_says_so() -> None:
    module = ConvexModule(dim=1, network=SMALL)
    with pytest.raises(NotImplementedError, match=r"ConvexModule must define loss"):
        module.loss(module.potential(torch.zeros(2, 1)), torch.zeros(2, 1))


def test_calibration_without_rows_is_a_clear_error() -> None:
    with pytest.raises(RuntimeError, match="calibration_dataloader"):
        Regression(dim=1, network=SMALL, parameterization=Lift).calibrate()
    Regression(dim=1, network=SMALL, parameterization=DirectSoftplus).calibrate()  # nothing to calibrate


def test_data_of_another_dimension_is_refused() -> None:
    contract = TestUserTask()
    module = Regression(dim=3, network=SMALL)
    with pytest.raises(ValueError, match="dim=3 and GumbelDataModule has 1"):
        contract._trainer().fit(module, datamodule=data())


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_half_precision_weights_are_refused(precision: str) -> None:
    with pytest.raises(ValueError, match=f"{precision}.*bf16-mixed"):
        TestUserTask()._trainer(precision=precision).fit(Regression(dim=1, network=SMALL), datamodule=data())


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("parameterization", PARAMETERIZATIONS)
def test_mixed_and_double_precision_train(precision: str, parameterization: type[Parameterization]) -> None:
    module = Regression(dim=1, network=SMALL, parameterization=parameterization)
    trainer = TestUserTask()._trainer(precision=precision)
    trainer.fit(module, datamodule=data())
    assert torch.isfinite(trainer.callback_metrics["train/loss"])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
def test_projected_weights_are_feasible_at_every_hook(optimizer: type[torch.optim.Optimizer]) -> None:
    class Watched(Regression):
        seen = 0

        def loss(self, potential: Potential, batch: Tensor) -> Tensor:
            return potential.value(batch).square().mean()  # pulls the weights down, through zero

        def on_train_batch_end(self, *args: object) -> None:
            Watched.seen += 1
            assert self.parameterization.is_feasible()

    network = functools.partial(SMALL, strong_convexity=0.02, divide_by_fan_in=False, weight_init="folded_normal")
    steps = functools.partial(optimizer, lr=0.2)
    module = Watched(1, network, ProjectedGradient, optimizer=steps, lr_scheduler=None)
    TestUserTask()._trainer(max_steps=10).fit(module, datamodule=data())
    assert Watched.seen == 10
    assert (module.parameterization.latent() == 0).any(), "the steps did push weights against the boundary"
    assert not module._projection_hooks


def test_a_fit_after_an_interrupted_one_projects_once_a_step() -> None:
    class Interrupted(Regression):
        interrupted = False

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if batch_idx == 2 and self.current_epoch == 0 and not self.interrupted:
                self.interrupted = True
                raise ValueError("stop")
            return super().training_step(batch, batch_idx)

    module = Interrupted(1, SMALL, ProjectedGradient)
    with pytest.raises(ValueError, match="stop"):
        TestUserTask()._trainer().fit(module, datamodule=data())
    calls = []
    project = module.parameterization.project_
    module.parameterization.project_ = lambda: (calls.append(1), project())
    TestUserTask()._trainer().fit(module, datamodule=data())
    assert len(calls) == 1 + TestUserTask.steps, "once at the start and once a step"
    assert not module._projection_hooks


@pytest.mark.parametrize("every", [1, 3, 7])
def test_loggers_get_the_loss_of_each_step_that_they_ask_for(every: int, tmp_path: Path) -> None:
    losses = []

    class Watched(Regression):
        def loss(self, potential: Potential, batch: Tensor) -> Tensor:
            loss = super().loss(potential, batch)
            if self.training:
                losses.append(float(loss.detach()))
            return loss

    logger = CSVLogger(tmp_path)
    trainer = TestUserTask()._trainer(max_steps=21, logger=logger, log_every_n_steps=every)
    trainer.fit(Watched(dim=1, network=SMALL, parameterization=DirectSoftplus), datamodule=data())
    logger.save()
    table = pd.read_csv(Path(logger.log_dir) / "metrics.csv").dropna(subset=["train/loss"])
    assert table["step"].tolist() == list(range(every - 1, 21, every))
    assert table["train/loss"].tolist() == pytest.approx(losses[every - 1 :: every], rel=1e-5)
