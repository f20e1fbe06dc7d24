"""The end of a run: a table on screen, ``metrics.json`` beside the logs, and the HPARAMS tab of TensorBoard."""

import json
import math
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table
from torch.utils.tensorboard.summary import hparams

from lightning_lift import __version__
from lightning_lift.callbacks._logging import local_path, run_directory, tensorboard_loggers
from lightning_lift.files import whole_file
from lightning_lift.modules.selection import BestWeights


class RunSummary(L.Callback):
    """The final metrics and where everything is, on screen and as ``metrics.json``.

    The file lies in the run's directory and has ``metrics`` (the last value of each: ``val/...`` after fit,
    ``test/...`` after test), ``checkpoints`` (``best`` by the monitored metric, ``best <metric>`` of further ones, and
    ``last``) with ``checkpoint_steps``, the optimizer step of each, which weights were tested (``tested_checkpoint`` or
    ``tested_weights``), ``figures``, what was trained on what, versions, steps and seconds. A test after a fit in the
    same process adds to the file of the fit. Hyperparameters and final metrics appear in TensorBoard's HPARAMS tab,
    after a fit as after a test. Without a logger, and in a development run (``fast_dev_run``), nothing is written.

    Args:
        print_table: whether to print the table.
    """

    def __init__(self, print_table: bool = True) -> None:
        self.print_table = print_table
        self._started: dict[str, float] = {}
        self._record: dict[str, Any] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, and a new record."""
        self._record = {}
        self._started["fit"] = time.monotonic()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._started["test"] = time.monotonic()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write and print what is known after fit: here, so that every callback has drawn its last figure."""
        if stage == "fit" and trainer.is_global_zero:
            self._finish(trainer, pl_module, "fit")  # the enumeration's member would be printed by its full name

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write and print the test metrics."""
        if trainer.is_global_zero:
            self._finish(trainer, pl_module, "test")

    def _finish(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if getattr(trainer, "fast_dev_run", False):
            return
        prefix = "val/" if stage == "fit" else "test/"
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith((prefix, "train/"))}
        directory, data = run_directory(trainer), getattr(trainer, "datamodule", None)
        seconds = time.monotonic() - self._started.get(stage, time.monotonic())
        record = self._record
        record.setdefault("metrics", {}).update(metrics)
        record.setdefault("seconds", {})[stage] = round(seconds, 3)
        record |= {
            "model": type(pl_module).__name__,
            "parameterization": type(getattr(pl_module, "parameterization", None)).__name__,
            "parameters": sum(p.numel() for p in pl_module.parameters() if p.requires_grad),
            "data": getattr(data, "name", None),
            "versions": {"lightning_lift": __version__, "torch": torch.__version__, "lightning": L.__version__},
        }
        if stage == "fit":
            record["steps"] = trainer.global_step
            record["checkpoints"], record["checkpoint_steps"] = _checkpoints(trainer)
        elif trainer.ckpt_path is not None:
            record["tested_checkpoint"] = str(trainer.ckpt_path)
        else:
            record["tested_weights"] = _tested_weights(trainer, record)
        settings = dict(pl_module.hparams) | dict(getattr(data, "hparams", {}))
        for logger in tensorboard_loggers(trainer):
            _fill_hparams_tab(logger, settings, record["metrics"], stage == "test")
        record["figures"] = []
        if directory is not None:
            record["figures"] = sorted(str(path) for path in (directory / "figures").glob("*.png"))
            with whole_file(directory / "metrics.json") as temporary:
                temporary.write_text(json.dumps(_standard(record), indent=2) + "\n")
        if self.print_table:
            Console().print(self._table(stage, metrics, directory, seconds))

    def _table(self, stage: str, metrics: dict[str, float], directory: Path | None, seconds: float) -> Table:
        record = self._record
        title = f"{stage}: {record['model']} ({record['parameterization']}) on {record['data']}, {seconds:.1f} s"
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in sorted(metrics.items()):
            table.add_row(name, f"{value:.6g}")
        table.add_section()
        if directory is not None:
            table.add_row("logs", str(directory))
            table.add_row("metrics", str(directory / "metrics.json"))
        for name, path in record.get("checkpoints", {}).items():
            step = record["checkpoint_steps"].get(name)
            table.add_row(f"{name} checkpoint", path if step is None else f"{path} (step {step})")
        if stage == "test":
            table.add_row("tested weights", record.get("tested_checkpoint") or record["tested_weights"])
        if directory is not None and record["figures"]:
            table.add_row("figures", f"{directory / 'figures'} ({len(record['figures'])})")
        return table


def _tested_weights(trainer: L.Trainer, record: dict[str, Any]) -> str:
    """Which weights the module has, where they are not those of a file."""
    callbacks: list[Any] = getattr(trainer, "callbacks", [])
    best = next((callback.restored_step for callback in callbacks if isinstance(callback, BestWeights)), None)
    if best is not None:
        return f"those of the best validation (step {best})"
    return f"the last ones of fit (step {record['steps']})" if "steps" in record else "those that the module came with"


def _checkpoints(trainer: L.Trainer) -> tuple[dict[str, str], dict[str, int]]:
    """The files of best and last, and their steps."""
    best: dict[str, str] = {}
    late: list[str] = []
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            late.append(callback.last_model_path)
            if callback.monitor is None:
                late.append(callback.best_model_path)
            elif callback.best_model_path:
                best[f"best {callback.monitor}" if best else "best"] = callback.best_model_path
    steps = {path: step for path in {*best.values(), *late} if path and (step := _step_of(path)) is not None}
    last = max((path for path in late if path), key=lambda path: steps.get(path, -1), default=None)
    found = best if last is None else best | {"last": last}
    return found, {name: steps[path] for name, path in found.items() if path in steps}


def _step_of(path: str) -> int | None:
    """The optimizer step of a checkpoint; None where it is no local file."""
    file = local_path(path)
    if file is None or not file.is_file():
        return None
    return int(torch.load(file, map_location="cpu", mmap=True, weights_only=True)["global_step"])


def _fill_hparams_tab(
    logger: TensorBoardLogger, settings: dict[str, Any], metrics: dict[str, float], with_columns: bool
) -> None:
    """Make a run a session of the HPARAMS tab, whose columns are the metrics of the first run that names them.

    A fit does not name them (the tab then offers every scalar): a test may follow in the same run, and TensorBoard
    takes the first names that it finds.
    """
    columns, start, end = hparams(_flat(settings), metrics)
    writer = logger.experiment._get_file_writer()
    for part in ([columns] if with_columns else []) + [start, end]:
        writer.add_summary(part)


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Nested settings by their paths, ``network/init_args/widths``, as TensorBoard takes them."""
    flat: dict[str, bool | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def _standard(value: Any) -> Any:
    """Standard JSON has no NaN or infinity: they are written as strings."""
    if isinstance(value, dict):
        return {key: _standard(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
