"""Estimates kept for the potential that they were made of."""

from collections.abc import Hashable

import torch
from torch import Tensor

from lightning_lift.partition.base import PartitionEstimate
from lightning_lift.potential import Potential


class EstimateMemory:
    """One estimate for each key, forgotten when the potential's tensors have changed.

    An evaluation that is the same each time is made once: a figure that asks for the log-density at each of its points
    gets it at once.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[Tensor], PartitionEstimate]] = {}

    def recall(self, key: Hashable, potential: Potential) -> PartitionEstimate | None:
        """The estimate of this key, or None where there is none of this very potential."""
        known = self._known.get(key)
        return known[1] if known is not None and _equal(known[0], _tensors(potential)) else None

    def keep(self, key: Hashable, potential: Potential, estimate: PartitionEstimate) -> PartitionEstimate:
        """Keeps an estimate in the place of the one before, and gives it back."""
        self._known[key] = ([tensor.detach().clone() for tensor in _tensors(potential)], estimate)
        return estimate

    def clear(self) -> None:
        """Forgets everything."""
        self._known.clear()


def _tensors(potential: Potential) -> list[Tensor]:
    return [*potential.weights.values(), *potential.network.parameters(), *potential.network.buffers()]


def _equal(known: list[Tensor], tensors: list[Tensor]) -> bool:
    return len(known) == len(tensors) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
        for a, b in zip(known, tensors, strict=True)
    )
