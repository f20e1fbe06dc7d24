"""The base of callbacks that look at the model every so many optimizer steps."""

import inspect
import itertools
from abc import abstractmethod
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_lift.diagnostics.probe import latent_at, undisturbed
from lightning_lift.parameterizations.base import Parameterization


def check_count(name: str, value: int, least: int = 1) -> None:
    """Refuse a count that is no integer or too small.

    Args:
        name: of the argument.
        value: given.
        least: smallest value allowed.

    Raises:
        ValueError: it is neither an integer nor large enough.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give an integer of at least {least}.")


class ReportingCallback(L.Callback):
    """A callback that reports under a name of its own, and says once what it cannot do instead of failing the run.

    Two instances of one kind, with different settings, are told apart in checkpoints by all their settings, and in tags
    and file names by a number: the second one in the trainer's list writes ``density_2`` where the first has
    ``density``.

    Subclass requirements: ``label``, the first part of tags and file names; constructor arguments are kept as
    attributes of their own names.
    """

    label = ""

    def __init__(self) -> None:
        self._said: set[str] = set()

    @property
    def state_key(self) -> str:
        """The kind with all its settings."""
        return self._generate_state_key(**self._settings())

    def _settings(self) -> dict[str, Any]:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name, None) for name in names}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Find the state that version 0.1 stored under some of the settings alone."""
        states, settings = checkpoint["callbacks"], self._settings().items()
        for some in itertools.chain(*(itertools.combinations(settings, count) for count in range(len(settings)))):
            key = self._generate_state_key(**dict(some))
            if key in states:
                states.setdefault(self.state_key, states[key])

    def name(self, trainer: L.Trainer, label: str | None = None) -> str:
        """The label, with ``_2``, ``_3``, ... behind it where callbacks of this label stand before in the list.

        Args:
            trainer: whose list of callbacks it is.
            label: another one in place of ``label``.
        """
        before = itertools.takewhile(lambda other: other is not self, trainer.callbacks)  # type: ignore[attr-defined]
        twins = sum(isinstance(other, ReportingCallback) and other.label == self.label for other in before)
        return (label or self.label) + (f"_{twins + 1}" if twins else "")

    def warn_once(self, message: str, key: str | None = None) -> None:
        """Warn, unless something was said under this key before.

        Args:
            message: what and why, and what to do.
            key: of the message; None for the message itself.
        """
        key = key or message
        if key not in self._said:
            self._said.add(key)
            rank_zero_warn(f"{type(self).__name__}: {message}")


class PeriodicCallback(ReportingCallback):
    """A look at the model each time that the optimizer has made another ``every_n_steps`` steps.

    A look changes nothing in training: the global random state, buffers and the train or eval mode are put back. It
    happens on every rank, because a lift pools over the ranks; what is written is written by rank 0.

    Subclass requirements: ``label``, and ``look(trainer, pl_module, batch, step)``, which raises nothing for a diverged
    model. ``looks_at_start`` asks for a look before the first step too.

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

    @abstractmethod
    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Measure and write.

        Args:
            trainer: the trainer.
            pl_module: the model.
            batch: the training batch at hand, shape (N, D) or with parts.
            step: optimizer steps made so far.
        """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Stay idle, and say so, where the model has no nonnegative weights to look at."""
        self._active = isinstance(getattr(pl_module, "parameterization", None), Parameterization)
        if stage == "fit" and not self._active:
            self.warn_once(f"{type(pl_module).__name__} has no parameterization, so there is nothing to look at.")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting: the look that belongs to the step of a checkpoint was made before it was written."""
        self._last_step = trainer.global_step if trainer.global_step else -1

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look before the first step."""
        if self._active and self._last_step < 0:
            self._last_step = 0
            if self.looks_at_start:
                self._look(trainer, pl_module, batch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look when a multiple of ``every_n_steps`` was reached or passed (some tasks make several steps a batch)."""
        step = trainer.global_step
        if self._active and step // self.every_n_steps > self._last_step // self.every_n_steps:
            self._last_step = step
            self._look(trainer, pl_module, batch)

    def _look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any) -> None:
        with undisturbed(pl_module):
            self.look(trainer, pl_module, batch, trainer.global_step)


@torch.no_grad()
def latent_now(pl_module: L.LightningModule, batch: Any) -> Tensor:
    """The latent as training sees it, conditioned on the batch; shape (d,), detached. Collective for a lift.

    Args:
        pl_module: a module with a bound parameterization; call inside ``undisturbed``.
        batch: shape (N, D) or with parts.
    """
    parameterization = pl_module.parameterization
    assert isinstance(parameterization, Parameterization)
    parameterization.train()
    with torch.autocast(device_type=pl_module.device.type, enabled=False):
        return latent_at(pl_module, batch).detach()  # type: ignore[arg-type]
