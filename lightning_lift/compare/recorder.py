"""What a run of a comparison watches: its curves at the looks, its clock, its checkpoints, and whether it diverges."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.compare.hashing import HASHED_BATCHES, data_hash
from lightning_lift.compare.outcomes import DivergenceError, largest_weight
from lightning_lift.compare.record import monitored
from lightning_lift.diagnostics.latent_step import latent_of, latent_step
from lightning_lift.diagnostics.probe import Probed
from lightning_lift.diagnostics.shoulder import inside_mask, occupancy
from lightning_lift.parameterizations import Parameterization


def weight_readings(module: Probed, batch: Tensor, before: Tensor | None) -> dict[str, float]:
    """What a look says of the weights.

    Args:
        module: as training sees it.
        batch: on which a latent is conditioned, the same at each look, shape (N, D).
        before: the latent on it before the step, shape (d,); None where it was not taken.

    Returns:
        ``shoulder/occupancy`` behind a readout, ``zeros/fraction`` (weights exactly at the floor) of projected ones;
        ``latent/step``.
    """
    parameterization = module.parameterization
    latent = latent_of(module, batch)
    name = "zeros/fraction" if parameterization.readout is None else "shoulder/occupancy"
    found = {name: occupancy(inside_mask(parameterization, latent))}
    return found | {"latent/step": math.nan if before is None else latent_step(before, latent)["rms"]}


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

    def __init__(self, folder: Path, checkpoint_every: int | None = None, weights_only: bool = False) -> None:
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

    def data_hash(self, finished: bool) -> str:
        """Of the first training batches, as training got them; empty where it would be of fewer than in other runs.

        Args:
            finished: whether the run did all its steps.
        """
        return data_hash(self._seen) if finished or len(self._seen) == HASHED_BATCHES else ""

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
            row |= weight_readings(pl_module, self._fixed, self._before)  # type: ignore[arg-type]
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
