"""What is watched of a run: curves at the evaluations, clock, checkpoints, divergence, hashes of its start and data."""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lightning_lift.compare.records import monitored
from lightning_lift.diagnostics.latent_step import latent_of, latent_step
from lightning_lift.diagnostics.probe import Probed, undisturbed
from lightning_lift.diagnostics.shoulder import inside_mask, occupancy
from lightning_lift.modules.divergence import DivergenceError, has_exploded, largest_weight
from lightning_lift.parameterizations import Parameterization

_TOLERANCE = 1e-5  # relative; what a right inverse promises is 1e-6
_ROWS = 8
HASHED_BATCHES = 3


def weight_measurements(module: Probed, batch: Any, before: Tensor | None) -> dict[str, float]:
    """What an evaluation measures of the weights.

    Args:
        module: as training sees it.
        batch: on which a latent is conditioned, the same at each evaluation, shape (N, D) or with parts.
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
    """Rows of evaluations as columns of equal length, NaN where an evaluation did not measure something.

    Args:
        rows: one evaluation each.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


class Recorder(L.Callback):
    """Evaluate a run every so many steps, and stop it when it diverges. It disturbs nothing and draws no numbers.

    An evaluation comes with each validation of fit: training loss of that step's batch, validation metrics, shoulder
    occupancy and the latent's step on one fixed batch (the first of training), and the seconds of training so far:
    the clock stands still in validation, in evaluations and while checkpoints are written.

    Args:
        folder: where checkpoints go.
        checkpoint_every: optimizer steps between step checkpoints (without optimizer state), the first before training;
            None for none.
        weights_only: leave the optimizer's state out of the best and the last checkpoint.
    """

    judges_divergence = True  # the module leaves it to this callback

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
        self._first_loss: float | None = None
        self._checkpointed = -1

    def data_hash(self, finished: bool) -> str:
        """The hash of the first training batches, as training got them; empty where they are fewer than in other runs.

        Args:
            finished: whether the run did all its steps.
        """
        return data_hash(self._seen) if finished or len(self._seen) == HASHED_BATCHES else ""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock; before the first step take the fixed batch."""
        self.clock.stop()
        if self.start_size is None:
            self.start_size = largest_weight(pl_module)
            self._fixed = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), batch)
            self._save_step(trainer)
        if len(self._seen) < HASHED_BATCHES:
            self._seen.append(pytree.tree_map_only(Tensor, lambda t: t.detach().cpu().clone(), batch))
        self.clock.start()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Take the latent before the step that an evaluation will follow."""
        if self._before is None and _evaluates(trainer) and self._has_latent(pl_module):
            self.clock.stop()
            self._before = latent_of(pl_module, self._fixed)  # type: ignore[arg-type]
            self.clock.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluate, and raise ``DivergenceError`` where the loss is not finite or has exploded."""
        self.clock.stop()
        step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self._first_loss is None and isinstance(loss, Tensor):
            self._first_loss = float(loss)
        if isinstance(loss, Tensor) and has_exploded(float(loss), self._first_loss or 0.0):
            self._row(step)["train/loss"] = float(loss)
            raise DivergenceError(f"the training loss is {float(loss)} at step {step}")
        if self.checkpoint_every and step // self.checkpoint_every > self._checkpointed // self.checkpoint_every:
            self._save_step(trainer)
        if _evaluates(trainer):  # validation follows, and the clock starts again with the next batch
            self._evaluate(trainer, pl_module, step, loss)
        else:
            self.clock.start()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add the validation's metrics, and keep the state of the lowest monitored one."""
        if trainer.state.fn != "fit":
            return
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        step = trainer.global_step
        self._row(step).update(values)
        name = monitored(values, getattr(pl_module, "selection_metric", None))
        if name is None:
            return
        if not math.isfinite(values[name]):
            raise DivergenceError(f"{name} is {values[name]} at step {step}")
        if values[name] < self._best:
            self._best, self.best_step, self.best_metrics = values[name], step, values
            self._save(trainer, "best", self.weights_only)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the last state."""
        self.clock.stop()
        self._save(trainer, "last", self.weights_only)

    def _evaluate(self, trainer: L.Trainer, pl_module: L.LightningModule, step: int, loss: Any) -> None:
        row = self._row(step)
        logged = trainer.callback_metrics.get("train/loss", loss)  # without a parameterization's own penalty
        row["train/loss"] = float(logged) if isinstance(logged, Tensor) else math.nan
        if self._has_latent(pl_module):
            row |= weight_measurements(pl_module, self._fixed, self._before)  # type: ignore[arg-type]
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
        """Run, from now on."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Stand still; a no-op if it does."""
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None


def _evaluates(trainer: L.Trainer) -> bool:
    """Whether a validation follows the batch at hand."""
    every = trainer.val_check_interval
    return isinstance(every, int) and (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0


@torch.no_grad()
def start_hash(module: L.LightningModule, reference: L.LightningModule) -> str:
    """The hash of the network's weights before the first step.

    A latent gives its weights back to a few roundings, so that hashes of the weights themselves would differ between
    arms of one start. What is hashed is therefore ``reference``, which holds the network's own first numbers, *if* the
    module starts there: constrained weights within 1e-5 relative (those that it cannot hold, raised to its floor), all
    other tensors of the network exactly. A module that starts elsewhere has the hash of its own numbers. Two modules
    have one hash only if both start at the same place.

    Args:
        module: before its first step.
        reference: the same network under projected gradient, of the same seed, before its first step.
    """
    own, start = _weights(module), _weights(reference)
    parameterization = getattr(module, "parameterization", None)
    constrained: tuple[str, ...] = getattr(parameterization, "names", ())
    floor = _floor(parameterization)
    same = own.keys() == start.keys() and all(
        _close(own[name], start[name], floor) if name in constrained else torch.equal(own[name], start[name])
        for name in own
    )
    digest = hashlib.sha256()
    for name, tensor in sorted((start if same else own).items()):
        _update(digest, name, tensor)
    return digest.hexdigest()[:16]


def data_hash(batches: Iterable[Any]) -> str:
    """The hash of the first training batches, bit by bit.

    Args:
        batches: tensors, or tuples and mappings of them.
    """
    digest = hashlib.sha256()
    for batch in batches:
        for leaf in pytree.tree_leaves(batch):
            if isinstance(leaf, Tensor):
                _update(digest, "", leaf)
    return digest.hexdigest()[:16]


def _weights(module: L.LightningModule) -> dict[str, Tensor]:
    parameterization = getattr(module, "parameterization", None)
    if not isinstance(parameterization, Parameterization):
        return {name: parameter.detach() for name, parameter in module.named_parameters()}
    network = module.network
    assert isinstance(network, nn.Module)
    with undisturbed(module):
        # Evaluation has no noise, but a lift has no reference summary yet. A matched start is the same for every batch.
        parameterization.train(parameterization.needs_calibration)
        like = next(parameterization.parameters())
        dim = int(getattr(module, "summary_dim", getattr(module, "dim", 1)))
        weights = parameterization.weights(torch.linspace(-1.0, 1.0, _ROWS * dim).view(_ROWS, dim).to(like))
    return {name: tensor.detach().cpu() for name, tensor in [*network.named_parameters(), *weights.items()]}


def _floor(parameterization: Any) -> float:
    readout = getattr(parameterization, "readout", None)
    return float(getattr(parameterization if readout is None else readout, "floor", 0.0))


def _close(own: Tensor, start: Tensor, floor: float) -> bool:
    if own.shape != start.shape:
        return False
    wanted = start.clamp(min=floor)
    return bool(((own - wanted).abs() <= _TOLERANCE * wanted).all())


def _update(digest: Any, name: str, tensor: Tensor) -> None:
    # Zero and minus zero are one weight.
    array = (tensor.detach().cpu() + 0.0 if tensor.is_floating_point() else tensor.detach().cpu()).contiguous()
    digest.update(f"{name} {tuple(array.shape)} {array.dtype}".encode())
    digest.update(array.view(torch.uint8).numpy().tobytes() if array.ndim else str(array.item()).encode())
