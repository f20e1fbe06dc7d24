"""Histograms of the nonnegative weights and their latents in TensorBoard."""

from typing import Any

import lightning as L

from lightning_lift.callbacks._logging import tensorboard_loggers
from lightning_lift.callbacks.periodic import PeriodicCallback, latent_now
from lightning_lift.parameterizations.base import Parameterization


class WeightHistograms(PeriodicCallback):
    """Log ``weights/<tensor>`` and, behind a readout, ``latent/<tensor>`` as TensorBoard histograms.

    Args:
        every_n_steps: optimizer steps from one look to the next; the first is before training.

    Raises:
        ValueError: fewer than one step.
    """

    label = "weights"
    looks_at_start = True

    def __init__(self, every_n_steps: int = 500) -> None:
        super().__init__(every_n_steps)

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Write the histograms of the present weights."""
        latent = latent_now(pl_module, batch)
        loggers = tensorboard_loggers(trainer)
        if not loggers or not trainer.is_global_zero:
            return
        if not bool(latent.isfinite().all()):
            # TensorBoard's histogram raises on NaN.
            self.warn_once(f"the latent is not finite at step {step}: the model has diverged.", key="diverged")
            return
        parameterization = pl_module.parameterization
        assert isinstance(parameterization, Parameterization)
        readout = parameterization.readout
        groups = {self.name(trainer): latent if readout is None else readout.value(latent)}
        if readout is not None:
            groups[self.name(trainer, "latent")] = latent
        for group, flat in groups.items():
            for name, tensor in parameterization.split(flat).items():
                values = tensor.detach().float().cpu().numpy()
                for logger in loggers:
                    logger.experiment.add_histogram(f"{group}/{name}", values, step)
