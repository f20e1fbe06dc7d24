"""Negative log-likelihood and its standard error, as torchmetrics."""

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_lift.metrics.functional import mean_standard_error, merge_moments, moments


class _LogLikelihoodMoments(Metric):
    """Count, mean and spread of -log p in one state of three float32 numbers, merged exactly over batches and ranks."""

    full_state_update = False
    is_differentiable = False
    moments: Tensor

    def __init__(self) -> None:
        super().__init__()
        # One state rather than three sums: the merge needs the three numbers of each rank together.
        self.add_state("moments", torch.zeros(3), dist_reduce_fx=merge_moments)

    def update(self, log_prob: Tensor) -> None:
        """Add log-densities.

        Args:
            log_prob: shape (N,), in nats; -inf makes the likelihood infinite.

        Raises:
            ValueError: another number of dimensions.
        """
        if log_prob.ndim != 1:
            raise ValueError(f"log_prob of shape {tuple(log_prob.shape)}: must be (N,), one log-density a row.")
        batch = moments(-log_prob.detach()).to(self.moments)
        self.moments = merge_moments(torch.stack([self.moments, batch]))


class NegativeLogLikelihood(_LogLikelihoodMoments):
    """Mean of -log p(x) over all rows seen, in nats.

    Shapes: ``update(log_prob: (N,))``; ``compute()`` gives a scalar, NaN before the first row. Rows that two ranks both
    hold count twice. In a ``MetricCollection`` with ``NegativeLogLikelihoodStandardError`` the state is kept once.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """The mean, a scalar."""
        return torch.where(self.moments[0] > 0, self.moments[1], torch.nan)


class NegativeLogLikelihoodStandardError(_LogLikelihoodMoments):
    """Standard error of the mean of -log p(x) over all rows seen, in nats.

    It is the error that comes from the finite number of rows, not from the log-partition.

    Shapes: ``update(log_prob: (N,))``; ``compute()`` gives a scalar, NaN for fewer than two rows or an infinite
    likelihood.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """The standard error, a scalar."""
        return mean_standard_error(self.moments)
