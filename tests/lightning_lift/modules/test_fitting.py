"""What every trained module shares: modes at fit start, averages, divergence, schedules on resume, whole files."""

import functools
import math
import os
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from lightning_lift.callbacks import LastCheckpoint
from lightning_lift.datamodules import BetaDataModule, GumbelDataModule, TwoMoonsDataModule
from lightning_lift.modules import ConvexModule, LogConcaveEBM, NormalizingFlow, ReLUClassifier, ReLUMLP
from lightning_lift.modules.checkpoint_files import WholeFileCheckpointIO
from lightning_lift.modules.divergence import DivergenceError
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift
from lightning_lift.potential import Potential
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[4, 4])


class Distance(ConvexModule):
    """A cheap task; ``break_at`` multiplies the loss of that step by NaN."""

    break_at: int | None = None
    broken: float = math.nan

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        loss = (potential.value(batch) - batch.abs().sum(1)).square().mean()
        return loss * self.broken if self.training and self.global_step + 1 == self.break_at else loss


def data(**sizes: Any) -> GumbelDataModule:
    small = {"batch_size": 8, "batches_per_epoch": 5, "num_val": 16, "num_test": 16, "num_calibration": 16}
    return GumbelDataModule(**small | sizes)


def trainer(**settings: Any) -> L.Trainer:
    return ModuleContract()._trainer(**{"max_steps": 10, "num_sanity_val_steps": 0} | settings)


def module(parameterization: Any = DirectSoftplus, rate: float = 1e-2) -> Distance:
    torch.manual_seed(0)
    return Distance(1, SMALL, parameterization, learning_rate=rate, lr_scheduler=None)


# -- modes -------------------------------------------------------------------------------------------------------------


class Seen(Distance):
    def build(self, network: Any) -> nn.Module:
        return nn.ModuleDict({"potential": network(self.dim), "dropout": nn.Dropout(0.5)})

    def on_train_start(self) -> None:
        super().on_train_start()
        self.modes = (self.training, self.parameterization.training, self.network["dropout"].training)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("dropout", [True, False])
def test_a_fit_after_a_test_that_raised_trains_what_was_trained_before(dropout: bool) -> None:
    task = Seen(1, SMALL, Lift)
    task.network["dropout"].train(dropout)
    with pytest.raises(ZeroDivisionError):
        trainer().test(task, datamodule=data())
    assert not task.training, "Lightning leaves it in evaluation mode"
    trainer(max_steps=1).fit(task, datamodule=data())
    assert task.modes == (True, True, dropout)


def test_a_fit_after_eval_trains_the_lifts_body_and_leaves_the_network_as_it_was_set() -> None:
    task = Seen(1, SMALL, functools.partial(Lift, body_widths=(16, 16), slack_start=-1.0)).eval()
    before = [p.detach().clone() for p in task.parameterization.body.parameters()]
    trainer(max_steps=3).fit(task, datamodule=data())
    assert task.modes == (True, True, False)
    after = list(task.parameterization.body.parameters())
    assert any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_a_baseline_trains_its_batch_norm_after_a_test_that_raised() -> None:
    class Raises(NormalizingFlow):
        def test_step(self, batch: Tensor, batch_idx: int) -> None:
            raise ZeroDivisionError

    task = Raises(1, "maf", num_layers=1, hidden_features=4, batch_norm=True)
    with pytest.raises(ZeroDivisionError):
        trainer().test(task, datamodule=data())
    trainer(max_steps=1).fit(task, datamodule=data())
    assert all(part.training for part in task.modules())


def test_a_lift_without_rows_for_its_summary_fails_before_training() -> None:
    rows = torch.randn(4, 16, 1)
    task = module(Lift)
    with pytest.raises(RuntimeError, match="calibration_dataloader"):
        trainer().fit(task, rows, rows)
    assert task.trainer.global_step == 0


# -- averages ----------------------------------------------------------------------------------------------------------


AVERAGES: dict[str, Any] = {
    "ema": lambda: EMAWeightAveraging(decay=0.8),
    "mean": lambda: WeightAveraging(),
    "swa": lambda: StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1),
}


@pytest.mark.parametrize("parameterization", [DirectSoftplus, functools.partial(Lift, slack_start=-1.0)])
@pytest.mark.parametrize("average", AVERAGES)
def test_averaged_weights_have_one_figure(tmp_path: Path, average: str, parameterization: Any) -> None:
    def figures(run: L.Trainer, task: Any, **path: Any) -> tuple[float, float, Tensor]:
        options: dict[str, Any] = {"datamodule": data(), "weights_only": True, **path}
        validated = run.validate(task, verbose=False, **options)[0]["val/loss"]
        tested = run.test(task, verbose=False, **options)[0]["test/loss"]
        return validated, tested, torch.cat(run.predict(task, **options))

    best = ModelCheckpoint(dirpath=tmp_path, monitor="val/loss", filename="best")
    every = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=7, save_top_k=-1, filename="{step}")
    run = trainer(callbacks=[AVERAGES[average](), best, every], enable_checkpointing=True, max_steps=-1, max_epochs=3)
    task = module(parameterization, 0.1)
    run.fit(task, datamodule=data())
    at_end = figures(run, task)
    run.save_checkpoint(tmp_path / "end.ckpt")
    files = {"end": tmp_path / "end.ckpt", "best": "best", "step": tmp_path / "step=7.ckpt"}
    seen = []
    for name, path in files.items():
        file = Path(best.best_model_path) if path == "best" else path
        alone = figures(trainer(), Distance.load_from_checkpoint(file, weights_only=True))
        there = figures(trainer(callbacks=[AVERAGES[average]()]), module(parameterization), ckpt_path=file)
        here = figures(run, task, ckpt_path=path)
        fresh = figures(run, Distance.load_from_checkpoint(file, weights_only=True))
        for found in (there, here, fresh):
            assert found[:2] == alone[:2], name
            assert torch.equal(found[2], alone[2]), name
        if name == "end":
            assert alone[:2] == at_end[:2]
        seen.append(alone[1])
    assert len(set(seen)) > 1, "the files hold different weights, or the test shows nothing"


# -- divergence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_fit_ends_at_the_first_loss_that_is_not_finite_and_names_the_last_good_file(
    tmp_path: Path, broken: float
) -> None:
    task = module(rate=0.25)
    task.break_at, task.broken = 7, broken
    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, filename="{step}")
    with pytest.raises(
        DivergenceError, match=r"at step 7 \(learning rate 0.25\): the training loss is -?(nan|inf)"
    ) as raised:
        trainer(callbacks=[keep], enable_checkpointing=True).fit(task, datamodule=data())
    assert str(tmp_path / "step=6.ckpt") in str(raised.value)
    assert "lower the learning rate" in str(raised.value)
    assert all(torch.isfinite(p).all() for p in task.parameters()), "the step was not taken"


def test_a_metric_that_is_not_finite_ends_fit_and_is_never_the_best(tmp_path: Path) -> None:
    class Broken(Distance):
        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self.log("val/loss", torch.tensor(-math.inf if self.global_step >= 10 else 1.0))

    best = ModelCheckpoint(dirpath=tmp_path, monitor="val/loss", filename="{step}")
    with pytest.raises(DivergenceError, match=r"at step 10 .*val/loss is -inf.*step=5.ckpt"):
        trainer(callbacks=[best], enable_checkpointing=True).fit(Broken(1, SMALL, DirectSoftplus), datamodule=data())
    assert [path.name for path in tmp_path.iterdir()] == ["step=5.ckpt"]
    with pytest.raises(DivergenceError, match=r"at step 10 .*val/loss is -inf"):  # no checkpoint to be written
        trainer().fit(Broken(1, SMALL, DirectSoftplus), datamodule=data())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_users_metric_that_is_not_finite_is_no_divergence(tmp_path: Path, value: float) -> None:
    """The weights are good, and kept."""

    class Measured(Distance):
        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self.log("val/mine", torch.tensor(value if self.global_step >= 10 else 1.0))

    keep = [ModelCheckpoint(dirpath=tmp_path, monitor="val/mine"), LastCheckpoint(str(tmp_path))]
    with pytest.raises(ValueError, match=r"val/mine is (nan|inf) after step 10.*monitor another"):
        trainer(callbacks=keep, enable_checkpointing=True).fit(Measured(1, SMALL, DirectSoftplus), datamodule=data())
    assert torch.load(tmp_path / "exception.ckpt", weights_only=True)["global_step"] == 10


@pytest.mark.parametrize("row", [1.5, -0.1, math.nan])
def test_a_held_out_row_where_no_model_has_density_is_no_divergence(row: float) -> None:
    class Outside(BetaDataModule):
        def val_dataloader(self) -> Any:
            return DataLoader(torch.tensor([[0.5], [row]]), batch_size=2)

    sizes = {"batch_size": 8, "batches_per_epoch": 5, "num_val": 16, "num_test": 16, "num_calibration": 16}
    with pytest.raises(ValueError, match=r"1 of 2 rows .*support, \[0.0\] to \[1.0\]"):
        trainer().fit(LogConcaveEBM(1, SMALL, DirectSoftplus), datamodule=Outside(**sizes))


@pytest.mark.parametrize(("at", "advice"), [(1, "no weight has moved yet"), (2, "rows that are not finite")])
def test_what_is_not_the_learning_rates_fault_is_not_blamed_on_it(at: int, advice: str) -> None:
    task, rows = module(), torch.ones(16, 1)
    if at == 1:
        task.break_at = 1
    else:
        rows[-1] = math.nan
    with pytest.raises(DivergenceError, match=rf"at step {at} .*{advice}") as raised:
        trainer().fit(task, DataLoader(rows, batch_size=8))
    assert "lower the learning rate" not in str(raised.value)


def test_an_evaluation_starts_without_the_rows_of_one_that_raised() -> None:
    class Stops(LogConcaveEBM):
        stops = True

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            if self.stops:
                raise ZeroDivisionError

    torch.manual_seed(0)
    task = Stops(1, SMALL, DirectSoftplus)
    with pytest.raises(ZeroDivisionError):
        trainer().validate(task, datamodule=data(data_seed=1), verbose=False)
    task.stops = False
    (after,) = trainer().validate(task, datamodule=data(), verbose=False)
    fresh = LogConcaveEBM(1, SMALL, DirectSoftplus)
    fresh.load_state_dict(task.state_dict())
    assert after == trainer().validate(fresh, datamodule=data(), verbose=False)[0]


def test_weights_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    """The loss of the step was finite, its gradient was not."""

    class Broken(Distance):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if self.global_step == 3:
                self.parameterization.raw_latent.grad.fill_(math.nan)

    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    with pytest.raises(DivergenceError, match=r"at step 4 .*a weight is not finite.*step=2.ckpt"):
        trainer(callbacks=[keep], enable_checkpointing=True).fit(Broken(1, SMALL, DirectSoftplus), datamodule=data())
    assert [path.name for path in tmp_path.iterdir()] == ["step=2.ckpt"]


def test_an_exploding_energy_is_a_divergence_and_the_cause_is_kept() -> None:
    torch.manual_seed(0)
    task = LogConcaveEBM(1, SMALL, DirectSoftplus, learning_rate=1e10, lr_scheduler=None)
    with pytest.raises(DivergenceError, match=r"diverged at step \d+ \(learning rate 1e\+10\): .*lower the") as raised:
        trainer(max_steps=50).fit(task, datamodule=data(batches_per_epoch=50))
    cause = raised.value.__cause__
    assert cause is None or str(cause).rstrip(".") in str(raised.value), "what the quadrature says"


def test_an_error_of_the_first_step_is_no_divergence() -> None:
    class Broken(Distance):
        def loss(self, potential: Potential, batch: Tensor) -> Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer().fit(Broken(1, SMALL, DirectSoftplus), datamodule=data())


def test_a_rate_finder_may_diverge_and_the_fit_behind_it_is_watched() -> None:
    task = module()
    task.break_at = 4  # in the finder and in the fit: both count steps from their start
    finder = LearningRateFinder(num_training_steps=8, update_attr=False, early_stop_threshold=None)
    with pytest.raises(
        DivergenceError, match=r"at step 4.*no checkpoint was written before"
    ):  # the finder's own is gone
        trainer(callbacks=[finder]).fit(task, datamodule=data(batches_per_epoch=20))


def test_a_classifier_is_watched_too() -> None:
    task = ReLUClassifier(2, functools.partial(ReLUMLP, widths=[4]), functools.partial(torch.optim.SGD, lr=1e30))
    with pytest.raises(DivergenceError, match=r"learning rate 1e\+30"):
        trainer(max_steps=50).fit(task, datamodule=TwoMoonsDataModule(num_train=40, num_val=10, num_test=10))


# -- schedules on resume -----------------------------------------------------------------------------------------------


def scheduled(scheduler: Any, rate: float | None = 0.1) -> Distance:
    torch.manual_seed(0)
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return Distance(1, SMALL, DirectSoftplus, optimizer, scheduler, learning_rate=rate)


class Rates(L.Callback):
    """The rate of each step, and the momentum."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.momenta: list[float] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.momenta.append(optimizer.param_groups[0]["momentum"])


SCHEDULES: dict[str, tuple[Any, Any]] = {
    "cosine": tuple(functools.partial(lr_scheduler.CosineAnnealingLR, T_max=steps) for steps in (6, 12)),
    "one_cycle": tuple(functools.partial(lr_scheduler.OneCycleLR, max_lr=0.3, total_steps=n) for n in (8, 14)),
    "milestones": tuple(functools.partial(lr_scheduler.MultiStepLR, milestones=[m]) for m in (4, 8)),
    "gamma": tuple(functools.partial(lr_scheduler.ExponentialLR, gamma=gamma) for gamma in (0.5, 0.9)),
    "other": (
        functools.partial(lr_scheduler.CosineAnnealingLR, T_max=6),
        functools.partial(lr_scheduler.StepLR, step_size=5),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_new_schedule_wins_over_the_checkpoints(tmp_path: Path, name: str, caplog: Any) -> None:
    """From the resumed step on every rate is what the new schedule has there."""
    old, new = SCHEDULES[name]
    first = trainer(max_steps=6)
    first.fit(scheduled(old), datamodule=data())
    first.save_checkpoint(tmp_path / "x.ckpt")
    whole, resumed = Rates(), Rates()
    trainer(max_steps=12, callbacks=[whole]).fit(scheduled(new), datamodule=data())
    with caplog.at_level("INFO"):
        trainer(max_steps=12, callbacks=[resumed]).fit(
            scheduled(new), datamodule=data(), ckpt_path=tmp_path / "x.ckpt", weights_only=True
        )
    assert resumed.rates == pytest.approx(whole.rates[6:], rel=1e-6)
    assert resumed.momenta == pytest.approx(whole.momenta[6:], rel=1e-6)
    assert sum("settings win" in record.getMessage() for record in caplog.records) == 1


def test_a_new_rate_wins_and_none_keeps_the_checkpoints(tmp_path: Path) -> None:
    first = trainer(max_steps=3)
    first.fit(scheduled(None, 0.2), datamodule=data())
    first.save_checkpoint(tmp_path / "x.ckpt")
    for rate, expected in ((0.05, 0.05), (None, 0.2)):
        seen = Rates()
        trainer(max_steps=5, callbacks=[seen]).fit(
            scheduled(None, rate), datamodule=data(), ckpt_path=tmp_path / "x.ckpt", weights_only=True
        )
        assert seen.rates == [expected] * 2


def test_an_optimizers_settings_are_the_checkpoints(tmp_path: Path) -> None:
    def optimized(optimizer: Any) -> Distance:
        return Distance(1, SMALL, DirectSoftplus, optimizer)

    first = trainer(max_steps=3)
    first.fit(optimized(functools.partial(torch.optim.Adam, lr=0.02)), datamodule=data())
    first.save_checkpoint(tmp_path / "x.ckpt")
    again = {"datamodule": data(), "ckpt_path": tmp_path / "x.ckpt", "weights_only": True}
    with pytest.raises(ValueError, match=r"x.ckpt does not fit .*by torch.*Adam and this module has torch.*SGD"):
        trainer(max_steps=5).fit(optimized(functools.partial(torch.optim.SGD, lr=0.02)), **again)
    with pytest.warns(UserWarning, match=r"optimizer.lr=0.5 is replaced by the checkpoint's 0.02"):
        trainer(max_steps=5).fit(optimized(functools.partial(torch.optim.Adam, lr=0.5)), **again)
    for same in (torch.optim.Adam, {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.02}}):  # another path to it
        same = functools.partial(same, lr=0.02) if callable(same) else same
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="optimizer.")
            trainer(max_steps=5).fit(optimized(same), **again)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_beside_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two leaves the old file: nothing is ever opened under the final name."""
    task, run = module(), trainer(max_steps=1)
    run.fit(task, datamodule=data())
    assert isinstance(run.strategy.checkpoint_io, WholeFileCheckpointIO)
    path = tmp_path / "x.ckpt"
    run.save_checkpoint(path)
    before = path.read_bytes()

    def killed(checkpoint: Any, file: Any) -> None:
        assert Path(file).parent == tmp_path
        Path(file).write_bytes(b"half")
        assert path.read_bytes() == before
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        run.save_checkpoint(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.ckpt"]
    monkeypatch.undo()
    run.save_checkpoint(f"file://{tmp_path}/y.ckpt")
    run.save_checkpoint("memory://z.ckpt")
    for place in (tmp_path / "y.ckpt", "memory://z.ckpt"):
        again = Distance.load_from_checkpoint(place, weights_only=True)
        assert torch.equal(again.parameterization.raw_latent, task.parameterization.raw_latent)


def test_a_users_own_writer_stays() -> None:
    class Own(TorchCheckpointIO):
        pass

    own = Own()
    run = trainer(plugins=[own], max_steps=1)
    run.fit(module(), datamodule=data())
    assert run.strategy.checkpoint_io is own


def test_loading_without_strictness_takes_what_fits_and_says_what_does_not(tmp_path: Path) -> None:
    run, task = trainer(max_steps=1), module()
    run.fit(task, datamodule=data())
    run.save_checkpoint(tmp_path / "x.ckpt")
    checkpoint = torch.load(tmp_path / "x.ckpt", weights_only=True)
    checkpoint["state_dict"].pop("network.layers.0.bias")
    checkpoint["state_dict"]["extra"] = torch.ones(1)
    torch.save(checkpoint, tmp_path / "y.ckpt")
    with pytest.raises(ValueError, match=r"lacks \['network.layers.0.bias'\]"):
        Distance.load_from_checkpoint(tmp_path / "y.ckpt", weights_only=True)
    with pytest.warns(UserWarning, match="network.layers.0.bias"):
        again = Distance.load_from_checkpoint(tmp_path / "y.ckpt", weights_only=True, strict=False)
    assert torch.equal(again.parameterization.raw_latent, task.parameterization.raw_latent)
    checkpoint["state_dict"]["parameterization.raw_latent"] = torch.ones(3)
    torch.save(checkpoint, tmp_path / "y.ckpt")
    with pytest.raises(ValueError, match=r"raw_latent has shape \(3,\)"):
        Distance.load_from_checkpoint(tmp_path / "y.ckpt", weights_only=True, strict=False)
