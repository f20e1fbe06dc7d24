"""The base of callbacks that look at the model every so many optimizer steps."""

from abc import abstractmethod
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.parameterizations.base import Parameterization


def check_count(name: str, value: int, least: int = 1) -> None:
    """Refuses a count that is no integer or too small.

    Args:
        name: of the argument.
        value: given.
        least: smallest value allowed.

    Raises:
        ValueError: as said.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give an integer of at least {least}.")


class WarnsOnce(L.Callback):
    """A callback that says each thing once, on rank 0, instead of failing the run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn_once(self, message: str, key: str | None = None) -> None:
        """Warns, unless something was said under this key before.

        Args:
            message: what and why, and what to do.
            key: of the message; None for the message itself.
        """
        key = key or message
        if key not in self._said:
            self._said.add(key)
            rank_zero_warn(f"{type(self).__name__}: {message}")


class PeriodicCallback(WarnsOnce):
    """Looks at the model each time that the optimizer has made another ``every_n_steps`` steps.

    A look changes nothing in training: the global random state, buffers and the train or eval mode are put back. It
    happens on every rank, because a lift pools over the ranks; what is written is written by rank 0.

    Subclass requirements: ``look(trainer, pl_module, batch, step)``, which raises nothing for a diverged model.
    ``looks_at_start`` asks for a look before the first step too.

    Args:
        every_n_steps: optimizer steps from one look to the next.

    Raises:
        ValueError: fewer than one.
    """

    looks_at_start = False

    def __init__(self, every_n_steps: int) -> None:
        super().__init__()
        check_count("every_n_steps", every_n_steps)
        self.every_n_steps = every_n_steps
        self._last_step = 0
        self._active = False

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(every_n_steps=self.every_n_steps)

    @abstractmethod
    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Tensor, step: int) -> None:
        """Measures and writes.

        Args:
            trainer: the trainer.
            pl_module: the model.
            batch: the training batch at hand, shape (N, D).
            step: optimizer steps made so far.
        """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Stays idle, and says so, where the model has no nonnegative weights to look at."""
        self._active = isinstance(getattr(pl_module, "parameterization", None), Parameterization)
        if stage == "fit" and not self._active:
            self.warn_once(f"{type(pl_module).__name__} has no parameterization, so there is nothing to look at.")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts counting: the look that belongs to the step of a checkpoint was made before it was written."""
        self._last_step = trainer.global_step if trainer.global_step else -1

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Looks before the first step."""
        if self._active and self._last_step < 0:
            self._last_step = 0
            if self.looks_at_start:
                self._look(trainer, pl_module, batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks when a multiple of ``every_n_steps`` was reached or passed (some tasks make several steps a batch)."""
        step = trainer.global_step
        if self._active and step // self.every_n_steps > self._last_step // self.every_n_steps:
            self._last_step = step
            self._look(trainer, pl_module, batch)

    def _look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any) -> None:
        with undisturbed(pl_module):
            self.look(trainer, pl_module, batch, trainer.global_step)


@torch.no_grad()
def latent_now(pl_module: L.LightningModule, batch: Tensor) -> Tensor:
    """The latent as training sees it, conditioned on the batch; shape (d,), detached. Collective for a lift.

    Args:
        pl_module: a module with a bound parameterization; call inside ``undisturbed``.
        batch: shape (N, D).
    """
    parameterization = pl_module.parameterization
    assert isinstance(parameterization, Parameterization)
    parameterization.train()
    with torch.autocast(device_type=batch.device.type, enabled=False):
        return parameterization.latent(batch).detach()
