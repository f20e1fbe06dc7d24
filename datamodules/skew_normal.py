"""The skew-normal target."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule

_ALPHA = 4.0
_DELTA = _ALPHA / math.sqrt(1.0 + _ALPHA**2)


class SkewNormalDataModule(OneDimensionalDataModule):
    """Skew-normal distribution of shape 4, p(z) = 2 phi(z) Phi(4 z), on the whole line.

    ``loc`` and ``scale`` move and stretch it; the arguments are those of :class:`OneDimensionalDataModule`.
    """

    source: ClassVar[str] = "skew_normal"
    standard_window: ClassVar[tuple[float, float]] = (-2.0, 6.0)  # leaves out a mass of 2e-9, nearly all on the right

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return log 2 + log phi(z) + log Phi(4 z), with a log Phi that is accurate in the far tail."""
        skew: Tensor = torch.special.log_ndtr(_ALPHA * z)
        return 0.5 * math.log(2.0 / math.pi) - 0.5 * z.square() + skew

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw delta |N| + sqrt(1 - delta^2) N' with delta = 4 / sqrt(17) (Azzalini 1986)."""
        pair = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
        return _DELTA * pair[:, 0].abs() + math.sqrt(1.0 - _DELTA**2) * pair[:, 1]
