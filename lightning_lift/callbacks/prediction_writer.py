"""Writes the log-density of each row that ``predict`` was asked for, and draws from the model."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_lift.files import whole_file

_Part = tuple[list[int] | None, Tensor, Tensor]


class PredictionWriter(BasePredictionWriter):
    """Writes one line a row, in the order of the data: the row in original units and its log-density.

    The log-density is what ``predict_step`` returns: for density models in nats, original units. The file appears
    whole or not at all. With several processes rank 0 collects and writes.

    A CSV file has one column for each data column (by name where the data module knows names, else x1, x2, ...) and
    ``log_density``. An npz file has ``rows`` (N, D), ``log_density`` (N,) and ``columns`` (D,).

    With ``num_samples`` it also draws from the model and writes the draws, in original units, beside the predictions:
    ``predictions.csv`` gets ``predictions_samples.csv`` with the data's columns (an npz file: ``samples`` (n, D) and
    ``columns``), and ``predictions_samples.json`` with the number, the seed and, where the draws come from Markov
    chains, ``r_hat`` and ``effective_sample_size``. Rank 0 draws alone.

    Args:
        path: of the file; its ending, ``.csv`` or ``.npz``, decides the format. An existing file is replaced.
        num_samples: draws from the model, n; 0 for none.
        sample_seed: of the draws.

    Raises:
        ValueError: another ending, a folder, or a negative number of draws.
    """

    def __init__(self, path: str = "predictions.csv", num_samples: int = 0, sample_seed: int = 0) -> None:
        super().__init__(write_interval="batch")  # predictions kept for the end of the epoch come without their rows
        if Path(path).suffix not in (".csv", ".npz"):
            raise ValueError(f"path={path!r}: the ending must be .csv or .npz.")
        if Path(path).is_dir():
            raise ValueError(f"path={path!r} is a folder; give the name of a file.")
        if num_samples < 0:
            raise ValueError(f"num_samples={num_samples}: give a number of draws, or 0 for none.")
        self.path = path
        self.num_samples = num_samples
        self.sample_seed = sample_seed
        self._parts: list[_Part] = []

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(path=self.path, num_samples=self.num_samples, sample_seed=self.sample_seed)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts with an empty list.

        Raises:
            ValueError: several data loaders, whose rows have no common order.
            TypeError: draws are wanted of a module that cannot be sampled.
        """
        if self.num_samples and not callable(getattr(pl_module, "sample", None)):
            raise TypeError(
                f"PredictionWriter(num_samples={self.num_samples}): {type(pl_module).__name__} has no sample(n, seed); "
                "set num_samples to 0."
            )
        self._parts = []
        if len(trainer.num_predict_batches) > 1:
            raise ValueError(
                f"PredictionWriter writes one file, and there are {len(trainer.num_predict_batches)} predict data "
                "loaders; give one, or call predict once for each."
            )
        # Where the loader tells positions itself, Lightning's complaint that it cannot find them means nothing.
        warnings.filterwarnings("ignore", message="Couldn't infer the batch indices fetched")

    def write_on_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Keeps the batch's rows and predictions, on the CPU.

        Raises:
            TypeError: predictions that are not one number a row.
        """
        if not isinstance(batch, Tensor) or not isinstance(prediction, Tensor) or prediction.shape != batch.shape[:1]:
            found = tuple(prediction.shape) if isinstance(prediction, Tensor) else type(prediction).__name__
            raise TypeError(
                f"PredictionWriter needs predict_step to return a tensor of one number a row of a (N, D) batch; "
                f"{type(pl_module).__name__} returned {found}."
            )
        loader: Any = trainer.predict_dataloaders
        positions = list(batch_indices) if batch_indices else None
        if positions is None and hasattr(loader, "row_range"):
            positions = list(range(*loader.row_range(batch_idx)))
        rows = batch.detach().cpu().double()
        # The rows are in the data module's units, which need not be those that the model was fitted in.
        source = getattr(trainer, "datamodule", None)
        source = source if isinstance(getattr(source, "location", None), Tensor) else pl_module
        location, scale = getattr(source, "location", None), getattr(source, "scale", None)
        if isinstance(location, Tensor) and isinstance(scale, Tensor):
            rows = location.cpu().double() + scale.cpu().double() * rows
        self._parts.append((positions, rows, prediction.detach().cpu()))

    def on_predict_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Collects the parts of all ranks and writes the file."""
        parts: list[_Part] = self._parts
        self._parts = []
        if trainer.world_size > 1:
            gathered: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(gathered, parts)
            parts = [part for rank in gathered for part in rank]
        if not trainer.is_global_zero:
            return
        if self.num_samples:
            self._write_samples(trainer, pl_module)
        if not parts:
            rank_zero_warn(f"PredictionWriter: there were no rows to predict, so {self.path} was not written.")
            return
        if any(positions is None for positions, _, _ in parts) and trainer.world_size > 1:
            rank_zero_warn(
                "PredictionWriter: the data loader does not tell the rows' positions, so the file has the rows of one "
                "process after those of another."
            )
        rows, log_density = _in_order(parts)
        self._write(rows, log_density, _column_names(trainer, rows.shape[1]))
        rank_zero_info(f"PredictionWriter: {len(rows)} rows in {self.path}")

    def _write(self, rows: Tensor, log_density: Tensor, columns: list[str]) -> None:
        with whole_file(Path(self.path)) as temporary:
            if temporary.suffix == ".csv":
                table = pd.DataFrame(rows.numpy(), columns=columns)
                table.insert(len(columns), "log_density", log_density.numpy(), allow_duplicates=True)
                table.to_csv(temporary, index=False, float_format="%.17g")
            else:
                np.savez(temporary, rows=rows.numpy(), log_density=log_density.numpy(), columns=np.array(columns))

    def _write_samples(self, trainer: L.Trainer, module: Any) -> None:
        """The draws in original units, and what is known of them."""
        draws = module.sample(self.num_samples, seed=self.sample_seed).detach().cpu().double()
        columns = getattr(module, "columns", None) or _column_names(trainer, draws.shape[1])  # in the module's order
        path = Path(self.path)
        path = path.with_name(f"{path.stem}_samples{path.suffix}")
        with whole_file(path) as temporary:
            if path.suffix == ".csv":
                pd.DataFrame(draws.numpy(), columns=columns).to_csv(temporary, index=False, float_format="%.17g")
            else:
                np.savez(temporary, samples=draws.numpy(), columns=np.array(columns))
        known = {"num_samples": self.num_samples, "seed": self.sample_seed}
        known |= getattr(module, "sampling_diagnostics", {})
        with whole_file(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(known, indent=2) + "\n")
        rank_zero_info(f"PredictionWriter: {len(draws)} draws in {path}")


def _in_order(parts: list[_Part]) -> tuple[Tensor, Tensor]:
    rows = torch.cat([part[1] for part in parts])
    log_density = torch.cat([part[2] for part in parts])
    if any(positions is None for positions, _, _ in parts):
        return rows, log_density
    # A distributed sampler repeats rows to make shards even: each position is written once.
    first: dict[int, int] = {}
    for place, position in enumerate(p for positions, _, _ in parts for p in positions or ()):
        first.setdefault(position, place)
    order = torch.tensor([first[position] for position in sorted(first)])
    return rows[order], log_density[order]


def _column_names(trainer: L.Trainer, dim: int) -> list[str]:
    names = getattr(getattr(trainer, "datamodule", None), "columns", None)
    return (
        [str(name) for name in names] if names is not None and len(names) == dim else [f"x{i + 1}" for i in range(dim)]
    )
