"""The Beta target."""

import math
from typing import ClassVar

import torch
from scipy.special import betaln, digamma
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.uniform import open_uniform


class BetaDataModule(OneDimensionalDataModule):
    """Beta(2, 5) distribution, log p(z) = log 30 + log z + 4 log(1 - z), on [0, 1].

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "beta"
    standard_support: ClassVar[tuple[float, float]] = (0.0, 1.0)
    standard_window: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return log 30 + log z + 4 log(1 - z)."""
        return math.log(30.0) + torch.log(z) + 4.0 * torch.log1p(-z)

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw the second smallest of six uniforms, which has exactly this distribution."""
        return open_uniform((num_rows, 6), generator).sort(dim=1).values[:, 1]

    def standard_entropy(self) -> float:
        """Return log B(a, b) - (a - 1) digamma(a) - (b - 1) digamma(b) + (a + b - 2) digamma(a + b) at (2, 5)."""
        return float(betaln(2, 5) - digamma(2) - 4 * digamma(5) + 5 * digamma(7))
