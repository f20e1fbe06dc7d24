"""Measure how far one optimizer step moves the latent."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.callbacks._logging import log_scalars
from lightning_lift.callbacks.periodic import PeriodicCallback
from lightning_lift.diagnostics.latent_step import latent_of, latent_step
from lightning_lift.parameterizations.base import Parameterization

_TAGS = {"rms": "step", "max": "step_max", "rms_per_rate": "step_per_rate", "max_per_rate": "step_max_per_rate"}


class LatentStep(PeriodicCallback):
    """Log the change of the latent in one optimizer step, on that step's own batch before and after.

    Scalars: ``latent/step`` (root mean square over the d numbers), ``latent/step_max``, and both in units of the
    learning rate, ``latent/step_per_rate`` and ``latent/step_max_per_rate``: near 1 for a direct latent under Adam, and
    larger for a lift, whose emission moves too. For projected gradient the latent is theta itself.

    The step that is measured is the one that reaches or passes a multiple of ``every_n_steps``.

    Args:
        every_n_steps: optimizer steps from one look to the next.

    Raises:
        ValueError: fewer than one.
    """

    label = "latent"

    def __init__(self, every_n_steps: int = 100) -> None:
        super().__init__(every_n_steps)
        self._before: Tensor | None = None
        self._rate: float | None = None
        self._started_at = 0
        self._stride = 1  # most optimizer steps that a batch has made so far

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the latent before a step that will be measured; again in each batch that only accumulates."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._before = None
        # A task of several optimizers counts several steps a batch, and its next batch may pass the multiple too.
        self._started_at = trainer.global_step
        ahead = trainer.global_step + max(len(trainer.optimizers), self._stride)
        if self._active and ahead // self.every_n_steps > self._last_step // self.every_n_steps:
            self._before = latent_of(pl_module, batch)  # type: ignore[arg-type]
            self._rate = learning_rate_of(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look when a multiple of ``every_n_steps`` was reached or passed."""
        self._stride = max(self._stride, trainer.global_step - self._started_at)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Log the step that was just made."""
        if self._before is None:
            return
        after = latent_of(pl_module, batch)  # type: ignore[arg-type]
        sizes = latent_step(self._before, after, self._rate)
        self._before = None
        if not trainer.is_global_zero:
            return
        if not bool(after.isfinite().all()):
            self.warn_once(f"the latent is not finite at step {step}: the model has diverged.", key="diverged")
            return
        log_scalars(trainer, {f"{self.name(trainer)}/{_TAGS[kind]}": size for kind, size in sizes.items()}, step)


def learning_rate_of(trainer: L.Trainer, pl_module: L.LightningModule) -> float | None:
    """The present learning rate of the parameterization's numbers; None where no optimizer holds them.

    Args:
        trainer: the trainer.
        pl_module: a module with a bound parameterization.
    """
    parameterization = pl_module.parameterization
    assert isinstance(parameterization, Parameterization)
    own = {id(parameter) for parameter in parameterization.parameters()}
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            if any(id(parameter) in own for parameter in group["params"]):
                rate = group["lr"]
                return float(rate.item() if isinstance(rate, torch.Tensor) else rate)
    return None
