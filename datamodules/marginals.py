"""One-dimensional distributions as increasing maps of a standard normal score, with moments and entropy in closed form.

They are the margins of a Gaussian copula: with x = quantile(z), the score z = score(x) is standard normal.
"""

import math
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_TINY = 1e-300  # keeps the score of an end of the support finite


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high].

    Args:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float

    @property
    def ends(self) -> tuple[float, float]:
        """Support."""
        return self.low, self.high

    @property
    def mean(self) -> float:
        """Mean."""
        return 0.5 * (self.low + self.high)

    @property
    def variance(self) -> float:
        """Variance."""
        return (self.high - self.low) ** 2 / 12.0

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        return math.log(self.high - self.low)

    def quantile(self, z: Tensor) -> Tensor:
        """Return low + (high - low) Phi(z)."""
        share: Tensor = torch.special.ndtr(z)
        return self.low + (self.high - self.low) * share

    def score(self, x: Tensor) -> Tensor:
        """Return the inverse of :meth:`quantile`."""
        width = self.high - self.low
        return _score((x - self.low) / width, (self.high - x) / width)

    def log_density(self, x: Tensor) -> Tensor:
        """Return a constant."""
        return torch.full_like(x, -self.entropy)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal distribution cut to [low, high]; moments and entropy by Johnson, Kotz & Balakrishnan (1994), chapter 13.

    Args:
        loc: Mean before the cut.
        scale: Standard deviation before the cut.
        low: Lower end, possibly -inf.
        high: Upper end, possibly inf.
    """

    loc: float
    scale: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def ends(self) -> tuple[float, float]:
        """Support."""
        return self.low, self.high

    @property
    def mean(self) -> float:
        """Mean."""
        return self.loc + self.scale * self._first

    @property
    def variance(self) -> float:
        """Variance."""
        return self.scale**2 * (1.0 + self._second - self._first**2)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        return 0.5 + _HALF_LOG_2PI + math.log(self.scale * self._mass) + 0.5 * self._second

    def quantile(self, z: Tensor) -> Tensor:
        """Return the standard normal quantile of the part of the mass kept, in the tail where it is accurate."""
        a, b = self._cut
        below = float(special.ndtr(a)) + self._mass * torch.special.ndtr(z)
        above = float(special.ndtr(-b)) + self._mass * torch.special.ndtr(-z)
        return self.loc + self.scale * _score(below, above)

    def score(self, x: Tensor) -> Tensor:
        """Return the inverse of :meth:`quantile`."""
        a, b = self._cut
        t = (x - self.loc) / self.scale
        below = (torch.special.ndtr(t) - float(special.ndtr(a))) / self._mass
        above = (torch.special.ndtr(-t) - float(special.ndtr(-b))) / self._mass
        return _score(below, above)

    def log_density(self, x: Tensor) -> Tensor:
        """Return that of the normal distribution over the mass kept."""
        t = (x - self.loc) / self.scale
        return -0.5 * t.square() - (_HALF_LOG_2PI + math.log(self.scale * self._mass))

    @property
    def _cut(self) -> tuple[float, float]:
        return (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale

    @property
    def _mass(self) -> float:
        a, b = self._cut
        return float(special.ndtr(b) - special.ndtr(a))

    @property
    def _first(self) -> float:
        a, b = self._cut
        return (_density(a) - _density(b)) / self._mass

    @property
    def _second(self) -> float:
        a, b = self._cut
        return (_times_density(a) - _times_density(b)) / self._mass


@dataclass(frozen=True)
class ShiftedLogNormal:
    """X = shift + scale exp(sigma Z) with a standard normal Z.

    Args:
        shift: Lower end.
        scale: Median less the shift, positive.
        sigma: Standard deviation of the logarithm, positive.
    """

    shift: float
    scale: float
    sigma: float

    @property
    def ends(self) -> tuple[float, float]:
        """Support."""
        return self.shift, math.inf

    @property
    def mean(self) -> float:
        """Mean."""
        return self.shift + self.scale * math.exp(0.5 * self.sigma**2)

    @property
    def variance(self) -> float:
        """Variance."""
        return self.scale**2 * math.expm1(self.sigma**2) * math.exp(self.sigma**2)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        return 0.5 + _HALF_LOG_2PI + math.log(self.scale * self.sigma)

    def quantile(self, z: Tensor) -> Tensor:
        """Return shift + scale exp(sigma z)."""
        return self.shift + self.scale * torch.exp(self.sigma * z)

    def score(self, x: Tensor) -> Tensor:
        """Return the inverse of :meth:`quantile`."""
        return torch.log(((x - self.shift) / self.scale).clamp(min=_TINY)) / self.sigma

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log-density, -inf at the lower end."""
        z = self.score(x)
        return -0.5 * z.square() - self.sigma * z - (_HALF_LOG_2PI + math.log(self.scale * self.sigma))


Marginal = Uniform | TruncatedNormal | ShiftedLogNormal
"""A continuous distribution on an interval. Methods take and give float64 tensors of any shape: ``quantile(z)``, the
value whose probability of being undercut is that of a standard normal at z; ``score(x)``, its inverse, and
``log_density(x)``, for points of the support. ``ends`` are infinite where open."""


def _score(below: Tensor, above: Tensor) -> Tensor:
    """Standard normal quantile from the probabilities of both sides: from the smaller, which is the accurate one."""
    left = torch.special.ndtri(below.clamp(_TINY, 0.75))
    right = torch.special.ndtri(above.clamp(_TINY, 0.75))
    return torch.where(below < above, left, -right)


def _density(t: float) -> float:
    return math.exp(-0.5 * t * t - _HALF_LOG_2PI)


def _times_density(t: float) -> float:
    return t * _density(t) if math.isfinite(t) else 0.0
