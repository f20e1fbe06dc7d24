"""Unconstrained coordinates of a box, so that chains never meet a wall, and energies in them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_lift.potential import Potential

_CHUNK = 4096  # rows of one call of the network: its working set stays bounded


class Coordinates:
    """A smooth, increasing map of each column from the line onto the column's support.

    Open columns stay as they are; with a finite lower end x = low + log(1 + e^u), with a finite upper end
    x = high - log(1 + e^-u), with both x = low + (high - low) / (1 + e^-u). A chain in u is never rejected at a wall,
    where a density that is largest at the wall would force it to tiny steps.

    Args:
        support: low and high row, shape (2, D), infinite where open.

    Raises:
        ValueError: another shape, or an empty support.
    """

    def __init__(self, support: Tensor) -> None:
        if support.ndim != 2 or support.shape[0] != 2:
            raise ValueError(f"support of shape {tuple(support.shape)}: give a low and a high row, (2, D).")
        if not bool((support[0] < support[1]).all()):
            raise ValueError(f"support {support.tolist()}: each lower end must lie below the upper one.")
        self.support = support
        self._low_end, self._high_end = torch.isfinite(support)
        self.is_identity = not bool(self._low_end.any() or self._high_end.any())

    @property
    def dim(self) -> int:
        """Dimension D."""
        return self.support.shape[1]

    def to_support(self, u: Tensor) -> Tensor:
        """x(u): shape (N, D) to (N, D)."""
        if self.is_identity:
            return u
        low, high, has_low, has_high = self._ends(u)
        x = torch.where(has_low & ~has_high, low - F.logsigmoid(-u), u)
        x = torch.where(has_high & ~has_low, high + F.logsigmoid(u), x)
        return torch.where(has_low & has_high, low + (high - low) * torch.sigmoid(u), x)

    def to_unconstrained(self, x: Tensor) -> Tensor:
        """u(x): shape (N, D) to (N, D); points on or outside a wall are first moved just inside."""
        if self.is_identity:
            return x
        low, high, has_low, has_high = self._ends(x)
        above, below = (x - low).clamp(min=1e-6), (high - x).clamp(min=1e-6)
        u = torch.where(has_low & ~has_high, _inverse_softplus(above), x)
        u = torch.where(has_high & ~has_low, -_inverse_softplus(below), u)
        share = ((x - low) / (high - low)).clamp(1e-6, 1.0 - 1e-6)
        return torch.where(has_low & has_high, torch.logit(share), u)

    def jacobian(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log x'(u) and its first two derivatives in u, columnwise: three tensors of shape (N, D), 0 where open."""
        low, high, has_low, has_high = self._ends(u)
        left, right = F.logsigmoid(u), F.logsigmoid(-u)
        zero = torch.zeros_like(u)
        log_slope = torch.where(has_low, left, zero) + torch.where(has_high, right, zero)
        log_slope = log_slope + torch.where(has_low & has_high, (high - low).log(), zero)
        share = torch.sigmoid(u)
        first = torch.where(has_low, 1.0 - share, zero) - torch.where(has_high, share, zero)
        ends = has_low.to(u) + has_high.to(u)
        return log_slope, first, -ends * share * (1.0 - share)

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        has_low, has_high = self._low_end.to(like.device), self._high_end.to(like.device)
        low, high = self.support.to(like)
        # Finite stand-ins where open: the branch that is not taken must not make infinities.
        return low.masked_fill(~has_low, 0.0), high.masked_fill(~has_high, 1.0), has_low, has_high


class Target:
    """The energy of u: E(x(u)) - log |dx/du|, so that exp of minus it integrates to Z too.

    Args:
        potential: E.
        coordinates: x(u).
        chunk_size: rows of one call of the network.
    """

    def __init__(self, potential: Potential, coordinates: Coordinates, chunk_size: int = _CHUNK) -> None:
        self.potential = potential
        self.coordinates = coordinates
        self.chunk_size = chunk_size

    @property
    def like(self) -> Tensor:
        """A weight, for device and dtype."""
        return next(iter(self.potential.weights.values()))

    @torch.no_grad()
    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, D) at u, shape (N, D)."""
        if len(u) <= self.chunk_size:
            return self._value_gradient(u)
        values, gradients = zip(*[self._value_gradient(chunk) for chunk in u.split(self.chunk_size)], strict=True)
        return torch.cat(values), torch.cat(gradients)

    def _value_gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.potential.value_gradient(self.coordinates.to_support(u))
        if self.coordinates.is_identity:
            return value, gradient
        log_slope, first, _ = self.coordinates.jacobian(u)
        return value - log_slope.sum(1), gradient * log_slope.exp() - first

    @torch.no_grad()
    def hessian(self, u: Tensor) -> Tensor:
        """Hessians of the energy of u: shape (N, D) to (N, D, D); not necessarily positive beside a wall."""
        _, gradient, hessian = self.potential.value_gradient_hessian(self.coordinates.to_support(u))
        if self.coordinates.is_identity:
            return hessian
        log_slope, first, second = self.coordinates.jacobian(u)
        slope = log_slope.exp()
        return slope.unsqueeze(2) * hessian * slope.unsqueeze(1) + torch.diag_embed(gradient * slope * first - second)


def _inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))
