"""One-dimensional escape problems: a potential between a reflecting and an absorbing end, and the noise that acts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_lift.diagnostics.shoulder import SHOULDER_SLOPE

PotentialName = Literal["double_well", "shoulder"]
_GRID = 4001


@dataclass(frozen=True)
class EscapeProblem:
    """dw = -U'(w) dt + sqrt(s2) dB from ``start``, reflected at ``reflecting``, until ``absorbing`` is reached.

    Attributes:
        name: of the potential.
        value: U, elementwise on float64 tensors.
        gradient: U', likewise.
        start: where every path begins.
        reflecting: a, the left end.
        absorbing: b, the right end.
        bottom: the lowest point of [a, b]; a itself where U rises from there.
        top: the highest point between bottom and b; b itself where U still rises there.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    start: float
    reflecting: float
    absorbing: float
    bottom: float
    top: float

    @property
    def barrier(self) -> float:
        """Alpha = U(top) - U(bottom)."""
        return self._at(self.value, self.top) - self._at(self.value, self.bottom)

    @property
    def stiffness(self) -> float:
        """The largest abs U'' on [a, b], by differences on a fine grid: the inverse of the shortest time scale."""
        grid = torch.linspace(self.reflecting, self.absorbing, _GRID, dtype=torch.float64)
        gradient = self.gradient(grid)
        return float((gradient.diff() / grid.diff()).abs().max())

    @property
    def variation(self) -> float:
        """Total variation of U on [a, b]."""
        grid = torch.linspace(self.reflecting, self.absorbing, _GRID, dtype=torch.float64)
        return float(self.value(grid).diff().abs().sum())

    def slope_at(self, point: float) -> float:
        """U' at a point."""
        return self._at(self.gradient, point)

    def curvature_at(self, point: float) -> float:
        """U'' at a point, by a central difference of U'."""
        step = 1e-5 * (self.absorbing - self.reflecting)
        return (self._at(self.gradient, point + step) - self._at(self.gradient, point - step)) / (2.0 * step)

    @staticmethod
    def _at(function: Callable[[Tensor], Tensor], point: float) -> float:
        return float(function(torch.tensor([point], dtype=torch.float64)))


def double_well(barrier: float = 1.0) -> EscapeProblem:
    """U(w) = alpha (w^2 - 1)^2 from the left well at -1 to the bottom of the right one at 1, reflected at -1.5.

    Args:
        barrier: alpha, U at the top (w = 0) over U in the wells.

    Raises:
        ValueError: a barrier that is not positive.
    """
    _check_barrier(barrier)
    return EscapeProblem(
        name="double_well",
        value=lambda w: barrier * (w.square() - 1.0).square(),
        gradient=lambda w: 4.0 * barrier * w * (w.square() - 1.0),
        start=-1.0,
        reflecting=-1.5,
        absorbing=1.0,
        bottom=-1.0,
        top=0.0,
    )


def shoulder(barrier: float = 1.0, sigma_s: float = SHOULDER_SLOPE, width: float = 2.0) -> EscapeProblem:
    r"""A loss that rises with the weight, seen through the softplus latent: what keeps a weight on the shoulder.

    U(u) = alpha (psi(u) - psi(a)) / (psi(b) - psi(a)) for the latent u on [a, b], psi the softplus; b is the edge of
    the shoulder, psi'(b) = sigma_s, and a = b - width. So U' = psi'(u) times a constant, largest at the edge.

    The barrier is given, not the slope of the loss in theta, so that problems of different ``sigma_s`` differ in
    their noise alone, as in the corollary.

    Args:
        barrier: alpha, U at the edge over U at a.
        sigma_s: slope of the softplus at the edge, in (0, 1).
        width: of the piece of shoulder, in units of the latent.

    Raises:
        ValueError: a barrier or width that is not positive, or a slope outside (0, 1).
    """
    _check_barrier(barrier)
    if not 0.0 < sigma_s < 1.0:
        raise ValueError(f"sigma_s={sigma_s}: a softplus has slopes between 0 and 1; the default is {SHOULDER_SLOPE}.")
    if not 0.0 < width < 50.0:
        raise ValueError(f"width={width}: give a positive length of the latent, at most 50 (the default is 2).")
    edge = math.log(sigma_s / (1.0 - sigma_s))
    left = edge - width

    def softplus(u: Tensor) -> Tensor:
        return u.exp().log1p()  # the largest u is the edge: nothing overflows

    low, high = softplus(torch.tensor([left, edge], dtype=torch.float64)).tolist()
    rate = barrier / (high - low)
    return EscapeProblem(
        name="shoulder",
        value=lambda u: rate * (softplus(u) - low),
        gradient=lambda u: rate * torch.sigmoid(u),
        start=left,
        reflecting=left,
        absorbing=edge,
        bottom=left,
        top=edge,
    )


def make_problem(name: PotentialName, barrier: float = 1.0, sigma_s: float = SHOULDER_SLOPE) -> EscapeProblem:
    """A problem by name.

    Args:
        name: ``double_well`` or ``shoulder``.
        barrier: alpha.
        sigma_s: slope at the shoulder's edge; the double well does not depend on it.

    Raises:
        ValueError: an unknown name, or arguments that do not fit.
    """
    if name == "double_well":
        return double_well(barrier)
    if name == "shoulder":
        return shoulder(barrier, sigma_s)
    raise ValueError(f"potential={name!r} is not known; choose 'double_well' or 'shoulder'.")


@dataclass(frozen=True)
class ShoulderNoise:
    r"""The update noise of a latent on the shoulder, direct and lifted: s2 = eta sigma_s^2 times a constant.

    The latent's gradient is psi'(latent) times the weight's, so its noise has the variance sigma_s^2 ``objective``. A
    lift's latent moves from batch to batch as well. That reaches the update through the Hessian in the latent,
    H = psi'^2 L'' + psi'' L', and psi'' = psi' (1 - psi') for a softplus: H is of order sigma_s, and so is the
    covariance of latent and latent gradient, Sigma. Hence the coupling term e^T (H Sigma + Sigma^T H) e and the jitter
    term e^T H Cov(latent) H e are both of order sigma_s^2. They change the constant in front of sigma_s^-2 in the
    escape exponent, up or down (the coupling has either sign), and not its order.

    Attributes:
        objective: variance of the gradient in theta.
        coupling: the coupling term over sigma_s^2; of either sign.
        jitter: the jitter term over sigma_s^2.
        eta: learning rate.
    """

    objective: float = 1.0
    coupling: float = 0.0
    jitter: float = 0.5
    eta: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: a variance or a rate that is not positive.
        """
        if not (self.objective > 0.0 and self.jitter >= 0.0 and self.eta > 0.0):
            raise ValueError(
                f"objective={self.objective}, jitter={self.jitter}, eta={self.eta}: a variance and a learning rate "
                "are positive, and a jitter is at least 0."
            )
        if not self.lifted_constant > 0.0:
            raise ValueError(
                f"coupling={self.coupling} leaves the lift with the noise variance {self.lifted_constant:g}: it must "
                f"be above -(objective + jitter) = {-(self.objective + self.jitter):g}."
            )

    @property
    def lifted_constant(self) -> float:
        """The lift's noise variance over sigma_s^2."""
        return self.objective + self.coupling + self.jitter

    def direct(self, sigma_s: float) -> float:
        """s2 of the direct parameterization."""
        return self.eta * sigma_s**2 * self.objective

    def lifted(self, sigma_s: float) -> float:
        """s2 of the lift."""
        return self.eta * sigma_s**2 * self.lifted_constant


def _check_barrier(barrier: float) -> None:
    if not 0.0 < barrier < math.inf:
        raise ValueError(f"barrier={barrier}: must be positive and finite.")
