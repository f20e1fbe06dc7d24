"""The Gamma target."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.uniform import standard_exponential


class GammaDataModule(OneDimensionalDataModule):
    """Gamma distribution of shape 2, log p(z) = log z - z, on [0, inf).

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "gamma"
    standard_support: ClassVar[tuple[float, float]] = (0.0, math.inf)
    standard_window: ClassVar[tuple[float, float]] = (0.0, 13.31)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return log z - z, as Gamma(2) = 1."""
        return torch.log(z) - z

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw the sum of two standard exponentials."""
        return standard_exponential((num_rows, 2), generator).sum(dim=1)

    def standard_entropy(self) -> float:
        """Return a + log Gamma(a) + (1 - a) digamma(a) at a = 2, that is 1 plus Euler's constant."""
        return 1.0 + float(np.euler_gamma)
