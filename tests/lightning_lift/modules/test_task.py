"""Tasks without convex networks: what they get from the base classes alone."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.datamodules import GumbelDataModule, TabularDataModule
from lightning_lift.modules import ConvexModule, DensityTask, FrozenDistribution, TaskModule
from lightning_lift.testing import ModuleContract


class FrozenGaussian(FrozenDistribution):
    def __init__(self, module: "Gaussian") -> None:
        super().__init__(module.location, module.scale, module.mean)
        self.register_buffer("mean", module.mean.detach().clone())
        self.register_buffer("log_std", module.log_std.detach().clone())

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        return log_normal(x, self.mean, self.log_std)

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return self.mean + self.log_std.exp() * torch.randn(num_samples, self.dim, generator=generator)


def log_normal(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    z = (x - mean) / log_std.exp()
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(1)


class Gaussian(DensityTask):
    """The smallest density: no convex network, and a dropout that only training may see."""

    def __init__(self, dim: int, start: float = 0.0, learning_rate: float | None = None) -> None:
        super().__init__(dim, learning_rate=learning_rate)
        self.mean = nn.Parameter(torch.full((dim,), start))
        self.log_std = nn.Parameter(torch.zeros(dim))
        self.dropout = nn.Dropout(0.1)

    def batch_loss(self, batch: Tensor) -> Tensor:
        return -log_normal(self.dropout(batch), self.mean, self.log_std).mean()

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        return log_normal(x, self.mean, self.log_std)

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return self.frozen().sample_scaled(num_samples, generator)

    def frozen(self) -> FrozenGaussian:
        return FrozenGaussian(self)


class TestGaussian(ModuleContract):
    def make(self) -> TaskModule:
        return Gaussian(2, learning_rate=0.1)

    def make_data(self) -> Any:
        return TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=32)


def test_the_closed_form_is_reached_and_logged_in_both_units() -> None:
    data = TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=64)
    module = Gaussian(2, start=1.0, learning_rate=0.05)
    module.dropout.p = 0.0
    trainer = ModuleContract()._trainer(max_steps=300)
    trainer.fit(module, datamodule=data)
    assert "val/nll" in trainer.callback_metrics
    metrics = trainer.test(module, datamodule=data, verbose=False)[0]
    train, test = data.split("train"), data.split("test")
    expected = -log_normal(test, train.mean(0), train.std(0, correction=0).log()).mean()
    assert metrics["test/nll"] == pytest.approx(float(expected), abs=0.03)
    assert metrics["test/nll_original"] == pytest.approx(metrics["test/nll"] + data.log_scale, abs=1e-5)


def test_truth_that_is_known_is_compared_with() -> None:
    data = GumbelDataModule(batch_size=64, batches_per_epoch=100, num_val=500, num_test=20_000)
    module = Gaussian(1, learning_rate=0.05)
    module.dropout.p = 0.0
    trainer = ModuleContract()._trainer(max_steps=300)
    trainer.fit(module, datamodule=data)
    metrics = trainer.test(module, datamodule=data, verbose=False)[0]
    assert metrics["test/excess_nll"] == pytest.approx(metrics["test/nll"] - data.entropy, abs=1e-5)
    assert abs(metrics["test/excess_nll"] - metrics["test/kl_divergence"]) < 4 * metrics["test/nll_standard_error"]


def test_hyperparameters_are_plain_and_complete(tmp_path: Path) -> None:
    module = Gaussian(2, start=0.5, learning_rate=0.1)
    assert module.hparams["optimizer"]["class_path"] == "torch.optim.adam.Adam"
    assert {name: module.hparams[name] for name in ("dim", "start", "learning_rate")} == {
        "dim": 2,
        "start": 0.5,
        "learning_rate": 0.1,
    }
    trainer = ModuleContract()._trainer(max_steps=1)
    trainer.fit(module, datamodule=TestGaussian().make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = Gaussian.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert torch.equal(again.mean, module.mean)
    assert again.hparams["start"] == 0.5


def test_freezing_puts_every_mode_back() -> None:
    module = Gaussian(2)
    module.train()
    module.dropout.eval()
    module.freeze()
    assert module.training
    assert not module.dropout.training
    assert module.mean.requires_grad


@pytest.mark.parametrize(("call", "message"), [("batch_loss", "define batch_loss"), ("freeze", "define frozen")])
def test_what_a_task_lacks_is_named(call: str, message: str) -> None:
    module = TaskModule(2)
    with pytest.raises(NotImplementedError, match=f"TaskModule must {message}"):
        getattr(module, call)(*([torch.zeros(1, 2)] if call == "batch_loss" else []))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": True}, ValueError, "dim=True"),
        ({"dim": -1}, ValueError, "dim=-1"),
        ({"learning_rate": math.nan}, ValueError, "learning_rate=nan"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, TypeError, r"optimizer=SGD(.|\n)*built object"),
        ({"optimizer": functools.partial(torch.optim.SGD, lr=lambda: 1)}, TypeError, "optimizer"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TaskModule(**{"dim": 2, **arguments})


def test_convex_tasks_are_tasks() -> None:
    assert issubclass(ConvexModule, TaskModule)
