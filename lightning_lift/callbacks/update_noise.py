"""Split the noise of the gradient into its parts during training."""

from typing import Any

import lightning as L

from lightning_lift.callbacks._logging import log_scalars, run_directory
from lightning_lift.callbacks._table import ProbingCallback
from lightning_lift.diagnostics.update_noise import NoiseReading, update_noise

_COLUMNS = ("step", *NoiseReading.__dataclass_fields__)


class UpdateNoise(ProbingCallback):
    """Read e^T Cov(g) e as objective noise + coupling + jitter + remainder, along directions e in latent space.

    Directions: of the mean gradient (``gradient``), of the most gradient noise (``noise``), of the most movement of the
    latent (``latent``, where it moves) and a ``random`` one; with ``with_trace`` also the sum over all directions,
    ``trace``. The identity is written down at ``lightning_lift.diagnostics.update_noise``. Scalars
    ``update_noise/<direction>/<part>``; all numbers, with standard errors, are also rows of ``update_noise.csv`` beside
    the logs.

    A look costs about as much as ``num_batches`` training steps without the body, twice that where the latent moves,
    and with the trace as many Hessian-vector products on all probe batches together.

    Args:
        every_n_steps: optimizer steps from one look to the next.
        num_batches: probe batches B, from the data module's ``probe_batches``, apart from the training stream.
        with_trace: add the sum over all directions.
        seed: of the probe batches (other ones at each look, the same for every model) and of the random direction.

    Raises:
        ValueError: an argument out of range.
    """

    label = "update_noise"

    def __init__(
        self, every_n_steps: int = 1000, num_batches: int = 64, with_trace: bool = False, seed: int = 0
    ) -> None:
        super().__init__(every_n_steps, num_batches, seed, _COLUMNS)
        self.with_trace = with_trace

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Probe the model and write the parts."""
        batches = trainer.datamodule.probe_batches(self.num_batches, self.seed + step)  # type: ignore[attr-defined]
        try:
            readings = update_noise(pl_module, batches, with_trace=self.with_trace, seed=self.seed)  # type: ignore[arg-type]
        except (ValueError, ArithmeticError, RuntimeError) as error:
            # A diagnostic must not end a training: a diverged model raises in the rows, or in the loss itself.
            self.warn_once(f"no reading at step {step}: {error}", key="failed")
            return
        if not trainer.is_global_zero:
            return
        name = self.name(trainer)
        rows = [{"step": step} | reading.as_dict() for reading in readings]
        for reading in readings:
            numbers = {key: value for key, value in reading.as_dict().items() if isinstance(value, float)}
            log_scalars(trainer, {f"{name}/{reading.direction}/{k}": v for k, v in numbers.items()}, step)
        self.table.write(run_directory(trainer), f"{name}.csv", rows, step)
