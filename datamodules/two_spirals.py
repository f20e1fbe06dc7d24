"""Two interleaved spirals."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_lift.datamodules.curves import curve_nodes
from lightning_lift.datamodules.mixtures import MixtureDataModule, PlanarMixture
from lightning_lift.datamodules.planar import check_choice, check_width
from lightning_lift.datamodules.uniform import open_uniform

_TURN = 3.0 * math.pi  # 540 degrees
_SHRINK = 3.0
# Radius at angle 0; default noise in final units; side, in final units, of the square over which a point is smeared.
_SHAPES = {"lift": (math.pi, 0.1 / _SHRINK, 0.0), "cp_flow": (0.0, 0.1, 0.5 / _SHRINK)}


class TwoSpiralsDataModule(MixtureDataModule):
    """Two spirals of one and a half turns, each the other's mirror image in the origin, with Gaussian noise.

    With t = 3 pi sqrt(U), U uniform, a point is +-(-r cos t, r sin t), each sign with probability 1/2, then:

    - ``lift`` (arXiv 2605.24274): r = t + pi; Gaussian noise of 0.1 is added, and *then* all is divided by 3, so that
      the standard deviation of the noise in the rows is 0.1 / 3.
    - ``cp_flow``, the toy data of FFJORD (Grathwohl et al. 2019) and CP-Flow (Huang et al. 2021): r = t; a uniform
      number of [0, 0.5] is added to each coordinate before the sign is given; all is divided by 3; Gaussian noise of
      standard deviation 0.1 is added last.

    The density is exact: an integral along the curve, by quadrature. Fresh samples in each batch, or a fixed training
    set. Training units are original units, those after the division.

    Args:
        convention: Which of the two.
        noise: Standard deviation of the Gaussian noise in the rows; None for that of the convention.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        convention: Literal["lift", "cp_flow"] = "lift",
        noise: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="two_spirals",
            **kwargs,
        )
        self._start, default, self._side = check_choice(_SHAPES, convention=convention)
        noise = default if noise is None else noise
        check_width(2.0 * (_TURN + self._start) / _SHRINK, noise=noise)
        # U is uniform, so the angle has the density 2 t / (3 pi)^2
        arm, weights = curve_nodes(self._arm, lambda t: 2.0 * t / _TURN**2, 0.0, _TURN, noise)
        arm = arm + 0.5 * self._side
        self._mixture = PlanarMixture(torch.cat([arm, -arm]), 0.5 * torch.cat([weights, weights]), noise, self._side)
        end = (_TURN + self._start) / _SHRINK + self._side + 6.0 * noise
        self.set_window((-end, -end), (end, end))
        self.save_hyperparameters()

    def _arm(self, t: Tensor) -> Tensor:
        radius = (t + self._start) / _SHRINK
        return torch.stack([-radius * t.cos(), radius * t.sin()], dim=1)

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw an angle, the uniform smear, a sign, and the noise."""
        points = self._arm(_TURN * open_uniform((num_rows,), generator).sqrt())
        points = points + self._side * open_uniform((num_rows, 2), generator)
        sign = 2 * torch.randint(2, (num_rows, 1), generator=generator) - 1
        noise = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
        return sign * points + self._mixture.std * noise
