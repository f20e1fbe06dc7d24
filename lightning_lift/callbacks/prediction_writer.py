"""Writes what ``predict`` gave for each row, and draws from the model."""

import itertools
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

from lightning_lift.callbacks._logging import run_directory
from lightning_lift.datamodules.batches import Batch, TransportBatch, num_rows, parts_of
from lightning_lift.datamodules.units import Units
from lightning_lift.files import whole_file

_Part = tuple[list[int] | None, Tensor, Tensor]


class PredictionWriter(BasePredictionWriter):
    """Writes one line a row, in the order of the data: its number, the row in original units, and its prediction.

    The prediction is what ``predict_step`` returns, one column for each name in the task's ``prediction_columns``: for
    density models ``log_density``, in nats and original units. The file appears whole or not at all, and never over an
    older one: that stays, and the new one is called ``predictions_1.csv``, ``predictions_2.csv``, ... With several
    processes rank 0 collects and writes. With ``fast_dev_run`` nothing is written.

    A CSV file has ``row``, the data's columns (by name where the data module knows names, else x1, x2, ...; of a batch
    with parts those of context and target too, but for images and sequences) and the prediction. ``row`` is the row's
    position in its file, from 0, where the data module knows it (the test split of a table is shuffled, and rows with
    missing values may be left out), else in the data. An npz file has ``row`` (N,), ``rows`` (N, D), ``columns`` (D,)
    and one array (N,) for each column of the prediction.

    With ``num_samples`` it also draws from the model and writes the draws, in original units, beside the predictions:
    ``predictions.csv`` gets ``predictions_samples.csv`` with the data's columns (an npz file: ``samples`` (n, D) and
    ``columns``), and ``predictions_samples.json`` with the number, the seed and, where the draws come from Markov
    chains, ``r_hat`` and ``effective_sample_size``. Rank 0 draws alone.

    Args:
        path: of the file; a bare name is put into the run's folder (the logger's). Its ending, ``.csv`` or ``.npz``,
            decides the format.
        num_samples: draws from the model, n; 0 for none.
        sample_seed: of the draws.
        columns: names of the data's columns to write beside the predictions; None for all, an empty list for none.

    Raises:
        ValueError: another ending, a folder, or a negative number of draws.
    """

    def __init__(
        self,
        path: str = "predictions.csv",
        num_samples: int = 0,
        sample_seed: int = 0,
        columns: list[str] | None = None,
    ) -> None:
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
        self.columns = columns
        self._parts: list[_Part] = []
        self._names: list[str] = []

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(path=self.path, num_samples=self.num_samples, sample_seed=self.sample_seed)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start with an empty list.

        Raises:
            ValueError: several data loaders, whose rows have no common order; or a column that the data have not.
            TypeError: draws are wanted of a module that cannot be sampled.
        """
        if self.num_samples and not callable(getattr(pl_module, "sample", None)):
            raise TypeError(
                f"PredictionWriter(num_samples={self.num_samples}): {type(pl_module).__name__} has no sample(n, seed); "
                "set num_samples to 0."
            )
        self._parts = []
        data = getattr(trainer, "datamodule", None)
        known = [getattr(data, "columns", None) or [], *(getattr(data, "field_columns", None) or {}).values()]
        names = [name for part in known for name in part] or self.columns or []
        if missing := [name for name in self.columns or [] if name not in names]:
            raise ValueError(f"PredictionWriter: the data have no columns {missing}, only {list(names)}.")
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
        """Keep the batch's rows and predictions, on the CPU.

        Raises:
            TypeError: predictions that are not one number a row for each name in ``prediction_columns``.
        """
        names = _prediction_names(pl_module)
        if isinstance(prediction, Tensor) and prediction.ndim == 1:
            prediction = prediction[:, None]
        fits = isinstance(batch, Tensor | Batch | TransportBatch) and isinstance(prediction, Tensor)
        if not fits or prediction.shape != (num_rows(batch), len(names)):
            found = tuple(prediction.shape) if isinstance(prediction, Tensor) else type(prediction).__name__
            raise TypeError(
                f"PredictionWriter needs predict_step to return a tensor of {len(names)} number(s) a row of a "
                f"batch, for the prediction_columns {list(names)}; {type(pl_module).__name__} returned {found}."
            )
        loader: Any = trainer.predict_dataloaders
        positions = list(batch_indices) if batch_indices else None
        if positions is None and hasattr(loader, "row_range"):
            positions = list(range(*loader.row_range(batch_idx)))
        table = _original_columns(trainer, pl_module, batch)
        self._names = list(table)
        rows = torch.stack(list(table.values()), dim=1)
        self._parts.append((positions, rows, prediction.detach().cpu()))

    def on_predict_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Collect the parts of all ranks and write the file."""
        parts: list[_Part] = self._parts
        self._parts = []
        if trainer.world_size > 1:
            gathered: list[Any] = [None] * trainer.world_size
            dist.all_gather_object(gathered, parts)
            parts = [part for rank in gathered for part in rank]
        if not trainer.is_global_zero:
            return
        path = self._free_path(trainer)
        if path is None:
            return
        if self.num_samples:
            self._write_samples(trainer, pl_module, path)
        if not parts:
            rank_zero_warn(f"PredictionWriter: there were no rows to predict, so {path} was not written.")
            return
        if any(positions is None for positions, _, _ in parts) and trainer.world_size > 1:
            rank_zero_warn(
                "PredictionWriter: the data loader does not tell the rows' positions, so the file has the rows of one "
                "process after those of another."
            )
        positions, rows, predictions = _in_order(parts)
        data = getattr(trainer, "datamodule", None)
        numbers: dict[str, Tensor] = getattr(data, "row_numbers", None) or {}
        known = numbers.get("predict", numbers.get("test"))
        if known is not None:
            positions = known[positions]
        names = self._names
        kept = [i for i, name in enumerate(names) if self.columns is None or name in self.columns]
        rows, names = rows[:, kept], [names[i] for i in kept]
        predicted = dict(zip(_prediction_names(pl_module), predictions.T.numpy(), strict=True))
        with whole_file(path) as temporary:
            if path.suffix == ".csv":
                table = pd.DataFrame(rows.numpy(), columns=names)
                table.insert(0, "row", positions.numpy(), allow_duplicates=True)
                for name, values in predicted.items():
                    table.insert(table.shape[1], name, values, allow_duplicates=True)
                table.to_csv(temporary, index=False, float_format="%.17g")
            else:
                arrays = {"row": positions.numpy(), "rows": rows.numpy(), "columns": np.array(names), **predicted}
                np.savez(temporary, **arrays)
        rank_zero_info(f"PredictionWriter: {len(rows)} rows in {path}")

    def _free_path(self, trainer: L.Trainer) -> Path | None:
        """Where to write: in the run's folder, beside older files; None if nothing is to be written."""
        path, folder = Path(self.path), run_directory(trainer)
        if getattr(trainer, "fast_dev_run", False):
            return None
        if path == Path(path.name):
            if folder is None:
                rank_zero_warn(
                    f"PredictionWriter: there is no run's folder for {path}; set a logger, or give a folder."
                )
                return None
            path = folder / path
        counts = (path.with_stem(f"{path.stem}_{count}") if count else path for count in itertools.count())
        return next(free for free in counts if not free.exists() and not _beside(free).exists())

    def _write_samples(self, trainer: L.Trainer, module: Any, path: Path) -> None:
        """The draws in original units, and what is known of them."""
        draws = module.sample(self.num_samples, seed=self.sample_seed).detach().cpu().double()
        columns = getattr(module, "columns", None) or _column_names(
            trainer, "x", draws.shape[1]
        )  # in the module's order
        path = _beside(path)
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


def _beside(path: Path) -> Path:
    """The file of the draws."""
    return path.with_stem(f"{path.stem}_samples")


def _prediction_names(module: Any) -> Sequence[str]:
    names: Sequence[str] = getattr(module, "prediction_columns", ("prediction",))
    return names


def _in_order(parts: list[_Part]) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, rows and predictions of all parts."""
    rows = torch.cat([part[1] for part in parts])
    predictions = torch.cat([part[2] for part in parts])
    if any(positions is None for positions, _, _ in parts):
        return torch.arange(len(rows)), rows, predictions
    # A distributed sampler repeats rows to make shards even: each position is written once.
    first: dict[int, int] = {}
    for place, position in enumerate(p for positions, _, _ in parts for p in positions or ()):
        first.setdefault(position, place)
    positions = sorted(first)
    order = torch.tensor([first[position] for position in positions])
    return torch.tensor(positions), rows[order], predictions[order]


def _original_columns(
    trainer: L.Trainer, module: L.LightningModule, batch: Tensor | Batch | TransportBatch
) -> dict[str, Tensor]:
    """The flat parts of a batch in original units, float64 on the CPU, one column (N,) a name."""
    data = getattr(trainer, "datamodule", None)
    # The rows are in the data module's units, which need not be those that the model was fitted in.
    source = data if isinstance(getattr(data, "location", None), Tensor) else module
    units: dict[str, Units] = dict(getattr(source, "field_units", None) or {})
    location, scale = getattr(source, "location", None), getattr(source, "scale", None)
    if isinstance(location, Tensor) and isinstance(scale, Tensor):
        units["x"] = Units(location, scale)
    columns: dict[str, Tensor] = {}
    for field, part in parts_of(batch).items():
        if part.ndim > 2 or field == "weight":
            continue
        table = part.detach().cpu().double()
        if field in units:
            table = Units(*(number.cpu().double() for number in units[field])).invert(table)
        table = table.reshape(len(table), -1)
        for name, column in zip(_column_names(trainer, field, table.shape[1]), table.T, strict=True):
            columns[name if name not in columns else f"{field}_{name}"] = column
    return columns


def _column_names(trainer: L.Trainer, field: str, size: int) -> list[str]:
    data = getattr(trainer, "datamodule", None)
    names = (
        getattr(data, "columns", None)
        if field in ("x", "source")
        else (getattr(data, "field_columns", None) or {}).get(field)
    )
    if names is not None and len(names) == size:
        return [str(name) for name in names]
    return [field] if size == 1 and field != "x" else [f"{field}{i + 1}" for i in range(size)]
