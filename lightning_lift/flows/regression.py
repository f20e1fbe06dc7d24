"""The start of a conditional flow from data: rows less their linear regression on the context, whitened."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

_LEAST_VARIANCE = 1e-8  # of a whitened combination of residuals, relative to the mean variance of the rows
_ROWS_A_COLUMN = 10  # of which a slope is estimated; with fewer there are no slopes


class Residual(NamedTuple):
    """y = (x - slope u) whiten^T at contexts u, a map with a constant Jacobian.

    Attributes:
        slope: shape (D, C).
        whiten: shape (D, D), symmetric and positive definite.
    """

    slope: Tensor
    whiten: Tensor

    def apply(self, x: Tensor, context: Tensor) -> Tensor:
        """The y of x: shapes (N, D) and (N, C) or (1, C) to (N, D)."""
        shifted: Tensor = x - context.to(self.slope.dtype) @ self.slope.T
        return shifted @ self.whiten.T

    def invert(self, y: Tensor, context: Tensor) -> Tensor:
        """The x of y: shapes (N, D) and (N, C) or (1, C) to (N, D)."""
        solved: Tensor = torch.linalg.solve(self.whiten, y.T).T
        return solved + context.to(self.slope.dtype) @ self.slope.T

    @property
    def log_det(self) -> Tensor:
        """log |d y / d x|."""
        logdet: Tensor = torch.linalg.slogdet(self.whiten)[1]
        return logdet

    def to(self, dtype: torch.dtype) -> "Residual":
        """The same in another precision."""
        return Residual(self.slope.to(dtype), self.whiten.to(dtype))


class LinearRegression(nn.Module):
    """Rows less their least-squares fit on the context, with the unit covariance; fixed once started.

    It takes from the networks behind it what is linear and Gaussian: of a linear-Gaussian posterior nothing is left
    to learn, and elsewhere they see residuals of unit size, whatever share of the rows the context explains.

    Args:
        dim: numbers in a row, D.
        context_dim: numbers in a context, C.
    """

    slope: Tensor
    whiten: Tensor
    initialized: Tensor

    def __init__(self, dim: int, context_dim: int) -> None:
        super().__init__()
        self.register_buffer("slope", torch.zeros(dim, context_dim))
        self.register_buffer("whiten", torch.eye(dim))
        self.register_buffer("initialized", torch.tensor(False))

    @property
    def residual(self) -> Residual:
        """The map."""
        return Residual(self.slope, self.whiten)

    @torch.no_grad()
    def initialize_(self, x: Tensor, context: Tensor) -> None:
        """Fit these rows; a no-op after the first time.

        Args:
            x: shape (N, D).
            context: shape (N, C).
        """
        if self.initialized:
            return
        rows, columns = x.double().cpu(), context.double().cpu()
        rows, columns = rows - rows.mean(0), columns - columns.mean(0)
        if len(rows) >= _ROWS_A_COLUMN * (1 + columns.shape[1]):
            slope = torch.linalg.lstsq(columns, rows, driver="gelsd").solution.T
            rest = rows - columns @ slope.T
            self.slope.copy_(slope)
        else:
            rest = rows
        variances, directions = torch.linalg.eigh(rest.T @ rest / len(rest))
        least = _LEAST_VARIANCE * float(rows.square().mean()) or 1.0
        self.whiten.copy_((directions * variances.clamp(min=least).rsqrt()) @ directions.T)
        self.initialized.fill_(True)
