"""What a run of a comparison watches: its curves at the looks, its clock, its checkpoints, and whether it diverges."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)
from torch import Tensor

from lightning_lift.callbacks import PathConditioning
from lightning_lift.compare.arms import imported
from lightning_lift.compare.hashing import HASHED_BATCHES, data_hash
from lightning_lift.diagnostics.latent_step import latent_of, latent_step
from lightning_lift.diagnostics.shoulder import floor_mask, occupancy, shoulder_mask
from lightning_lift.parameterizations import Parameterization

_OBSERVERS = (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,  # it would end arms at different steps
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)
_OURS = "lightning_lift.callbacks."
_TRAINING = (PathConditioning,)
MONITORED = ("val/nll", "val/loss")


class DivergenceError(Exception):
    """The loss or a metric is not finite; the message says which, and at which step."""


def keeps_training(settings: Mapping[str, Any] | str) -> bool:
    """Whether a callback of a configuration belongs in a comparison: one that alters training does.

    Args:
        settings: ``{class_path, init_args}`` of the callback.

    Returns:
        False for what only looks, writes or stops (checkpoints, progress, this package's figures and readings, early
        stopping); True for weight averaging, accumulation, path-conditioning and whatever is not known.
    """
    cls = imported(settings if isinstance(settings, str) else settings["class_path"])
    if not isinstance(cls, type):
        return True
    ours = cls.__module__.startswith(_OURS) and not issubclass(cls, _TRAINING)
    return not (ours or issubclass(cls, _OBSERVERS))


def monitored(metrics: Mapping[str, Any]) -> str | None:
    """Name of the validation metric by which ``best`` is chosen (lowest): ``val/nll``, else ``val/loss``, else None.

    Args:
        metrics: what was logged.
    """
    return next((name for name in MONITORED if name in metrics), None)


def weight_statistics(parameterization: Parameterization, latent: Tensor) -> dict[str, float]:
    """What a look says of the weights.

    Args:
        parameterization: bound.
        latent: shape (d,), as training sees it.

    Returns:
        ``shoulder/occupancy`` behind a readout; ``zeros/fraction`` (weights exactly at the floor) of projected ones.
    """
    if parameterization.readout is None:
        floor = float(getattr(parameterization, "floor", 0.0))
        return {"zeros/fraction": occupancy(floor_mask(latent, floor))}
    return {"shoulder/occupancy": occupancy(shoulder_mask(parameterization.readout, latent))}


@torch.no_grad()
def largest_weight(module: L.LightningModule) -> float:
    """The largest size among all trained numbers; NaN or infinity where one is not finite.

    Args:
        module: any; 0 for one without parameters.
    """
    sizes = [p.abs().max() for p in module.parameters() if p.numel()]
    return float(torch.stack(sizes).max()) if sizes else 0.0


def as_curves(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Rows of looks as columns of equal length, NaN where a look did not measure something.

    Args:
        rows: one look each.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


class Recorder(L.Callback):
    """Looks at a run every so many steps, and stops it when it diverges. It disturbs nothing and draws no numbers.

    A look comes with each validation of fit: training loss of that step's batch, validation metrics, shoulder
    occupancy and the latent's step on one fixed batch (the first of training), and the seconds of training so far:
    the clock stands still in validation, in looks and while checkpoints are written.

    Args:
        folder: where checkpoints go.
        checkpoint_every: optimizer steps between step checkpoints (without optimizer state), the first before training;
            None for none.
        weights_only: leave the optimizer's state out of the best and the last checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        checkpoint_every: int | None = None,
        weights_only: bool = False,
    ) -> None:
        self.folder = folder
        self.checkpoint_every = checkpoint_every
        self.weights_only = weights_only
        self.rows: list[dict[str, float]] = []
        self.checkpoints: dict[str, Path] = {}
        self.start_size: float | None = None
        self.best_step: int | None = None
        self.best_metrics: dict[str, float] = {}
        self.clock = Clock()
        self._best = math.inf
        self._seen: list[Any] = []
        self._fixed: Any = None
        self._before: Tensor | None = None
        self._checkpointed = -1

    @property
    def data_hash(self) -> str:
        """Of the first training batches, as training got them."""
        return data_hash(self._seen)

    @property
    def saw_enough(self) -> bool:
        """Whether ``data_hash`` is of as many batches as in other runs."""
        return len(self._seen) == HASHED_BATCHES

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Starts the clock; before the first step takes the fixed batch."""
        self.clock.stop()
        if self.start_size is None:
            self.start_size = largest_weight(pl_module)
            self._fixed = batch.detach().clone() if isinstance(batch, Tensor) else None
            self._save_step(trainer)
        if len(self._seen) < HASHED_BATCHES:
            self._seen.append(torch.utils._pytree.tree_map_only(Tensor, lambda t: t.detach().cpu().clone(), batch))
        self.clock.start()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Takes the latent before the step that a look will follow."""
        if self._before is None and _looks(trainer) and self._has_latent(pl_module):
            self.clock.stop()
            self._before = latent_of(pl_module, self._fixed)  # type: ignore[arg-type]
            self.clock.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks, and raises ``DivergenceError`` where the loss is not finite."""
        self.clock.stop()
        step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and not bool(torch.isfinite(loss).all()):
            self._row(step)["train/loss"] = float(loss)
            raise DivergenceError(f"the training loss is {float(loss)} at step {step}")
        if self.checkpoint_every and step // self.checkpoint_every > self._checkpointed // self.checkpoint_every:
            self._save_step(trainer)
        if _looks(trainer):  # validation follows, and the clock starts again with the next batch
            self._look(trainer, pl_module, step, loss)
        else:
            self.clock.start()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adds the validation's metrics, and keeps the state of the lowest monitored one."""
        if trainer.state.fn != "fit":
            return
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        step = trainer.global_step
        self._row(step).update(values)
        name = monitored(values)
        if name is None:
            return
        if not math.isfinite(values[name]):
            raise DivergenceError(f"{name} is {values[name]} at step {step}")
        if values[name] < self._best:
            self._best, self.best_step, self.best_metrics = values[name], step, values
            self._save(trainer, "best", self.weights_only)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps the last state."""
        self.clock.stop()
        self._save(trainer, "last", self.weights_only)

    def _look(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int, loss: Any) -> None:
        row = self._row(step)
        logged = trainer.callback_metrics.get("train/loss", loss)  # without a parameterization's own penalty
        row["train/loss"] = float(logged) if isinstance(logged, Tensor) else math.nan
        if self._has_latent(pl_module):
            latent = latent_of(pl_module, self._fixed)  # type: ignore[arg-type]
            row |= weight_statistics(pl_module.parameterization, latent)  # type: ignore[arg-type]
            row["latent/step"] = math.nan if self._before is None else latent_step(self._before, latent)["rms"]
        self._before = None

    def _row(self, step: int) -> dict[str, float]:
        if not self.rows or self.rows[-1]["step"] != step:
            self.rows.append({"step": float(step), "seconds": self.clock.seconds})
        return self.rows[-1]

    def _has_latent(self, pl_module: L.LightningModule) -> bool:
        return self._fixed is not None and isinstance(getattr(pl_module, "parameterization", None), Parameterization)

    def _save_step(self, trainer: L.Trainer) -> None:
        if self.checkpoint_every is not None:
            self._checkpointed = trainer.global_step
            self._save(trainer, f"step{trainer.global_step:06d}", weights_only=True)

    def _save(self, trainer: L.Trainer, name: str, weights_only: bool) -> None:
        path = self.folder / f"{name}.ckpt"
        trainer.save_checkpoint(path, weights_only=weights_only)
        self.checkpoints[name] = path


class Clock:
    """A stopwatch: ``seconds`` of what lay between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started: float | None = None

    def start(self) -> None:
        """Runs, from now on."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Stands still; a no-op if it does."""
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None


def _looks(trainer: L.Trainer) -> bool:
    """Whether a validation follows the batch at hand."""
    every = trainer.val_check_interval
    return isinstance(every, int) and (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0
