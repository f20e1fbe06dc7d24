"""Negative log-likelihood and its standard error, as torchmetrics."""

from torch import Tensor

from lightning_lift.metrics.row_moments import RowMoments


class _LogLikelihoodMoments(RowMoments):
    """Moments of -log p."""

    def update(self, log_prob: Tensor) -> None:
        """Add log-densities.

        Args:
            log_prob: shape (N,), in nats; -inf makes the likelihood infinite.

        Raises:
            ValueError: another number of dimensions.
        """
        if log_prob.ndim != 1:
            raise ValueError(f"log_prob of shape {tuple(log_prob.shape)}: must be (N,), one log-density a row.")
        super().update(-log_prob)


class NegativeLogLikelihood(_LogLikelihoodMoments):
    """Mean of -log p(x) over all rows seen, in nats.

    Shapes: ``update(log_prob: (N,))``; ``compute()`` gives a scalar, NaN before the first row. Rows that two ranks both
    hold count twice. In a ``MetricCollection`` with ``NegativeLogLikelihoodStandardError`` the state is kept once.
    """

    higher_is_better = False

    def compute(self) -> Tensor:  # type: ignore[override]  # one number of the two
        """The mean, a scalar."""
        return super().compute()[0]


class NegativeLogLikelihoodStandardError(_LogLikelihoodMoments):
    """Standard error of the mean of -log p(x) over all rows seen, in nats.

    It is the error that comes from the finite number of rows, not from the log-partition.

    Shapes: ``update(log_prob: (N,))``; ``compute()`` gives a scalar, NaN for fewer than two rows or an infinite
    likelihood.
    """

    higher_is_better = False

    def compute(self) -> Tensor:  # type: ignore[override]  # one number of the two
        """The standard error, a scalar."""
        return super().compute()[1]
