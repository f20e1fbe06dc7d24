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

    def write(self, folder: Path | None, file_name: str, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Add rows; numbers that are left out become empty cells.

        Args:
            folder: of the file; None writes nothing.
            file_name: in it.
            rows: with ``step`` in each.
            step: optimizer step of all of them.
        """
        if folder is None:
            return
        path = folder / file_name
        # Rows of this step or later are of a run that this one starts anew or resumes at an earlier step.
        kept = [row for row in self._read(path) if int(row["step"]) < step]
        with whole_file(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows([*kept, *rows])

    def _read(self, path: Path) -> list[dict[str, str]]:
        if not path.exists():
            return []
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            return list(reader) if tuple(reader.fieldnames or ()) == self.columns else []


class ProbingCallback(PeriodicCallback):
    """A look with probe batches of the data module, apart from the training stream, kept in a table.

    Subclass requirements: those of ``PeriodicCallback``.

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

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse to start without a source of probe batches.

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
