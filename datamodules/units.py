"""Training units: the affine change of variables between the columns of a table and what a model sees."""

from typing import NamedTuple

import torch
from torch import Tensor


class Units(NamedTuple):
    """Original rows are ``location + scale * training``, or ``location + scale @ training`` with a matrix.

    Attributes:
        location: (D,).
        scale: (D,), positive, or (D, D), invertible, as whitening gives it.
    """

    location: Tensor
    scale: Tensor

    def apply(self, original: Tensor) -> Tensor:
        """Bring rows (N, D) into training units, in the wider precision of the two."""
        centred = original - self.location
        if self.scale.ndim == 1:
            return centred / self.scale
        solved: Tensor = torch.linalg.solve(self.scale, centred.T.to(self.scale.dtype)).T
        return solved

    def invert(self, training: Tensor) -> Tensor:
        """Bring rows (N, D) back into original units, in the wider precision of the two."""
        if self.scale.ndim == 1:
            return self.location + self.scale * training
        return self.location + training.to(self.scale.dtype) @ self.scale.T

    @property
    def log_det(self) -> Tensor:
        """log |det scale|: a log-density in original units is that in training units less this."""
        logs: Tensor = self.scale.log() if self.scale.ndim == 1 else torch.linalg.slogdet(self.scale)[1]
        return logs.sum()

    @property
    def spread(self) -> Tensor:
        """Standard deviation (D,) of each original column where training rows have the unit covariance."""
        if self.scale.ndim == 1:
            return self.scale
        largest = self.scale.abs().amax(dim=1)  # whose square need not be a number
        norms: Tensor = (self.scale / largest.unsqueeze(1)).norm(dim=1)
        return largest * norms

    def reordered(self, order: list[int]) -> "Units":
        """The same training rows, with the original columns in another order.

        Args:
            order: for each new column its position among the present ones.
        """
        return Units(self.location[order], self._matrix()[order])

    def of(self, other: "Units") -> "Units":
        """What brings training rows of ``other`` into these training units: these are ``invert`` of the result.

        Args:
            other: units of the same original columns, in the same order.
        """
        # the difference of two large means is a small number: in the precision of the units, not of the rows
        shift = self.apply(other.location.unsqueeze(0)).squeeze(0)
        if self.scale.ndim == other.scale.ndim == 1:
            return Units(shift, other.scale / self.scale)
        return Units(shift, torch.linalg.solve(self._matrix(), other._matrix()))

    def to(self, like: Tensor) -> "Units":
        """These units in the precision and on the device of a tensor."""
        return Units(self.location.to(like), self.scale.to(like))

    def _matrix(self) -> Tensor:
        return self.scale.diag() if self.scale.ndim == 1 else self.scale
