"""The data side of resuming: the rows after it are those of the uninterrupted run, in every way Lightning resumes."""

from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from lightning_lift.datamodules import GumbelDataModule

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BATCHES = 6


class Mean(lightning.LightningModule):
    def __init__(self, cycle: bool = False) -> None:
        super().__init__()
        self.cycle = cycle
        self.mean = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, float]] = []

    def training_step(self, batch, batch_idx):
        self.seen.append((batch_idx, float(batch.double().sum())))
        return (batch - self.mean).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", (batch - self.mean).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        if not self.cycle:
            return optimizer
        # sets up the loaders before a checkpoint's place in the data is known
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class SaveOnce(Callback):
    def __init__(self, hook: str, step: int, path: Path) -> None:
        self.hook, self.step, self.path = hook, step, path

    def _save(self, trainer, hook: str) -> None:
        if hook == self.hook and trainer.global_step == self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer, *_):
        self._save(trainer, "batch")

    def on_validation_end(self, trainer, *_):
        self._save(trainer, "validation")

    def on_train_epoch_end(self, trainer, *_):
        self._save(trainer, "epoch")

    def on_train_end(self, trainer, *_):
        self._save(trainer, "end")


class Interrupt(Callback):
    """Saves in the middle of a batch, where a user's Ctrl-C would, and stops there."""

    def __init__(self, hook: str, step: int, path: Path) -> None:
        self.hook, self.step, self.path = hook, step, path

    def _stop(self, trainer, hook: str) -> None:
        if hook == self.hook and trainer.global_step == self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)
            raise StoppedError

    def on_train_batch_start(self, trainer, *_):
        self._stop(trainer, "start")

    def on_before_backward(self, trainer, *_):
        self._stop(trainer, "backward")

    def on_before_optimizer_step(self, trainer, *_):
        self._stop(trainer, "step")


class StoppedError(Exception):
    pass


def fit(num_train, callback=None, checkpoint=None, cycle=False, **trainer) -> Mean:
    data = GumbelDataModule(
        batch_size=8, batches_per_epoch=BATCHES, num_train=num_train, num_val=16, num_test=8, num_calibration=8
    )
    settings = {"max_epochs": 4, "num_sanity_val_steps": 0, **trainer}
    module = Mean(cycle)
    lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback] if callback else [],
        **settings,
    ).fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    return module


@pytest.mark.parametrize("stop", [{"max_epochs": 4}, {"max_epochs": -1, "max_steps": 23}])
@pytest.mark.parametrize(
    ("hook", "step"), [("batch", 1), ("batch", 8), ("batch", 12), ("validation", 8), ("validation", 12), ("epoch", 12)]
)
@pytest.mark.parametrize("num_train", [None, 50])
def test_resumed_run_is_the_uninterrupted_run(tmp_path, num_train, hook, step, stop) -> None:
    path = tmp_path / "a.ckpt"
    whole = fit(num_train, SaveOnce(hook, step, path), val_check_interval=2, **stop)
    resumed = fit(num_train, checkpoint=path, val_check_interval=2, **stop)
    assert resumed.seen == whole.seen[step:]
    assert torch.equal(resumed.mean, whole.mean)


@pytest.mark.parametrize("step", [0, 2, 6, 8])
@pytest.mark.parametrize("hook", ["start", "backward", "step"])
def test_an_interrupted_batch_is_not_lost(tmp_path, hook, step) -> None:
    whole = fit(50, val_check_interval=2)
    with pytest.raises(StoppedError):
        fit(50, Interrupt(hook, step, tmp_path / "a.ckpt"), val_check_interval=2)
    resumed = fit(50, checkpoint=tmp_path / "a.ckpt", val_check_interval=2)
    assert resumed.seen == whole.seen[step:]
    assert torch.equal(resumed.mean, whole.mean)


@pytest.mark.parametrize("stop", [{"max_epochs": 4}, {"max_epochs": -1, "max_steps": 23}])
@pytest.mark.parametrize(
    ("hook", "step"), [("batch", 3), ("batch", 8), ("batch", 12), ("validation", 8), ("epoch", 12)]
)
def test_loaders_set_up_before_their_place_is_known(tmp_path, hook, step, stop) -> None:
    path = tmp_path / "a.ckpt"
    whole = fit(50, SaveOnce(hook, step, path), cycle=True, val_check_interval=2, **stop)
    resumed = fit(50, checkpoint=path, cycle=True, val_check_interval=2, **stop)
    assert resumed.seen == whole.seen[step:]
    assert torch.equal(resumed.mean, whole.mean)


@pytest.mark.parametrize("hook", ["batch", "epoch"])
def test_without_validation_and_with_fewer_batches_an_epoch(tmp_path, hook) -> None:
    settings = {"max_epochs": -1, "max_steps": 15, "limit_train_batches": 4, "limit_val_batches": 0}
    whole = fit(None, SaveOnce(hook, 8, tmp_path / "a.ckpt"), **settings)
    assert fit(None, checkpoint=tmp_path / "a.ckpt", **settings).seen == whole.seen[8:]


def test_a_run_that_stopped_within_an_epoch_can_be_prolonged(tmp_path) -> None:
    whole = fit(50, max_epochs=-1, max_steps=20, limit_val_batches=0)
    fit(50, SaveOnce("end", 9, tmp_path / "a.ckpt"), max_epochs=-1, max_steps=9, limit_val_batches=0)
    longer = fit(50, checkpoint=tmp_path / "a.ckpt", max_epochs=-1, max_steps=20, limit_val_batches=0)
    assert [total for _, total in longer.seen] == [total for _, total in whole.seen[9:]]
    assert torch.equal(longer.mean, whole.mean)


@pytest.mark.parametrize("num_train", [None, 50])
def test_validating_within_an_epoch_does_not_change_the_training_order(num_train) -> None:
    assert fit(num_train, val_check_interval=2).seen == fit(num_train, limit_val_batches=0).seen


def test_overfit_batches_repeats_the_same_batches() -> None:
    seen = fit(50, max_epochs=3, overfit_batches=2).seen
    assert len(seen) == 6 and seen[:2] == seen[2:4] == seen[4:]
