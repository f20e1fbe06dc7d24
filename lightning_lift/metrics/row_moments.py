"""The mean of a number for each row and its standard error, as a torchmetric."""

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_lift.metrics.functional import mean_standard_error, merge_moments, moments


class RowMoments(Metric):
    """Count, mean and spread of values in one state of three float32 numbers, merged exactly over batches and ranks.

    Shapes: ``update(values: (N,))``; ``compute()`` gives the mean and its standard error, two scalars, NaN before the
    first row and for fewer than two rows. Rows that two ranks both hold count twice.
    """

    full_state_update = False
    is_differentiable = False
    moments: Tensor

    def __init__(self) -> None:
        super().__init__()
        # One state rather than three sums: the merge needs the three numbers of each rank together.
        self.add_state("moments", torch.zeros(3), dist_reduce_fx=merge_moments)

    def update(self, values: Tensor) -> None:
        """Add rows.

        Args:
            values: shape (N,).

        Raises:
            ValueError: another number of dimensions.
        """
        if values.ndim != 1:
            raise ValueError(f"values of shape {tuple(values.shape)}: must be (N,), one a row.")
        batch = moments(values.detach()).to(self.moments)
        self.moments = merge_moments(torch.stack([self.moments, batch]))

    def compute(self) -> tuple[Tensor, Tensor]:
        """The mean and its standard error."""
        mean = torch.where(self.moments[0] > 0, self.moments[1], torch.nan)
        return mean, mean_standard_error(self.moments)
