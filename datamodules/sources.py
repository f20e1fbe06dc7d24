"""Where the rows of a loader come from: held in memory, or drawn fresh."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import Batch, num_rows, take_rows
from lightning_lift.datamodules.seeding import generator_at

Draw = Callable[[int, torch.Generator], Tensor | Batch]
"""``draw(num_rows, generator)``: independent rows, (num_rows, D) or a ``Batch``, made from the generator alone."""


class Source(Protocol):
    """What a loader asks of its rows. All methods are pure: equal arguments give equal rows."""

    num_batches: int
    """Global batches of an epoch, where there are rows without end."""

    def num_rows(self) -> int | None:
        """Return the number of rows of an epoch, or None for an endless stream."""
        ...

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` of the global batch ``index``, whose global batches have ``size`` rows."""
        ...


class TensorSource:
    """Rows held in memory, in order or shuffled anew each epoch.

    Args:
        tensor: The rows, (N, ...), or a ``Batch`` of them.
        base: Base seed of the shuffling, used if ``shuffle``.
        shuffle: Whether each epoch has its own order.
    """

    num_batches = 0

    def __init__(self, tensor: Tensor | Batch, base: int, shuffle: bool) -> None:
        self._tensor = tensor
        self._base = base
        self._shuffle = shuffle
        self._order: tuple[int, Tensor] | None = None  # (epoch, permutation): made once an epoch

    def num_rows(self) -> int:
        """Return N."""
        return num_rows(self._tensor)

    def positions(self, epoch: int, begin: int, end: int) -> Tensor | slice:
        """Return where the rows ``begin`` to ``end`` of an epoch stand in the tensor."""
        if not self._shuffle:
            return slice(begin, end)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, torch.randperm(self.num_rows(), generator=generator_at(self._base, epoch))
        return self._order[1][begin:end]

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> Any:
        """Return a copy of the rows asked for, float32; see :class:`Source`."""
        begin = index * size
        # a copy, so that code that writes into its batch cannot write into the data
        return take_rows(self._tensor, self.positions(epoch, begin + start, begin + stop), copy=not self._shuffle)


class StreamSource:
    """Fresh rows in each batch, every batch made by a generator of its own.

    Args:
        draw: Makes rows from a generator.
        base: Base seed of the stream.
        num_batches: Global batches of an epoch.

    Raises:
        ValueError: If ``num_batches`` is below 1.
    """

    def __init__(self, draw: Draw, base: int, num_batches: int) -> None:
        if num_batches < 1:
            raise ValueError(f"the number of batches of an epoch must be at least 1, got {num_batches}")
        self._draw = draw
        self._base = base
        self.num_batches = num_batches

    def num_rows(self) -> None:
        """Return None: a stream has no end."""
        return None

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> Any:
        """Return the rows asked for; see :class:`Source`.

        The whole global batch is drawn and then cut, so that the rows do not depend on how many processes share it.
        """
        generator = generator_at(self._base, epoch * self.num_batches + index)
        return take_rows(self._draw(size, generator), slice(start, stop))
