"""The end of a run: a table on screen, ``metrics.json`` beside the logs, and the HPARAMS tab of TensorBoard."""

import json
import math
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.console import Console
from rich.table import Table

from lightning_lift import __version__
from lightning_lift.callbacks._logging import run_directory, tensorboard_loggers
from lightning_lift.files import whole_file


class RunSummary(L.Callback):
    """Prints the final metrics and where everything is, and writes the same as ``metrics.json``.

    The file lies in the run's directory and has ``metrics`` (the last value of each: ``val/...`` after fit,
    ``test/...`` after test), ``checkpoints``, ``figures``, what was trained on what, versions, steps and seconds. A
    test after a fit in the same process adds to the file of the fit. With test metrics the hyperparameters and those
    metrics are written for TensorBoard's HPARAMS tab.

    Args:
        print_table: whether to print the table.
    """

    def __init__(self, print_table: bool = True) -> None:
        self.print_table = print_table
        self._started: dict[str, float] = {}
        self._record: dict[str, Any] = {}

    @property
    def state_key(self) -> str:
        """One summary a run."""
        return self._generate_state_key(print_table=self.print_table)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock, and a new record."""
        self._record = {}
        self._started["fit"] = time.monotonic()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock."""
        self._started["test"] = time.monotonic()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes and prints what is known after fit."""
        self._finish(trainer, pl_module, "fit")

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes and prints the test metrics, and fills the HPARAMS tab."""
        metrics = self._finish(trainer, pl_module, "test")
        if metrics and trainer.is_global_zero:
            data = getattr(trainer, "datamodule", None)
            settings = {**dict(pl_module.hparams), **dict(getattr(data, "hparams", {}))}
            for logger in tensorboard_loggers(trainer):
                logger.log_hyperparams(settings, metrics)

    def _finish(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> dict[str, float]:
        prefix = "val/" if stage == "fit" else "test/"
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith((prefix, "train/"))}
        if not trainer.is_global_zero or getattr(trainer, "fast_dev_run", False):
            return metrics
        directory = run_directory(trainer)
        seconds = time.monotonic() - self._started.get(stage, time.monotonic())
        record = self._record
        record.setdefault("metrics", {}).update(metrics)
        record.setdefault("seconds", {})[stage] = round(seconds, 3)
        record |= {
            "model": type(pl_module).__name__,
            "parameterization": type(getattr(pl_module, "parameterization", None)).__name__,
            "parameters": sum(p.numel() for p in pl_module.parameters() if p.requires_grad),
            "data": getattr(getattr(trainer, "datamodule", None), "name", None),
            "versions": {"lightning_lift": __version__, "torch": torch.__version__, "lightning": L.__version__},
        }
        if stage == "fit":
            record["steps"] = trainer.global_step
            record["checkpoints"] = _checkpoints(trainer)
        elif trainer.ckpt_path is not None:
            record["tested_checkpoint"] = str(trainer.ckpt_path)
        record["figures"] = sorted(str(path) for path in (directory / "figures").glob("*.png"))
        with whole_file(directory / "metrics.json") as temporary:
            temporary.write_text(json.dumps(_standard(record), indent=2) + "\n")
        if self.print_table:
            Console().print(self._table(stage, metrics, directory, seconds))
        return metrics

    def _table(self, stage: str, metrics: dict[str, float], directory: Path, seconds: float) -> Table:
        record = self._record
        title = f"{stage}: {record['model']} ({record['parameterization']}) on {record['data']}, {seconds:.1f} s"
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:.6g}")
        table.add_section()
        table.add_row("logs", str(directory))
        table.add_row("metrics", str(directory / "metrics.json"))
        for name, path in record.get("checkpoints", {}).items():
            table.add_row(f"{name} checkpoint", path)
        if stage == "test" and "tested_checkpoint" in record:
            table.add_row("tested checkpoint", record["tested_checkpoint"])
        if record["figures"]:
            table.add_row("figures", f"{directory / 'figures'} ({len(record['figures'])})")
        return table


def _checkpoints(trainer: L.Trainer) -> dict[str, str]:
    found = {}
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            for name, path in (("best", callback.best_model_path), ("last", callback.last_model_path)):
                if path:
                    found[name] = path
    return found


def _standard(value: Any) -> Any:
    """Standard JSON has no NaN or infinity: they are written as strings."""
    if isinstance(value, dict):
        return {key: _standard(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
