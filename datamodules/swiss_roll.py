"""A spiral with Gaussian noise: the swiss roll, seen from its end."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.curves import curve_nodes
from lightning_lift.datamodules.mixtures import MixtureDataModule, PlanarMixture
from lightning_lift.datamodules.planar import check_width
from lightning_lift.datamodules.uniform import open_uniform

_START, _STOP = 1.5 * math.pi, 4.5 * math.pi
_SHRINK = 5.0


class SwissRollDataModule(MixtureDataModule):
    """Swiss roll in two columns: (t cos t, t sin t) / 5 with t uniform on [1.5 pi, 4.5 pi], and Gaussian noise.

    The first and third column of scikit-learn's ``make_swiss_roll``, divided by 5. FFJORD (Grathwohl et al. 2019) adds
    a noise of 1 before the division, which is the default 0.2 here; CP-Flow (Huang et al. 2021) 0.5, which is 0.1 here.
    The density is exact: an integral along the curve, by quadrature.

    Fresh samples in each batch, or a fixed training set. Training units are original units, those after the division.

    Args:
        noise: Standard deviation of the Gaussian noise in the rows.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        noise: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="swiss_roll",
            **kwargs,
        )
        check_width(2.0 * _STOP / _SHRINK, noise=noise)
        flat = 1.0 / (_STOP - _START)
        roll, weights = curve_nodes(_roll, lambda t: torch.full_like(t, flat), _START, _STOP, noise)
        self._mixture = PlanarMixture(roll, weights, noise)
        end = _STOP / _SHRINK + 6.0 * noise
        self.set_window((-end, -end), (end, end))
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw an angle and the noise."""
        points = _roll(_START + (_STOP - _START) * open_uniform((num_rows,), generator))
        return points + self._mixture.std * torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)


def _roll(t: Tensor) -> Tensor:
    return torch.stack([t * t.cos(), t * t.sin()], dim=1) / _SHRINK
