"""The contract of a data module whose rows have parts: a context, a target, weights beside x."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import Batch, parts_of
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.rows import RowsDataModule
from lightning_lift.datamodules.table_checks import robust_units, standard_units, whitening_units
from lightning_lift.datamodules.table_files import Table
from lightning_lift.datamodules.units import Units

_ROWS_TO_WHITEN = 10  # a column: with few rows the covariance is mostly noise


class PartsDataModule(RowsDataModule[Batch]):
    """Base of data modules for tasks of several parts: a batch is a :class:`~lightning_lift.datamodules.Batch`.

    Subclass requirements:
        1. ``__init__`` takes plain arguments, calls ``super().__init__(dim=..., ...)`` with the shapes of the parts,
           then ``self.save_hyperparameters()``; reading the data waits for ``setup``.
        2. ``load()`` gives the splits, a ``Batch`` each, in training units: those that :meth:`standardize` brings a
           table's rows into, or the original ones. Rows to ``predict`` may lack target and weight.
        3. Without a ``train`` split: ``draw(num_rows, generator)``, a ``calibration`` split, and ``batches_per_epoch``.

    Args:
        dim: Numbers in a row's x, D, what a network is convex in.
        name: Name of the source, as it appears in results.
        batch_size: Rows of one process's training batch.
        context_shape: Shape of a row's context. None for rows without.
        target_dim: Numbers in a row's target; targets are (N,) where it is 1, else (N, target_dim). None for rows
            without.
        weighted: Whether the rows have weights.
        data_seed: Seed of everything random in the data.
        batches_per_epoch: Batches of an epoch if training batches are drawn fresh.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Attributes:
        field_units: Training units of ``context`` and ``target``, where they are not the original ones.
        columns: Names of the columns of x, where they have names.
        field_columns: Names of the columns of ``context`` and ``target``, where they have names.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        dim: int,
        name: str,
        batch_size: int,
        context_shape: Sequence[int] | None = None,
        target_dim: int | None = None,
        weighted: bool = False,
        data_seed: int = 0,
        batches_per_epoch: int | None = None,
        eval_batch_size: int | None = None,
    ) -> None:
        check_counts(target_dim=target_dim)
        super().__init__(
            dim=dim,
            name=name,
            batch_size=batch_size,
            data_seed=data_seed,
            batches_per_epoch=batches_per_epoch,
            eval_batch_size=eval_batch_size,
        )
        self.context_shape = None if context_shape is None else tuple(context_shape)
        self.target_dim = target_dim
        self._weighted = weighted
        self.field_units: dict[str, Units] = {}
        self.columns: list[str] | None = None
        self.field_columns: dict[str, list[str]] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row's entry in each part that a split has."""
        shapes: dict[str, tuple[int, ...]] = {"x": (self.dim,)}
        if self.context_shape is not None:
            shapes["context"] = self.context_shape
        if self.target_dim is not None:
            shapes["target"] = (self.target_dim,) if self.target_dim > 1 else ()
        return shapes | ({"weight": ()} if self._weighted else {})

    def standardize(self, splits: Mapping[str, Batch], fields: Sequence[str]) -> dict[str, Batch]:
        """Bring fields to mean 0 and standard deviation 1 over the training rows, and state their units.

        Each column of (N, columns) has its own; images and sequences, (N, ..., ...), share one mean and one deviation.
        A constant column is shifted only; rows have their weights. Where there are rows to predict only, median and
        interquartile range serve.

        Args:
            splits: In original units, best in float64; ``train`` or ``predict`` among them.
            fields: Of ``x``, ``context`` and ``target``.

        Returns:
            The splits in training units, in the precision given.
        """
        fitted = parts_of(splits["train"] if "train" in splits else splits["predict"])
        weight = fitted.get("weight")

        def stated(table: Table) -> tuple[Table, Table]:
            if "train" not in splits:
                return robust_units(table)
            repeats = None if weight is None else weight.double().repeat_interleave(len(table) // len(weight)).numpy()
            return standard_units(table, repeats)

        units = {name: units_of_part(part, stated) for name, part in fitted.items() if name in fields}
        if "x" in units:
            self.set_standardization(*units["x"])
        self.field_units = {name: own for name, own in units.items() if name != "x"}
        return {
            key: rows._replace(
                **{name: units[name].apply(part) for name, part in parts_of(rows).items() if name in units}
            )
            for key, rows in splits.items()
        }


def units_of_part(part: Tensor, stated: Callable[[Table], tuple[Table, Table]] = standard_units) -> Units:
    """Units in which a part's training rows have mean 0 and standard deviation 1, float64.

    Args:
        part: (N, columns), each with units of its own, or images and sequences, (N, ..., ...), with one for all.
        stated: Gives location and scale of a table's columns.
    """
    table = part.double().reshape(len(part), -1) if part.ndim < 3 else part.double().reshape(-1, 1)
    location, scale = stated(table.numpy())
    return Units(torch.from_numpy(location), torch.from_numpy(scale))


def units_of_context(context: Tensor) -> Units:
    """Units of a context that networks may mix as they please: vectors are whitened where rows are enough to say how.

    Args:
        context: that of the training rows, (N, columns), images or sequences.
    """
    enough = context.ndim == 2 and len(context) >= _ROWS_TO_WHITEN * context.shape[1]
    return units_of_part(context, whitening_units if enough else standard_units)
