"""The Gumbel target."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.uniform import standard_exponential


class GumbelDataModule(OneDimensionalDataModule):
    """Gumbel distribution of maxima, log p(z) = -z - exp(-z), on the whole line.

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "gumbel"
    standard_window: ClassVar[tuple[float, float]] = (-5.0, 12.0)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return -z - exp(-z); -inf where exp(-z) overflows, as there the log-density is below every float."""
        return -z - torch.exp(-z)

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw -log E with E standard exponential."""
        return -torch.log(standard_exponential((num_rows,), generator))

    def standard_entropy(self) -> float:
        """Return 1 plus Euler's constant."""
        return 1.0 + float(np.euler_gamma)
