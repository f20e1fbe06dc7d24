"""Rows of two distributions, for a transport from one to the other."""

from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.batches import TransportBatch
from lightning_lift.datamodules.in_memory import InMemoryDataModule, check_counts, check_fractions
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.sources import Source
from lightning_lift.datamodules.transport_sides import Rows, Side, read_rows, side_rows

_BATCH_SIZE, _CALIBRATION_BATCH = 256, 4096


class PairSource:
    """Rows of two sides, each in an order of its own; what a loader serves.

    Shuffled, an epoch is as many rows as the larger side has, and the smaller one begins anew within it, in another
    order, so that each row of a side comes equally often. In order, each row comes once, and the last batches have rows
    of the larger side alone.

    Args:
        batch: all rows of both sides; of the source alone to be served in order.
        seeds: base seed of each side's order.
        shuffle: whether the order is another one each time.
    """

    num_batches = 0

    def __init__(self, batch: TransportBatch, seeds: tuple[int, int], shuffle: bool) -> None:
        self._sides = [side for side in (batch.source, batch.target) if side is not None]
        self._seeds, self._shuffle = seeds, shuffle
        self._orders: dict[tuple[int, int], Tensor] = {}

    def num_rows(self) -> int:
        """Rows of the larger side."""
        return max(map(len, self._sides))

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> TransportBatch:
        """The rows of a batch; see ``Source``."""
        begin, end = index * size + start, index * size + stop
        if not self._shuffle:
            return TransportBatch(*(side[begin:end] for side in self._sides))
        first = epoch * self.num_rows()
        places = [self._places(side, first + begin, first + end) for side in (0, 1)]
        return TransportBatch(self._sides[0][places[0]], self._sides[1][places[1]], places[1])

    def _places(self, side: int, begin: int, end: int) -> Tensor:
        """Where the rows ``begin`` to ``end`` of an endless sequence of shuffled passes stand."""
        count, parts = len(self._sides[side]), []
        while begin < end:
            turn, position = divmod(begin, count)
            last = min(count, position + end - begin)
            parts.append(self._order(side, turn)[position:last])
            begin += last - position
        return torch.cat(parts)

    def _order(self, side: int, turn: int) -> Tensor:
        if (side, turn) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] != side or key[1] == turn - 1}
            generator = generator_at(self._seeds[side], turn)
            self._orders[side, turn] = torch.randperm(len(self._sides[side]), generator=generator)
        return self._orders[side, turn]


class TransportDataModule(InMemoryDataModule[TransportBatch]):
    """Rows of a source P and a target Q, in their own units, unpaired and not necessarily as many, held in memory.

    A side is a data module of densities; a file with a numeric table (.csv, .npy, .npz, .parquet); an image, whose
    pixels are rows of red, green and blue; and in Python also a sampler ``sampler(num_rows, generator)``, a tensor, an
    array or a data frame. Training rows are kept: a solver knows a row again by its position.

    Args:
        source: P: a data module, a sampler, rows in memory, or a file's path.
        target: Q.
        source_path: P as a file, in the place of source.
        target_path: Q as a file, in the place of target.
        batch_size: Rows of each side in one process's training batch; no more than a side has.
        num_source: Training rows of P, where they are drawn.
        num_target: Training rows of Q, where they are drawn: each has a solution of its own to be kept up to date.
        num_val: Validation rows of a side, where they are drawn.
        num_test: Test rows of a side, where they are drawn.
        val_fraction: Fraction of the rows for validation, of a side with given rows.
        test_fraction: Fraction of the rows for the test, likewise.
        predict_path: A file whose rows predict maps, one way or the other. None for test rows: of the source, or
            of the target for a model that maps the inverse way.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If an argument is out of range, rows are not finite, or the sides have other numbers of columns; in
            ``setup``, where the rows tell.
    """

    draws_fresh_rows = False

    def __init__(
        self,
        source: DensityDataModule | Any = None,
        target: DensityDataModule | Any = None,
        source_path: str | None = None,
        target_path: str | None = None,
        batch_size: int = _BATCH_SIZE,
        num_source: int = 65536,
        num_target: int = 16384,
        num_val: int = 4096,
        num_test: int = 10000,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        predict_path: str | None = None,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        check_counts(num_source=num_source, num_target=num_target, num_val=num_val, num_test=num_test)
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        self._given: dict[str, Side] = {}
        for name, side, path in (("source", source, source_path), ("target", target, target_path)):
            if (side is None) == (path is None):
                given = "neither" if path is None else f"{name}_path={path!r} and a {name} too"
                raise ValueError(f"give exactly one of {name} and {name}_path (a file), got {given}")
            self._given[name] = path if side is None else side
        self._counts = {
            "source": {"train": num_source, "val": num_val, "test": num_test},
            "target": {"train": num_target, "val": num_val, "test": num_test},
        }
        self._fractions, self._predict_path = (val_fraction, test_fraction), predict_path
        self._sides: dict[str, Rows] = {}
        super().__init__(
            dim=1,  # until the rows are looked at
            name="transport",
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size or max(batch_size, 1024),
        )
        self.save_hyperparameters(ignore=["source", "target"])
        self.dim = self._find_dim()

    def _find_dim(self) -> int:
        """Columns of both sides; the rows of a side of another kind than a data module are read or drawn for it."""
        for name, side in self._given.items():
            if isinstance(side, DensityDataModule):
                return side.dim
            return self._side(name).dim
        return 1

    def _side(self, name: str) -> Rows:
        if name not in self._sides:
            made = side_rows(self._given[name], name, self._counts[name], self._fractions, self.data_seed)
            self._sides[name] = made
        return self._sides[name]

    def load(self) -> dict[str, TransportBatch]:
        """Read or draw both sides."""
        source, target = self._side("source"), self._side("target")
        if source.dim != target.dim:
            raise ValueError(
                f"source has {source.dim} columns and target {target.dim}: a transport moves mass within one space."
            )
        if source.columns is not None and target.columns is not None and source.columns != target.columns:
            raise ValueError(
                f"source has the columns {source.columns} and target {target.columns}: give the same, in one order."
            )
        self.columns = source.columns or target.columns
        splits = {key: TransportBatch(source.splits[key], target.splits[key]) for key in source.splits}
        if self._predict_path is not None:
            rows, names = read_rows(self._predict_path)
            if rows.shape[1] != source.dim or (source.columns is not None and names != source.columns):
                raise ValueError(
                    f"{self._predict_path!r} has the columns {names or rows.shape[1]}: expected those of source, "
                    f"{source.columns or source.dim}."
                )
            splits["predict"] = TransportBatch(rows.float())
        return splits

    def check_splits(self, splits: dict[str, TransportBatch]) -> dict[str, TransportBatch]:
        """Lower the batch size to the rows that a side has."""
        train = splits["train"]
        assert train.target is not None
        self._batch_size = min(self._batch_size, len(train.source), len(train.target))
        return splits

    def split(self, key: str) -> TransportBatch:
        """The rows of one split, setting up first if need be.

        Args:
            key: ``train``, ``val``, ``test`` or ``predict``, which has the rows to be mapped in the source's place.
        """
        self.setup()
        if key != "predict" or "predict" in self._splits:
            return self._splits[key]
        test = self._splits["test"]
        asks = getattr(getattr(self.trainer, "lightning_module", None), "direction", "forward")
        return TransportBatch(test.source if asks == "forward" or test.target is None else test.target)

    def rows_source(self, key: str, shuffle: bool) -> Source:
        """What serves the rows of a split; see ``InMemoryDataModule``."""
        batch = self.split("train" if key == "calibration" else key)
        seeds = (stream_seed(self.data_seed, "train", 0), stream_seed(self.data_seed, "train", 1))
        return PairSource(batch, seeds, shuffle)

    def calibration_dataloader(self) -> BatchLoader:
        """The training rows in order, for units and for a lift's reference summary; not shared over processes."""
        return BatchLoader(
            self.rows_source("calibration", shuffle=False),
            max(self.batch_size, _CALIBRATION_BATCH),
            shard=False,
            label=f"calibration rows of {self.name}",
        )

    def probe_batches(self, num_batches: int, seed: int = 0) -> Any:
        """Batches distributed like training batches, without touching the training's own stream.

        Args:
            num_batches: How many.
            seed: Seed of the probe; with ``data_seed`` it decides the batches.

        Yields:
            Batches of ``batch_size`` rows a side, the same in every process.
        """
        train = self.split("train")
        assert train.target is not None
        for index in range(num_batches):
            generator = generator_at(stream_seed(self.data_seed, "probe", seed), index)
            some = [torch.randperm(len(side), generator=generator)[: self.batch_size] for side in train[:2]]  # type: ignore[arg-type]
            yield TransportBatch(train.source[some[0]], train.target[some[1]])
