"""Two interleaved half circles with Gaussian noise, as a density."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.curves import curve_nodes
from lightning_lift.datamodules.mixtures import MixtureDataModule, PlanarMixture
from lightning_lift.datamodules.planar import check_width
from lightning_lift.datamodules.uniform import open_uniform


class MoonsDataModule(MixtureDataModule):
    """Two moons for density estimation: half circles of radius 2 with Gaussian noise.

    The half circles of scikit-learn's ``make_moons``, at uniform random angles, times 2 and moved by (-1, -0.2), as in
    FFJORD (Grathwohl et al. 2019): (2 cos a - 1, 2 sin a - 0.2) and (1 - 2 cos a, 0.8 - 2 sin a), a uniform on [0, pi],
    with equal probability. ``noise`` is that of the rows, twice the ``noise`` of ``make_moons``. The density is exact:
    an integral along the half circles, by quadrature. For labelled rows see :class:`TwoMoonsDataModule`.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

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
            name="moons",
            **kwargs,
        )
        check_width(6.0, noise=noise)
        arc, weights = curve_nodes(_upper, lambda angle: torch.full_like(angle, 1.0 / math.pi), 0.0, math.pi, noise)
        self._mixture = PlanarMixture(torch.cat([arc, _MIRROR - arc]), 0.5 * torch.cat([weights, weights]), noise)
        margin = 6.0 * noise
        self.set_window((-3.0 - margin, -1.2 - margin), (3.0 + margin, 1.8 + margin))
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw an angle, a half circle and the noise."""
        upper = _upper(math.pi * open_uniform((num_rows,), generator))
        lower = torch.randint(2, (num_rows, 1), generator=generator).bool()
        noise = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
        return torch.where(lower, _MIRROR - upper, upper) + self._mixture.std * noise


_MIRROR = torch.tensor([0.0, 0.6], dtype=torch.float64)  # the sum of a point and its mirror image in the centre


def _upper(angle: Tensor) -> Tensor:
    return torch.stack([2.0 * angle.cos() - 1.0, 2.0 * angle.sin() - 0.2], dim=1)
