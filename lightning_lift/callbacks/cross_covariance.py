"""Measures the cross-covariance of latent and gradient during training."""

import csv
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_lift.callbacks._logging import log_scalars, run_directory, whole_file
from lightning_lift.callbacks.periodic import PeriodicCallback, check_count
from lightning_lift.diagnostics.cross_covariance import Reading
from lightning_lift.diagnostics.probe import probe_cross_covariance

_FILE = "cross_covariance.csv"
_COLUMNS = ("step", "reading", "status", *Reading.__dataclass_fields__)


class CrossCovariance(PeriodicCallback):
    """Reads Sigma = cov(latent, g) over probe batches at the present weights, for every parameterization alike.

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

    def __init__(
        self, every_n_steps: int = 1000, num_batches: int = 64, num_permutations: int = 200, seed: int = 0
    ) -> None:
        super().__init__(every_n_steps)
        check_count("num_batches", num_batches, least=3)
        check_count("num_permutations", num_permutations)
        check_count("seed", seed, least=0)
        self.num_batches = num_batches
        self.num_permutations = num_permutations
        self.seed = seed
        self._trimmed = False

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(
            every_n_steps=self.every_n_steps,
            num_batches=self.num_batches,
            num_permutations=self.num_permutations,
            seed=self.seed,
        )

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses to start without a source of probe batches.

        Raises:
            ValueError: the data module has no ``probe_batches``.
        """
        super().setup(trainer, pl_module, stage)
        data = getattr(trainer, "datamodule", None)
        if stage == "fit" and self._active and not callable(getattr(data, "probe_batches", None)):
            raise ValueError(
                f"CrossCovariance needs a data module with probe_batches(num_batches, seed), and the trainer has "
                f"{'none' if data is None else type(data).__name__}; derive the data module from "
                "datamodules.base.DensityDataModule, or leave this callback out."
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts counting, and a file that continues the run it resumes."""
        super().on_train_start(trainer, pl_module)
        self._trimmed = False

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Tensor, step: int) -> None:
        """Probes the model and writes both readings."""
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
        rows = []
        for name, reading in (("latent_gradient", result.latent_gradient), ("slack", result.slack)):
            row: dict[str, Any] = {"step": step, "reading": name, "status": "no slack"}
            if reading is not None:
                numbers = reading.as_dict()
                row |= numbers | {"status": "round-off zero" if reading.is_roundoff else "ok"}
                scalars = {f"cross_covariance/{name}/{key}": float(value) for key, value in numbers.items()}
                log_scalars(trainer, scalars, step)
            rows.append(row)
        self._write(run_directory(trainer) / _FILE, rows, step)

    def _write(self, path: Path, rows: list[dict[str, Any]], step: int) -> None:
        if not self._trimmed:
            # Rows of this step or later are of a run that this one starts anew or resumes at an earlier step.
            kept = [row for row in _read(path) if int(row["step"]) < step]
            with whole_file(path) as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, _COLUMNS, restval="")
                writer.writeheader()
                writer.writerows([*kept, *rows])
            self._trimmed = True
            return
        with path.open("a", newline="") as file:
            csv.DictWriter(file, _COLUMNS, restval="").writerows(rows)


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return list(reader) if tuple(reader.fieldnames or ()) == _COLUMNS else []
