"""The Laplace target."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.uniform import standard_exponential


class LaplaceDataModule(OneDimensionalDataModule):
    """Laplace (double exponential) distribution, log p(z) = -|z| - log 2, on the whole line.

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "laplace"
    standard_window: ClassVar[tuple[float, float]] = (-8.0, 8.0)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return -|z| - log 2."""
        return -z.abs() - math.log(2.0)

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw the difference of two standard exponentials."""
        pair = standard_exponential((num_rows, 2), generator)
        return pair[:, 0] - pair[:, 1]

    def standard_entropy(self) -> float:
        """Return 1 + log 2."""
        return 1.0 + math.log(2.0)
