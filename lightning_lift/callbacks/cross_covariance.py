"""Measure the cross-covariance of latent and gradient during training."""

from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_info

from lightning_lift.callbacks._logging import log_scalars, run_directory
from lightning_lift.callbacks._table import ProbingCallback
from lightning_lift.callbacks.periodic import check_count
from lightning_lift.diagnostics.cross_covariance import CrossCovarianceResult, Reading
from lightning_lift.diagnostics.probe import probe_cross_covariance

COLUMNS = ("step", "reading", "status", *Reading.__dataclass_fields__)


class CrossCovariance(ProbingCallback):
    """Read Sigma = cov(latent, g) over probe batches at the present weights, for every parameterization alike.

    Two readings, kept apart: ``latent_gradient`` (g = d loss / d latent) and ``slack`` (g = d loss / d slack; "no
    slack" where there is none, never 0). Scalars ``cross_covariance/<reading>/<number>``; all numbers are also rows of
    ``cross_covariance.csv`` beside the logs, with a status ``ok``, ``round-off zero`` or ``no slack``. The numbers are
    explained at ``lightning_lift.diagnostics.cross_covariance.Reading``.

    A look costs about as much as ``num_batches`` training steps without the body, and twice that where the latent
    moves (the objective part is a second pass).

    Args:
        every_n_steps: optimizer steps from one look to the next.
        num_batches: probe batches B, from the data module's ``probe_batches``, apart from the training stream.
        num_permutations: shuffles of the permutation null.
        seed: of the probe batches (other ones at each look, the same for every model) and of the shuffles.

    Raises:
        ValueError: an argument out of range.
    """

    label = "cross_covariance"

    def __init__(
        self, every_n_steps: int = 1000, num_batches: int = 64, num_permutations: int = 200, seed: int = 0
    ) -> None:
        super().__init__(every_n_steps, num_batches, seed, COLUMNS)
        check_count("num_permutations", num_permutations)
        self.num_permutations = num_permutations

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Probe the model and write both readings."""
        batches = trainer.datamodule.probe_batches(self.num_batches, self.seed + step)  # type: ignore[attr-defined]
        try:
            result = probe_cross_covariance(pl_module, batches, self.num_permutations, self.seed)  # type: ignore[arg-type]
        except (ValueError, ArithmeticError, RuntimeError) as error:
            # A diagnostic must not end a training: a diverged model raises in the rows, or in the loss itself.
            self.warn_once(f"no reading at step {step}: {error}", key="failed")
            return
        if not trainer.is_global_zero:
            return
        if result.slack is None and "slack" not in self._said:
            self._said.add("slack")
            rank_zero_info(
                f"CrossCovariance: {type(pl_module.parameterization).__name__} has no slack; the slack reading is "
                "undefined (no slack) and only latent_gradient is logged."
            )
        rows = reading_rows(result, step)
        for row in rows:
            log_scalars(trainer, reading_scalars(row, self.name(trainer)), step)
        self.table.write(run_directory(trainer), f"{self.name(trainer)}.csv", rows, step)


def reading_rows(result: CrossCovarianceResult, step: int) -> list[dict[str, Any]]:
    """Both readings as rows of a table with ``COLUMNS``, undefined numbers left out.

    Args:
        result: both readings.
        step: optimizer step.
    """
    rows = []
    for name, reading in (("latent_gradient", result.latent_gradient), ("slack", result.slack)):
        row: dict[str, Any] = {"step": step, "reading": name, "status": "no slack"}
        if reading is not None:
            row |= reading.as_dict() | {"status": "round-off zero" if reading.is_roundoff else "ok"}
        rows.append(row)
    return rows


def reading_scalars(row: dict[str, Any], group: str) -> dict[str, float]:
    """The numbers of a row as scalars ``<group>/<reading>/<number>``; none without a slack."""
    return {f"{group}/{row['reading']}/{key}": float(row[key]) for key in Reading.__dataclass_fields__ if key in row}
