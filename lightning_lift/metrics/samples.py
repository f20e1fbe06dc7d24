"""Distances between samples of a model and held-out rows, as torchmetrics."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_lift.metrics.two_sample import TwoSample, energy_distance, maximum_mean_discrepancy


class SampleDistance(Metric, ABC):
    """A distance between two samples; all rows are kept, and gathered over ranks, until ``compute``.

    Shapes: ``update((N, D), (M, D))``; ``compute()`` gives a scalar, and the cost is that of all pairs.

    Subclass requirements: ``distance(samples, rows)``, pure.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    samples: list[Tensor]
    rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("samples", [], dist_reduce_fx="cat")
        self.add_state("rows", [], dist_reduce_fx="cat")

    @abstractmethod
    def distance(self, samples: Tensor, rows: Tensor) -> TwoSample:
        """The distance and its standard error."""

    def update(self, samples: Tensor, rows: Tensor) -> None:
        """Adds rows to each sample.

        Args:
            samples: of the model, shape (N, D).
            rows: held out, shape (M, D).
        """
        self.samples.append(samples.detach())
        self.rows.append(rows.detach())

    def compute(self) -> Tensor:
        """The unbiased estimate, a scalar; it may be slightly negative."""
        samples, rows = dim_zero_cat(self.samples), dim_zero_cat(self.rows)
        return torch.tensor(self.distance(samples, rows).value, dtype=torch.float32, device=self.device)


class EnergyDistance(SampleDistance):
    """2 E|X - Y| - E|X - X'| - E|Y - Y'|, see ``energy_distance``."""

    def distance(self, samples: Tensor, rows: Tensor) -> TwoSample:
        """``energy_distance``."""
        return energy_distance(samples, rows)


class MaximumMeanDiscrepancy(SampleDistance):
    """Squared MMD with a Gaussian kernel, see ``maximum_mean_discrepancy``.

    Args:
        bandwidth: of the kernel, in units of the rows; None for the median distance between two of the rows.
    """

    def __init__(self, bandwidth: float | None = None) -> None:
        super().__init__()
        self.bandwidth = bandwidth

    def distance(self, samples: Tensor, rows: Tensor) -> TwoSample:
        """``maximum_mean_discrepancy``."""
        return maximum_mean_discrepancy(samples, rows, self.bandwidth)
