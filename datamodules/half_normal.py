"""The half-normal target."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule


class HalfNormalDataModule(OneDimensionalDataModule):
    """Half-normal distribution, the absolute value of a standard normal variable, on [0, inf).

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "half_normal"
    standard_support: ClassVar[tuple[float, float]] = (0.0, math.inf)
    standard_window: ClassVar[tuple[float, float]] = (0.0, 6.0)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return log(2 / pi) / 2 - z^2 / 2."""
        return 0.5 * math.log(2.0 / math.pi) - 0.5 * z.square()

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw |N|."""
        return torch.randn(num_rows, generator=generator, dtype=torch.float64).abs()

    def standard_entropy(self) -> float:
        """Return (1 + log(pi / 2)) / 2."""
        return 0.5 * (1.0 + math.log(math.pi / 2.0))
