"""Whole-batch loading of in-memory rows, alone or with parts, resumable within an epoch and sharded by rank."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lightning_lift.datamodules.batches import Batch
from lightning_lift.datamodules.sources import Draw, Source, StreamSource, TensorSource


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank and the number of processes, (0, 1) outside a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _EpochHandle:
    """Where Lightning looks for ``set_epoch`` at the start of each epoch: at ``loader.batch_sampler.sampler``.

    ``loader.sampler`` would do for training, but makes Lightning take the loader for a shuffled one in evaluation.
    """

    def __init__(self, loader: "BatchLoader") -> None:
        self.sampler = loader


class BatchLoader:
    """Serves float32 batches of rows by indexing whole batches; make one with :meth:`fixed` or :meth:`stream`.

    Deliberately NOT a ``torch.utils.data.DataLoader``: Lightning gives every DataLoader a distributed sampler of single
    rows, which would undo whole-batch indexing and pad evaluation splits with repeated rows. This class shards itself.

    ``batch_size`` is the size of one process's batch. With W processes the global batch ``i`` has ``W * batch_size``
    rows, made once and cut contiguously by rank: W processes with batches of B see the rows of one process with batches
    of W * B. Rank and number of processes are read when a batch is asked for.

    Iterating gives the batches of one epoch; iterating again gives the next epoch. Lightning sets the epoch by
    :meth:`set_epoch`, and saves and loads ``state_dict()`` with its checkpoints; after ``load_state_dict`` the next
    iteration gives the remaining batches of that epoch. ``len`` is always that of a whole epoch, because Lightning adds
    the batches already served to its own count.

    Args:
        source: Where the rows come from.
        batch_size: Rows of one process's batch.
        drop_last: Whether a last global batch with missing rows is left out.
        shard: Whether the processes share the rows; otherwise each serves all of them.
        same_every_epoch: Whether every epoch serves the batches of epoch 0 (``Trainer(overfit_batches=...)``).
        label: What the rows are called in error messages.

    Attributes:
        epoch: Epoch of the data, from 0.
        served: Batches of that epoch that have been served.
        limit: Batches after which an iteration ends, if before the end of the epoch (``limit_train_batches``). It does
            not change ``len``, to which Lightning applies the limit by itself.
        fit_loop: The trainer's, from which the loader learns which batches are done; None without a trainer.

    Raises:
        ValueError: If ``batch_size`` is below 1.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        drop_last: bool = False,
        shard: bool = True,
        same_every_epoch: bool = False,
        label: str = "data",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.epoch = 0
        self.served = 0
        self.limit: int | None = None
        self.fit_loop: Any = None
        self._source = source
        self._drop_last = drop_last
        self._shard = shard
        self._same_every_epoch = same_every_epoch
        self._label = label
        self._resuming = False  # a state was loaded and no batch has been asked for since
        self._told: int | None = None  # the trainer's epoch at the last set_epoch
        self._begun = 0, 0  # at the first batch of an iteration: its index, and the batches that the trainer had done

    @classmethod
    def fixed(
        cls, tensor: Tensor | Batch, batch_size: int, *, base_seed: int = 0, shuffle: bool = False, **settings: Any
    ) -> "BatchLoader":
        """Make a loader of rows in memory.

        Args:
            tensor: The rows, (N, D), or a ``Batch`` of them.
            batch_size: Rows of one process's batch.
            base_seed: Base seed of the shuffling; the order is a function of it and the epoch.
            shuffle: Whether each epoch has its own order.
            **settings: Arguments of the class: ``drop_last`` (for training; otherwise the rows of a last incomplete
                batch are split over the processes as evenly as possible, none repeated and none left out), ``shard``,
                ``same_every_epoch`` (the order of epoch 0), ``label``.

        Returns:
            The loader.
        """
        return cls(TensorSource(tensor, base_seed, shuffle), batch_size, **settings)

    @classmethod
    def stream(
        cls, draw: Draw, batch_size: int, num_batches: int, *, base_seed: int = 0, **settings: Any
    ) -> "BatchLoader":
        """Make a loader of fresh rows.

        Args:
            draw: ``draw(num_rows, generator)``, independent rows made from the generator alone.
            batch_size: Rows of one process's batch.
            num_batches: Global batches of an epoch.
            base_seed: Base seed; a batch is a function of it, the epoch and the batch's index.
            **settings: Arguments of the class: ``same_every_epoch`` (the batches of epoch 0), ``label``.

        Returns:
            The loader.
        """
        return cls(StreamSource(draw, base_seed, num_batches), batch_size, **settings)

    @property
    def batch_sampler(self) -> "_EpochHandle":
        """What leads Lightning to :meth:`set_epoch`."""
        return _EpochHandle(self)

    @property
    def dataset(self) -> range | None:
        """Positions of the rows, whose number ends the search of Lightning's batch-size finder; None for fresh rows."""
        total = self._source.num_rows()
        return None if total is None else range(total)

    def set_epoch(self, epoch: int) -> None:
        """Take note of the trainer's epoch: another number than before starts the next epoch of the data.

        The first call after :meth:`load_state_dict` keeps the loaded place whatever the number is. Lightning resumes a
        run with ``max_steps`` from a checkpoint of ``on_train_epoch_end`` with one empty epoch (at most what was left
        of the saved one), so that its number runs ahead of the data's: counting here keeps the resumed run exact.

        Args:
            epoch: The trainer's epoch, from 0. A new loader adopts it.
        """
        if self.fit_loop is not None:
            # Lightning loads the places as it asks for the loaders, which `trainer.estimated_stepping_batches` makes it
            # do before the checkpoint's places are known; by now they are. It does nothing the second time.
            self.fit_loop._load_combined_loader_states()
        if self._told is None:
            if not self._resuming:
                self.epoch, self.served = epoch, 0
        elif epoch != self._told:
            self.epoch, self.served, self._resuming = self.epoch + 1, 0, False
        self._told = epoch

    def __len__(self) -> int:
        """Return the number of batches that this process serves in an epoch.

        Raises:
            ValueError: If the rows do not suffice for one batch in each process.
        """
        rank, world = self._place()
        total = self._source.num_rows()
        if total is None:
            return self._source.num_batches
        size = world * self.batch_size
        if self._drop_last:
            if total < size:
                raise ValueError(
                    f"{self._label}: {total} rows are fewer than one batch of {size} rows ({world} process(es) with "
                    f"batch_size {self.batch_size}); lower batch_size to at most {total // world} or give more rows"
                )
            return total // size
        if total < world:
            # a process without a batch would skip the evaluation's collectives and leave the others waiting
            raise ValueError(f"{self._label}: {total} rows are fewer than the {world} processes; use fewer processes")
        full = total // size
        start, stop = _share(total - full * size, rank, world)
        return full + (stop > start)

    def __iter__(self) -> Iterator[Any]:
        """Serve the (remaining) batches of an epoch, float32."""
        # A generator: nothing below runs before the first batch is asked for. Lightning makes the iterator first and
        # sets the epoch afterwards, and when it resumes it makes iterators that it never uses.
        if not self._resuming:
            self.epoch += self.served > 0  # iterated before and not told the epoch: the next one
            self.served = 0
        elif self.served > 0 and self.fit_loop is not None and self._progress.current.ready == 0:
            # the checkpoint was written after the last batch, and Lightning has moved on by itself
            self.epoch, self.served = self.epoch + 1, 0
        self._resuming = False
        self._begun = self.served, self._progress.total.processed if self.fit_loop is not None else 0
        epoch = 0 if self._same_every_epoch else self.epoch
        for index in range(self.served, min(len(self), self.limit or sys.maxsize)):
            rank, world = self._place()
            size = world * self.batch_size
            start, stop = _share(self._rows_in(index, size), rank, world)
            batch = self._source.rows(epoch, index, size, start, stop)
            self.served = index + 1
            yield batch

    def row_range(self, index: int) -> tuple[int, int]:
        """Return the positions, in the order served, of the rows of this process's batch ``index``.

        With it predictions of several processes can be put back in the order of the data.

        Args:
            index: Batch index, from 0.

        Returns:
            First position and one past the last.
        """
        rank, world = self._place()
        size = world * self.batch_size
        start, stop = _share(self._rows_in(index, size), rank, world)
        return index * size + start, index * size + stop

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data: epoch and batches done (plain integers), and the rows of a global batch.

        A batch that the trainer was interrupted in is served but not done: the resumed run has it again.
        """
        done = self.served
        if self.fit_loop is not None:
            index, before = self._begun
            done = min(done, index + self._progress.total.processed - before)
        return {"epoch": self.epoch, "served": done, "global_batch_size": self._place()[1] * self.batch_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a saved place: the next iteration serves the batches that were left.

        Warns if the place is within an epoch and the global batch has another size now: the rest of that epoch is then
        not the same rows as in the saved run.

        Args:
            state_dict: What :meth:`state_dict` gave.
        """
        self.epoch, self.served = int(state_dict["epoch"]), int(state_dict["served"])
        self._resuming, self._told = True, None
        before, now = state_dict.get("global_batch_size"), self._place()[1] * self.batch_size
        if before is not None and before != now and self.served:
            warnings.warn(
                f"{self._label}: the checkpoint was written within an epoch of batches of {before} rows over all "
                f"processes, now {now}: the rest of this epoch does not have the rows of the saved run. Resume with "
                "the same batch_size times number of processes to continue exactly.",
                stacklevel=2,
            )

    @property
    def _progress(self) -> Any:
        return self.fit_loop.epoch_loop.batch_progress

    def _place(self) -> tuple[int, int]:
        return rank_and_world_size() if self._shard else (0, 1)

    def _rows_in(self, index: int, size: int) -> int:
        total = self._source.num_rows()
        return size if total is None else min(size, total - index * size)


def _share(rows: int, rank: int, world: int) -> tuple[int, int]:
    """Cut ``rows`` rows contiguously into ``world`` parts that differ by at most one row."""
    return rank * rows // world, (rank + 1) * rows // world
