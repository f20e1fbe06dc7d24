"""Distances between two densities known on a common grid, as torchmetrics."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_lift.metrics.functional import hellinger_distance, kl_divergence, total_variation


class GridDistance(Metric, ABC):
    """A distance between two densities on a grid, averaged over the updates.

    Usually there is one update a validation or test run. Each update stands for a whole grid; ranks that all evaluate
    the same grid therefore get the same number as one process does.

    Subclass requirements: ``distance(log_p, log_q, quadrature_weights)``, pure, shapes (M,) to a scalar.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    @staticmethod
    @abstractmethod
    def distance(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
        """The distance of one pair of densities."""

    def update(self, log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> None:
        """Adds one pair of densities; both are renormalised on the grid.

        Args:
            log_p: log-density of the truth on the grid, shape (M,), -inf outside its support.
            log_q: log-density of the model on the same grid, shape (M,).
            quadrature_weights: shape (M,), nonnegative.

        Raises:
            ValueError: shapes that differ, or weights that are no quadrature weights.
        """
        self.total = self.total + self.distance(log_p, log_q, quadrature_weights).detach().to(self.total)
        self.count = self.count + 1.0

    def compute(self) -> Tensor:
        """The mean over the updates, a scalar; NaN before the first."""
        return self.total / self.count


class TotalVariation(GridDistance):
    """TV(p, q) = 1/2 int |p - q|, in [0, 1]. Shapes: ``update((M,), (M,), (M,))``, ``compute()`` a scalar."""

    @staticmethod
    def distance(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
        """``functional.total_variation``."""
        return total_variation(log_p, log_q, quadrature_weights)


class KLDivergence(GridDistance):
    """KL(p || q) = int p log(p / q) in nats. Shapes: ``update((M,), (M,), (M,))``, ``compute()`` a scalar.

    Infinite where p has mass and q has none.
    """

    @staticmethod
    def distance(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
        """``functional.kl_divergence``."""
        return kl_divergence(log_p, log_q, quadrature_weights)


class HellingerDistance(GridDistance):
    """H(p, q) = sqrt(1/2 int (sqrt p - sqrt q)^2), in [0, 1].

    Shapes: ``update((M,), (M,), (M,))``, ``compute()`` a scalar.
    """

    @staticmethod
    def distance(log_p: Tensor, log_q: Tensor, quadrature_weights: Tensor) -> Tensor:
        """``functional.hellinger_distance``."""
        return hellinger_distance(log_p, log_q, quadrature_weights)
