import json
import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from lightning_lift.callbacks import RunSummary
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus


class Diverged(LogConcaveEBM):
    def log_prob(self, x: Tensor) -> Tensor:
        return torch.full((len(x),), math.nan)


def run(folder: Path, module: type[LogConcaveEBM] = LogConcaveEBM, **settings: Any) -> tuple[L.Trainer, Any, Any]:
    data = GumbelDataModule(batch_size=16, batches_per_epoch=3, num_val=32, num_test=32)
    model = module(1, ICNN, DirectSoftplus)
    checkpoint = ModelCheckpoint(monitor="val/nll", save_last=True)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=CSVLogger(folder),
        callbacks=[RunSummary(print_table=False), checkpoint],
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(model, datamodule=data)
    return trainer, model, data


def record(trainer: L.Trainer) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(trainer.loggers[0].log_dir) / "metrics.json").read_text())
    return loaded


def test_fit_and_test_share_one_file(tmp_path: Path) -> None:
    trainer, model, data = run(tmp_path)
    after_fit = record(trainer)
    assert "val/nll" in after_fit["metrics"]
    assert not any(name.startswith("test/") for name in after_fit["metrics"])
    assert Path(after_fit["checkpoints"]["best"]).is_file()
    trainer.test(model, datamodule=data, verbose=False)
    both = record(trainer)
    assert both["metrics"]["val/nll"] == after_fit["metrics"]["val/nll"]
    assert both["metrics"]["test/nll"] == float(trainer.callback_metrics["test/nll"])
    assert both["steps"] == 3
    assert both["parameters"] == sum(p.numel() for p in model.parameters())
    assert set(both["seconds"]) == {"fit", "test"}


def test_a_diverged_run_still_writes_standard_json(tmp_path: Path) -> None:
    trainer, _, _ = run(tmp_path, Diverged)
    assert record(trainer)["metrics"]["val/nll"] == "nan"


def test_a_development_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # Lightning's own last checkpoint goes to the working directory then
    run(tmp_path, fast_dev_run=True)
    assert not list(tmp_path.rglob("metrics.json"))
