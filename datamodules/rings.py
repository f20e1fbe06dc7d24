"""Concentric circles with Gaussian noise."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.curves import panel_rule
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.planar import Integral, PlanarDataModule, check_positive
from lightning_lift.datamodules.uniform import open_uniform


class RingsDataModule(PlanarDataModule):
    """Circles about the origin, of evenly spaced radii and equal probability, with Gaussian noise.

    The defaults are those of FFJORD (Grathwohl et al. 2019) and CP-Flow (Huang et al. 2021): radii 0.75, 1.5, 2.25 and
    3, noise 0.08 (there with evenly spaced instead of random angles). The density is in closed form: that of one circle
    of radius R is exp(-(r^2 + R^2) / (2 s^2)) I_0(r R / s^2) / (2 pi s^2), with I_0 the modified Bessel function.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Args:
        num_rings: How many circles.
        radius: Radius of the largest circle.
        noise: Standard deviation of the Gaussian noise.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        num_rings: int = 4,
        radius: float = 3.0,
        noise: float = 0.08,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="rings",
            **kwargs,
        )
        check_counts(num_rings=num_rings)
        check_positive(radius=radius, noise=noise)
        self._radii = radius * torch.arange(1, num_rings + 1, dtype=torch.float64) / num_rings
        self._noise = noise
        end = radius + 6.0 * noise
        self.set_window((-end, -end), (end, end))
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw a circle, an angle and the noise."""
        radius = self._radii[torch.randint(self._radii.shape[0], (num_rows,), generator=generator)]
        angle = 2.0 * math.pi * open_uniform((num_rows,), generator)
        points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
        return points + self._noise * torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)

    def plane_log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density in closed form, with exp(-z) I_0(z) so that nothing overflows."""
        return self._radial(x.norm(dim=1))

    def plane_entropy(self) -> Integral:
        """Integrate along the radius by two Gauss-Legendre rules."""
        end = float(self._radii[-1]) + 10.0 * self._noise
        panels = math.ceil(end / (4.0 * self._noise))
        fine, coarse = (self._surprise(end, count) for count in (2 * panels, panels))
        return Integral(fine, abs(fine - coarse) + 1e-13)

    def _surprise(self, end: float, panels: int) -> float:
        radius, weights = panel_rule(0.0, end, panels)
        log_density = self._radial(radius)
        return -float((weights * 2.0 * math.pi * radius * log_density.exp() * log_density).sum())

    def _radial(self, radius: Tensor) -> Tensor:
        scaled, rings = radius[:, None] / self._noise, self._radii / self._noise
        each = torch.special.i0e(scaled * rings).log() - 0.5 * (scaled - rings).square()
        return torch.logsumexp(each, dim=1) - math.log(2.0 * math.pi * self._noise**2 * self._radii.shape[0])
