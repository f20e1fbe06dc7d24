"""Measure the cross-covariance of latent and gradient over the last training steps."""

from typing import Any

import lightning as L

from lightning_lift.callbacks._logging import log_scalars, run_directory
from lightning_lift.callbacks._table import ContinuedTable
from lightning_lift.callbacks.cross_covariance import COLUMNS, reading_rows, reading_scalars
from lightning_lift.callbacks.periodic import PeriodicCallback, check_count
from lightning_lift.diagnostics.trailing_window import TrailingWindow


class TrailingCrossCovariance(PeriodicCallback):
    """Read Sigma = cov(latent, g) over the last ``window`` training steps, without probe batches.

    The rows are the latents and gradients of training itself, so the moving iterate biases them; how, and what is done
    about it, is said at ``lightning_lift.diagnostics.trailing_window``. Scalars
    ``trailing_cross_covariance/<reading>/<number>``; all numbers are also rows of ``trailing_cross_covariance.csv``
    beside the logs. There is no objective part.

    Each step of a window costs one more forward and backward pass, and its rows two or three numbers a weight of
    memory; a checkpoint inside a window holds them.

    Args:
        every_n_steps: optimizer steps from one reading to the next, at least ``window``.
        window: training steps T before each reading that enter it.
        detrend: take a straight line in time off each column, not its mean alone.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.

    Raises:
        ValueError: an argument out of range.
    """

    label = "trailing_cross_covariance"

    def __init__(
        self,
        every_n_steps: int = 1000,
        window: int = 64,
        detrend: bool = True,
        num_permutations: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__(every_n_steps)
        check_count("window", window, least=4)
        check_count("num_permutations", num_permutations)
        check_count("seed", seed, least=0)
        if window > every_n_steps:
            raise ValueError(f"window={window} with every_n_steps={every_n_steps}: readings must not overlap.")
        self.window, self.detrend = window, detrend
        self.num_permutations, self.seed = num_permutations, seed
        self.rows = TrailingWindow()
        self.table = ContinuedTable(COLUMNS)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting; a training from step 0 has no rows before it."""
        super().on_train_start(trainer, pl_module)
        if trainer.global_step == 0:
            self.rows.clear()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the row of a step that belongs to the window."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        step = trainer.global_step
        if not self._active or step % self.every_n_steps < self.every_n_steps - self.window:
            return
        if self.rows.steps and self.rows.steps[-1] >= step:
            return  # a batch that only accumulates: its step has a row
        try:
            self.rows.record(pl_module, batch, step)  # type: ignore[arg-type]
        except (ValueError, ArithmeticError, RuntimeError) as error:
            self.warn_once(f"no row at step {step}: {error}", key="failed")

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Read the window and forget it."""
        try:
            result = self.rows.read(self.detrend, self.num_permutations, self.seed)
        except (ValueError, ArithmeticError) as error:
            # A diagnostic must not end a training: a diverged model raises in the rows.
            self.warn_once(f"no reading at step {step}: {error}", key="failed")
            return
        finally:
            self.rows.clear()
        if not trainer.is_global_zero:
            return
        rows = reading_rows(result, step)
        for row in rows:
            log_scalars(trainer, reading_scalars(row, self.name(trainer)), step)
        self.table.write(run_directory(trainer), f"{self.name(trainer)}.csv", rows, step)

    def state_dict(self) -> dict[str, Any]:
        """The rows of a window that is not yet read."""
        return self.rows.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.rows.load_state_dict(state_dict)
