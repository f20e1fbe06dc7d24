"""Gaussian arms, twisted into a pinwheel."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.planar import Integral, PlanarDataModule, check_positive

_SCALE = 2.0  # of FFJORD's rows
_FAR = 10.0  # radial standard deviations beyond 1 where the twist stops growing; a mass of 1e-23 lies outside
_GRID, _STEP = 180, 0.05  # of the entropy: points each way, and spacing in standard deviations


class PinwheelDataModule(PlanarDataModule):
    """Arms of a Gaussian each, turned the farther the more: a pinwheel with an exact density.

    A point of an arm is f = (1 + radial_std N, tangential_std N'). It is turned clockwise by 2 pi k / num_arms, k
    uniform, plus rate exp(|f|), and doubled. A turn that depends on the distance from the centre alone keeps areas and
    can be undone, so that the density is exact. The usual recipe (Johnson et al. 2016, FFJORD) turns by rate exp(f_1);
    that map folds over itself far out. |f| and f_1 differ by about f_2^2 / (2 f_1), 0.005 at the defaults.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Args:
        num_arms: How many arms.
        radial_std: Standard deviation along an arm, before doubling.
        tangential_std: Standard deviation across an arm, before doubling.
        rate: Strength of the twist; 0 for straight arms.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        num_arms: int = 5,
        radial_std: float = 0.3,
        tangential_std: float = 0.1,
        rate: float = 0.25,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="pinwheel",
            **kwargs,
        )
        check_counts(num_arms=num_arms)
        check_positive(radial_std=radial_std, tangential_std=tangential_std)
        if not math.isfinite(rate):
            raise ValueError(f"rate must be finite, got {rate}")
        self._angles = 2.0 * math.pi * torch.arange(num_arms, dtype=torch.float64) / num_arms
        self._std = torch.tensor([radial_std, tangential_std], dtype=torch.float64)
        self._rate = rate
        end = _SCALE * math.hypot(1.0 + 5.0 * radial_std, 5.0 * tangential_std)
        self.set_window((-end, -end), (end, end))
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw a point of an arm, and turn it."""
        noise = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
        arm = torch.randint(self._angles.shape[0], (num_rows,), generator=generator)
        points = noise * self._std + torch.tensor([1.0, 0.0], dtype=torch.float64)
        return _SCALE * _turned(points, -self._angles[arm] - self._twist(points))

    def plane_log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of the arms at the point before the twist, which keeps areas."""
        points = x / _SCALE
        return self._log_straight(_turned(points, self._twist(points))) - 2.0 * math.log(_SCALE)

    def plane_entropy(self) -> Integral:
        """Integrate -log p over one arm on a grid, untwisted: all arms are alike, and the twist keeps areas."""
        line = _STEP * torch.arange(-_GRID, _GRID + 1, dtype=torch.float64)
        grid = torch.cartesian_prod(line, line)
        weights = torch.exp(-0.5 * grid.square().sum(dim=1))
        log_density = self._log_straight(grid * self._std + torch.tensor([1.0, 0.0], dtype=torch.float64))
        even = torch.zeros(line.shape[0], line.shape[0], dtype=torch.bool)
        even[::2, ::2] = True
        half = weights * even.reshape(-1)
        fine, coarse = (-float((part * log_density).sum() / part.sum()) for part in (weights, half))
        return Integral(fine + 2.0 * math.log(_SCALE), abs(fine - coarse) + 1e-13)

    def _log_straight(self, points: Tensor) -> Tensor:
        """Return the log-density (N,) of the arms without the twist."""
        arms = [_turned(points, angle.expand(points.shape[0])) for angle in self._angles]
        offsets = (torch.stack(arms) - torch.tensor([1.0, 0.0], dtype=torch.float64)) / self._std
        normalization = math.log(2.0 * math.pi * len(arms) * float(self._std.prod()))
        value: Tensor = torch.logsumexp(-0.5 * offsets.square().sum(dim=2), dim=0) - normalization
        return value

    def _twist(self, points: Tensor) -> Tensor:
        # any function of the distance keeps areas: this one stays bounded, for points far out
        distance: Tensor = torch.linalg.vector_norm(points, dim=1).clamp(max=1.0 + _FAR * float(self._std[0]))
        return self._rate * distance.exp()


def _turned(points: Tensor, angle: Tensor) -> Tensor:
    """Turn points (N, 2) counterclockwise by angles (N,)."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos * points[:, 0] - sin * points[:, 1], sin * points[:, 0] + cos * points[:, 1]], dim=1)
