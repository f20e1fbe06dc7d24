"""Squares of even density, as on a checkerboard."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.planar import Integral, PlanarDataModule
from lightning_lift.datamodules.uniform import open_uniform

_HALF = 4.0  # the board is [-4, 4]^2
_SQUARE = 2.0


class CheckerboardDataModule(PlanarDataModule):
    """Uniform on the eight squares of side 2 of one colour on [-4, 4]^2 (FFJORD, Grathwohl et al. 2019).

    The log-density is -log 32 on the squares, which hold their lower ends and not their upper ones, and -inf elsewhere;
    the entropy is log 32.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Args:
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="checkerboard",
            **kwargs,
        )
        ends = torch.tensor([[-_HALF, -_HALF], [_HALF, _HALF]])
        self.set_range(ends, 1.25 * ends)
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw a column, a square in it, and a point of the square."""
        return sum(self._corner_and_offset(num_rows, generator), torch.zeros(2, dtype=torch.float64))

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows (num_rows, 2) float32; see the base class."""
        corner, offset = (part.to(torch.float32) for part in self._corner_and_offset(num_rows, generator))
        upper = corner + _SQUARE
        # rounding may put a point on the upper end, which belongs to the next square
        return torch.minimum(corner + offset, torch.nextafter(upper, corner))

    def plane_log_prob(self, x: Tensor) -> Tensor:
        """Return -log 32 on the squares, -inf elsewhere."""
        column, row = (x / _SQUARE).floor().unbind(dim=1)
        on_board = ((x >= -_HALF) & (x < _HALF)).all(dim=1)
        inside = on_board & (torch.remainder(column + row, 2.0) == 0.0)
        # a sum, for a gradient of 0 where one is asked for
        return (0.0 * x.sum(dim=1) - math.log(8.0 * _SQUARE**2)).masked_fill(~inside, -math.inf)

    def plane_entropy(self) -> Integral:
        """Return the logarithm of the area."""
        return Integral(math.log(8.0 * _SQUARE**2), 0.0)

    def _corner_and_offset(self, num_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        column = torch.randint(-2, 2, (num_rows,), generator=generator)
        row = 2 * torch.randint(-1, 1, (num_rows,), generator=generator) + column.remainder(2)
        return _SQUARE * torch.stack([column, row], dim=1).double(), _SQUARE * open_uniform((num_rows, 2), generator)
