import json
import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import Tensor

from lightning_lift.callbacks import RunSummary
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus
from tests.lightning_lift.callbacks.runs import events, make_trainer, small_data, small_model


class Undefined(LogConcaveEBM):
    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("val/ratio", math.nan)


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


def test_a_figure_that_is_not_finite_is_written_as_standard_json(tmp_path: Path) -> None:
    trainer, _, _ = run(tmp_path, Undefined)
    assert record(trainer)["metrics"]["val/ratio"] == "nan"


def test_a_fit_alone_is_in_the_hparams_tab_and_a_test_names_its_columns(tmp_path: Path) -> None:
    def hparams() -> dict[str, bytes]:
        logger.experiment.flush()
        return events(tmp_path).PluginTagToContent("hparams")

    logger = TensorBoardLogger(tmp_path, name="logs", version="a", default_hp_metric=False)
    model, data = small_model(), small_data()
    trainer = make_trainer(tmp_path, [RunSummary(print_table=False)], logger, max_steps=10)
    trainer.fit(model, data)
    started = HParamsPluginData.FromString(hparams()["_hparams_/session_start_info"]).session_start_info.hparams
    assert started["dim"].number_value == 1.0
    assert started["parameterization/init_args/slack_start"].number_value == -2.0
    assert "_hparams_/experiment" not in hparams(), "TensorBoard would never show the columns of a later test"
    trainer.test(model, data, verbose=False)
    columns = HParamsPluginData.FromString(hparams()["_hparams_/experiment"]).experiment.metric_infos
    assert {"val/nll", "test/nll"} <= {column.name.tag for column in columns}
    assert {"val/nll", "test/nll"} <= set(events(tmp_path).Tags()["scalars"]), "columns need values"


@pytest.mark.parametrize("latest_first", [True, False])
def test_best_is_the_monitored_one_and_last_the_latest_each_with_its_step(latest_first: bool, tmp_path: Path) -> None:
    class Worsens(L.Callback):
        def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pl_module.log("val/rising", float(trainer.global_step))

    latest = ModelCheckpoint(tmp_path, filename="latest", every_n_train_steps=5)
    best = ModelCheckpoint(tmp_path, filename="best", monitor="val/rising", save_last=True)
    other = ModelCheckpoint(tmp_path, filename="other", monitor="val/rising", mode="max")
    callbacks = [latest, best, other] if latest_first else [best, other, latest]
    trainer = make_trainer(
        tmp_path,
        [Worsens(), RunSummary(False), *callbacks],
        CSVLogger(tmp_path),
        max_steps=35,
        enable_checkpointing=True,
    )
    trainer.fit(small_model(), small_data())
    written = record(trainer)
    assert written["checkpoint_steps"] == {"best": 10, "best val/rising": 30, "last": 35}
    assert written["checkpoints"]["last"] == str(tmp_path / "latest.ckpt")
    for name, path in written["checkpoints"].items():
        assert torch.load(path, weights_only=True)["global_step"] == written["checkpoint_steps"][name]
