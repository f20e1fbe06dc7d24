from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging

from lightning_lift.callbacks import LastCheckpoint
from tests.lightning_lift.callbacks.runs import make_trainer, small_data, small_model


class Worsens(L.Callback):
    """A metric that only the first validation improves."""

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        pl_module.log("val/rising", float(trainer.global_step))


def fit(folder: Path, *callbacks: L.Callback, **settings: Any) -> Any:
    model = small_model()
    settings = {"enable_checkpointing": True, "num_sanity_val_steps": 0} | settings
    make_trainer(folder, [*callbacks, LastCheckpoint(str(folder))], False, **settings).fit(model, small_data())
    return model


def step(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


@pytest.mark.parametrize("settings", [{"val_check_interval": 4}, {"limit_val_batches": 0}, {"max_time": "00:01:00:00"}])
def test_last_is_the_last_step_whatever_the_metric_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    best = ModelCheckpoint(tmp_path, "best", "val/rising") if "limit_val_batches" not in settings else Worsens()
    model = fit(tmp_path, Worsens(), best, max_steps=7, **settings)
    assert step(tmp_path / "last.ckpt") == 7
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(stored[name], p) for name, p in model.named_parameters())
    if (tmp_path / "best.ckpt").exists():
        assert step(tmp_path / "best.ckpt") == 4


def test_last_holds_the_average_that_swa_leaves(tmp_path: Path) -> None:
    average = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
    model = fit(tmp_path, average, max_steps=-1, max_epochs=3)
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(stored[name], p) for name, p in model.named_parameters())
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["last.ckpt"]


@pytest.mark.parametrize("save_last", [True, "link"])
def test_last_is_its_own_beside_another_that_would_write_it(tmp_path: Path, save_last: Any) -> None:
    steps = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_last=save_last)
    fit(tmp_path, steps, max_steps=7)
    assert {path.name: step(path) for path in tmp_path.glob("*.ckpt")} == {"step=6.ckpt": 6, "last.ckpt": 7}


def test_an_error_has_a_file_of_its_own_and_fast_dev_run_none(tmp_path: Path) -> None:
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 6:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, Stop(), max_steps=9, val_check_interval=4)
    assert {path.name: step(path) for path in tmp_path.glob("*.ckpt")} == {"last.ckpt": 4, "exception.ckpt": 6}
    fit(tmp_path / "none", fast_dev_run=True)
    assert not list((tmp_path / "none").glob("*.ckpt")) if (tmp_path / "none").exists() else True
