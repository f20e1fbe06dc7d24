"""Tables of readings that grow during training, and the base of callbacks that probe with batches of their own."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from lightning_lift.callbacks.periodic import PeriodicCallback, check_count
from lightning_lift.files import whole_file


class ContinuedTable:
    """A CSV file with one or more rows a look; a resumed run continues it, a new one replaces it.

    Args:
        columns: names; the first is ``step``.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._trimmed = False

    def restart(self) -> None:
        """Looks again, at the next rows, at what the file holds: a training begins."""
        self._trimmed = False

    def write(self, path: Path, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Adds rows; numbers that are left out become empty cells.

        Args:
            path: of the file.
            rows: with ``step`` in each.
            step: optimizer step of all of them.
        """
        if not self._trimmed:
            # Rows of this step or later are of a run that this one starts anew or resumes at an earlier step.
            kept = [row for row in self._read(path) if int(row["step"]) < step]
            with whole_file(path) as temporary, temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.columns, restval="")
                writer.writeheader()
                writer.writerows([*kept, *rows])
            self._trimmed = True
            return
        with path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerows(rows)

    def _read(self, path: Path) -> list[dict[str, str]]:
        if not path.exists():
            return []
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            return list(reader) if tuple(reader.fieldnames or ()) == self.columns else []


class ProbingCallback(PeriodicCallback):
    """Looks with probe batches of the data module, apart from the training stream, and keeps a table.

    Subclass requirements: ``look``, and those of ``PeriodicCallback``.

    Args:
        every_n_steps: optimizer steps from one look to the next.
        num_batches: probe batches B.
        seed: of the probe batches, other ones at each look.
        columns: of the table.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(self, every_n_steps: int, num_batches: int, seed: int, columns: Sequence[str]) -> None:
        super().__init__(every_n_steps)
        check_count("num_batches", num_batches, least=3)
        check_count("seed", seed, least=0)
        self.num_batches = num_batches
        self.seed = seed
        self.table = ContinuedTable(columns)

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(every_n_steps=self.every_n_steps, num_batches=self.num_batches, seed=self.seed)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuses to start without a source of probe batches.

        Raises:
            ValueError: the data module has no ``probe_batches``.
        """
        super().setup(trainer, pl_module, stage)
        data = getattr(trainer, "datamodule", None)
        if stage == "fit" and self._active and not callable(getattr(data, "probe_batches", None)):
            raise ValueError(
                f"{type(self).__name__} needs a data module with probe_batches(num_batches, seed), and the trainer has "
                f"{'none' if data is None else type(data).__name__}; derive the data module from "
                "lightning_lift.datamodules.DensityDataModule, or leave this callback out."
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts counting, and a file that continues the run it resumes."""
        super().on_train_start(trainer, pl_module)
        self.table.restart()
