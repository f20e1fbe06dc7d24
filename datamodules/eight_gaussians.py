"""Eight Gaussians on a circle."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.mixtures import MixtureDataModule, PlanarMixture
from lightning_lift.datamodules.planar import check_choice, check_positive, check_width

# In CP-Flow, circle and noise are divided by 1.414, not by the square root of 2.
_SHAPES = {"lift": (2.0, 0.1), "cp_flow": (4.0 / 1.414, 0.5 / 1.414)}


class EightGaussiansDataModule(MixtureDataModule):
    """Equal Gaussians, evenly spaced on a circle about the origin, the first on the positive axis.

    Fresh samples in each batch, or a fixed training set. Training units are original units. The entropy is 0.312 nats
    in the convention ``lift``, 2.8 nats in ``cp_flow``.

    Args:
        convention: Radius and std that are not given: ``lift`` for 2 and 0.1; ``cp_flow`` for 4 / 1.414 and
            0.5 / 1.414, the toy data of FFJORD (Grathwohl et al. 2019) and CP-Flow (Huang et al. 2021).
        radius: Radius of the circle.
        std: Standard deviation of each Gaussian.
        num_modes: How many Gaussians.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        convention: Literal["lift", "cp_flow"] = "lift",
        radius: float | None = None,
        std: float | None = None,
        num_modes: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            name="eight_gaussians",
            **kwargs,
        )
        default = check_choice(_SHAPES, convention=convention)
        radius, std = (default[0] if radius is None else radius), (default[1] if std is None else std)
        check_positive(radius=radius)
        check_width(2.0 * radius, std=std)
        check_counts(num_modes=num_modes)
        angles = 2.0 * math.pi * torch.arange(num_modes, dtype=torch.float64) / num_modes
        centres = radius * torch.stack([angles.cos(), angles.sin()], dim=1)
        self._mixture = PlanarMixture(centres, torch.full((num_modes,), 1.0 / num_modes, dtype=torch.float64), std)
        end = radius + 6.0 * std
        self.set_window((-end, -end), (end, end))
        self.save_hyperparameters()

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw a centre and Gaussian noise."""
        which = torch.randint(self._mixture.centres.shape[0], (num_rows,), generator=generator)
        noise = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
        return self._mixture.centres[which] + self._mixture.std * noise
