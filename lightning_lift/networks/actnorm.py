"""Activation normalisation: one learnable scale and shift a feature, started from data."""

import torch
from torch import Tensor, nn


class ActNorm(nn.Module):
    """y = exp(log_scale) * (x + bias), feature by feature (Kingma & Dhariwal, Glow, 2018, section 3.1).

    The scale is positive, so a convex function of the features stays convex behind it. ``initialize_`` starts it from
    data, once; whether it has done so is a buffer and travels in the state dictionary, because a layer that started
    again from the first batch after a reload would be another function.

    Args:
        num_features: number of features F.

    Raises:
        ValueError: fewer than one feature.

    Shapes: (..., F) to (..., F).
    """

    initialized: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features={num_features}: an ActNorm needs at least one feature.")
        self.num_features = num_features
        self.log_scale = nn.Parameter(torch.zeros(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("initialized", torch.tensor(False))

    @torch.no_grad()
    def initialize_(self, rows: Tensor) -> None:
        """Sets scale and shift so that these rows come out with mean 0 and variance 1; a no-op after the first time.

        A feature that is constant over the rows is centred and keeps the scale 1.

        Args:
            rows: shape (N, F).

        Raises:
            ValueError: the wrong shape, no rows, or rows that are not finite.
        """
        if self.initialized:
            return
        if rows.ndim != 2 or rows.shape[1] != self.num_features or not len(rows):
            raise ValueError(
                f"rows of shape {tuple(rows.shape)} cannot start an ActNorm: expected (N, {self.num_features}), N >= 1."
            )
        if not torch.isfinite(rows).all():
            raise ValueError("rows that are not finite cannot start an ActNorm; remove them from the first batch.")
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        constant = std <= 1e-6 * mean.abs()  # all that is left there is round-off
        self.log_scale.copy_(-torch.where(constant, torch.ones_like(std), std).log())
        self.bias.copy_(-mean)
        self.initialized.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """exp(log_scale) * (x + bias): shape (..., F) to (..., F)."""
        return self.log_scale.exp() * (x + self.bias)

    def inverse(self, y: Tensor) -> Tensor:
        """The x with forward(x) = y: shape (..., F) to (..., F)."""
        return y * (-self.log_scale).exp() - self.bias

    def log_det(self) -> Tensor:
        """log |d forward / d x|, the same at every point: a scalar tensor, sum(log_scale)."""
        return self.log_scale.sum()
