"""How much of the model sits on the readout's shoulder, and how it comes and goes."""

from typing import Any

import lightning as L
from torch import Tensor

from lightning_lift.callbacks._logging import log_scalars
from lightning_lift.callbacks.periodic import PeriodicCallback, latent_now
from lightning_lift.diagnostics.shoulder import (
    SHOULDER_SLOPE,
    Transitions,
    inside_mask,
    occupancy,
    occupancy_by_tensor,
    transitions,
)
from lightning_lift.parameterizations.base import Parameterization


class ShoulderOccupancy(PeriodicCallback):
    """Log the fraction of weights on the shoulder {psi' <= slope}, overall and per tensor.

    Scalars: ``shoulder/occupancy``, ``shoulder/occupancy/<tensor>``, and from one look to the next
    ``shoulder/entry_rate`` (entries over those that were off it) and ``shoulder/exit_rate`` (exits over those on it).
    Projected weights have no readout and no shoulder: their fraction that is exactly at the floor (zero by default) is
    another number, under ``zeros/fraction``, ``zeros/fraction/<tensor>``, ``zeros/entry_rate``, ``zeros/exit_rate``.

    Args:
        every_n_steps: optimizer steps from one look to the next; the first is before training.
        slope: the shoulder's slope psi'(latent).

    Raises:
        ValueError: an argument out of range.
    """

    label = "shoulder"
    looks_at_start = True

    def __init__(self, every_n_steps: int = 100, slope: float = SHOULDER_SLOPE) -> None:
        super().__init__(every_n_steps)
        if not 0.0 < slope < float("inf"):
            raise ValueError(f"slope={slope}: the shoulder's slope must be finite and positive (default 0.05).")
        self.slope = slope
        self._previous: Tensor | None = None

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Log occupancy and what has moved since the last look."""
        latent = latent_now(pl_module, batch)
        if not trainer.is_global_zero:
            return
        if not bool(latent.isfinite().all()):
            self.warn_once(f"the latent is not finite at step {step}: the model has diverged.", key="diverged")
            return
        parameterization = pl_module.parameterization
        assert isinstance(parameterization, Parameterization)
        is_projected = parameterization.readout is None
        group = self.name(trainer, "zeros" if is_projected else None)
        total = f"{group}/fraction" if is_projected else f"{group}/occupancy"
        mask = inside_mask(parameterization, latent, self.slope).cpu()
        values = {total: occupancy(mask)}
        parts = occupancy_by_tensor(mask, parameterization.shapes)
        values |= {f"{total}/{name}": fraction for name, fraction in parts.items()}
        moved = self._moved(mask)
        if moved is not None:
            values |= {f"{group}/entry_rate": moved.entry_rate, f"{group}/exit_rate": moved.exit_rate}
        self._previous = mask
        log_scalars(trainer, values, step)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting; a training from step 0 has no look before it."""
        super().on_train_start(trainer, pl_module)
        if trainer.global_step == 0:
            self._previous = None

    def state_dict(self) -> dict[str, Any]:
        """The mask of the last look, so that the rates go on after a resume."""
        return {"mask": self._previous}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._previous = state_dict["mask"]

    def _moved(self, mask: Tensor) -> Transitions | None:
        if self._previous is None or self._previous.shape != mask.shape:
            return None
        return transitions(self._previous.cpu(), mask)
