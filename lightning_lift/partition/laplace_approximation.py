"""The mode of a convex energy and the Gaussian there: where chains and annealing start."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from lightning_lift.partition.chains import normals
from lightning_lift.partition.coordinates import Target

_MAX_ITERATIONS = 100
_TRIALS = 50
_TOLERANCE = 1e-9  # squared Newton decrement, twice the nats that are left
_RISE = 2.0  # nats above the mode at which the profile is measured: two standard deviations of a Gaussian


@dataclass(frozen=True)
class Gaussian:
    """N(mean, L L^T) as a start that can be sampled and evaluated.

    Attributes:
        mean: shape (D,).
        factor: L, lower triangular, shape (D, D).
    """

    mean: Tensor
    factor: Tensor

    def value_gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """-log density (N,) and its gradient (N, D) at u, shape (N, D)."""
        inverse = torch.linalg.solve_triangular(self.factor, torch.eye(len(self.factor)).to(self.factor), upper=False)
        standard = (u - self.mean) @ inverse.T
        constant = float(self.factor.diagonal().cpu().double().log().sum()) + 0.5 * len(self.mean) * math.log(
            2.0 * math.pi
        )
        return 0.5 * standard.square().sum(1) + constant, standard @ inverse

    def draw(self, num_points: int, generator: torch.Generator) -> Tensor:
        """Draws, shape (n, D), from a generator on the CPU."""
        return self.mean + normals((num_points, len(self.mean)), generator, self.mean) @ self.factor.T


@dataclass(frozen=True)
class Mode:
    """The least point of an energy, and two Gaussians there.

    Attributes:
        point: shape (D,).
        laplace: with the inverse of the Hessian as its covariance, or None where there is no usable Hessian.
        profile: as wide along each of the Hessian's axes as the energy's rise of two nats says: usable at kinks too.
    """

    point: Tensor
    laplace: Gaussian | None
    profile: Gaussian


@torch.no_grad()
def find_mode(target: Target, start: Tensor) -> Mode:
    """Damped Newton from a start, then the two Gaussians.

    The direction uses the absolute values of the Hessian's eigenvalues, which is Newton's own for a convex energy and
    still descends beside a wall, where the energy in unconstrained coordinates need not be convex. The step is the
    longest of 1, 1/4, 1/16, ... that satisfies Armijo's condition; all of them are tried in one call. Networks without
    second derivatives are minimised by L-BFGS.

    Args:
        target: the energy.
        start: shape (D,).
    """
    if not target.potential.network.twice_differentiable:
        point = _least_by_first_order(target, start)
        axes = torch.eye(len(point), dtype=torch.float64)
        return Mode(point, None, _profile(target, point, axes))
    point, (eigenvalues, axes) = _newton(target, start)
    return Mode(point, _inverse_hessian(point, eigenvalues, axes), _profile(target, point, axes))


def _newton(target: Target, start: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    point = start.clone()
    lengths = 0.25 ** torch.arange(_TRIALS, dtype=start.dtype, device=start.device)
    energies, gradients = target(point.unsqueeze(0))
    for _ in range(_MAX_ITERATIONS):
        eigenvalues, axes = _spectrum(target, point)
        if not bool(torch.isfinite(gradients).all() and torch.isfinite(eigenvalues).all()):
            break
        floor = max(1e-10 * float(eigenvalues.abs().max()), 1e-30)
        slope = gradients[0].cpu().double()
        direction = -(axes @ (axes.T @ slope / eigenvalues.abs().clamp(min=floor)))
        decrement = -float(direction @ slope)
        if decrement <= _TOLERANCE:
            break
        trials = point + lengths.unsqueeze(1) * direction.to(point)
        trial_energies, trial_gradients = target(trials)
        enough = trial_energies <= energies[0] - 1e-4 * decrement * lengths
        if not bool(enough.any()):
            break  # no lower point can be told apart in this precision
        best = int(enough.nonzero()[0])
        point = trials[best]
        energies, gradients = trial_energies[best : best + 1], trial_gradients[best : best + 1]
    return point, _spectrum(target, point)


def _spectrum(target: Target, point: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (D,) and eigenvectors (D, D) of the Hessian, float64 on the CPU."""
    hessian = target.hessian(point.unsqueeze(0))[0].cpu().double()
    if not bool(torch.isfinite(hessian).all()):
        return torch.full((len(point),), torch.nan, dtype=torch.float64), torch.eye(len(point), dtype=torch.float64)
    eigenvalues, axes = torch.linalg.eigh(0.5 * (hessian + hessian.T))
    return eigenvalues, axes


def _inverse_hessian(point: Tensor, eigenvalues: Tensor, axes: Tensor) -> Gaussian | None:
    largest = float(eigenvalues.max())
    if not (math.isfinite(largest) and float(eigenvalues.min()) > 1e-7 * largest > 0.0):
        return None  # flat or bent downwards: a kink's zero Hessian, or a wall
    return Gaussian(point, _factor(axes, eigenvalues.rsqrt()).to(point))


def _factor(axes: Tensor, deviations: Tensor) -> Tensor:
    # L L^T = V diag(sd^2) V^T by the QR decomposition of diag(sd) V^T: better conditioned than forming the product.
    upper = torch.linalg.qr(deviations.unsqueeze(1) * axes.T, mode="r")[1]
    factor: Tensor = (upper * upper.diagonal().sign().unsqueeze(1)).T.contiguous()
    return factor


def _profile(target: Target, point: Tensor, axes: Tensor) -> Gaussian:
    """Standard deviations along the axes from where the energy has risen by two nats on either side."""
    dim = len(point)
    directions = torch.cat([axes.T, -axes.T]).to(point)
    level = target(point.unsqueeze(0))[0] + _RISE
    low, high = point.new_zeros(2 * dim), point.new_ones(2 * dim)

    def below(lengths: Tensor) -> Tensor:
        return target(point + lengths.unsqueeze(1) * directions)[0] < level

    for _ in range(40):  # outwards by doubling
        inside = below(high)
        if not bool(inside.any()):
            break
        low = torch.where(inside, high, low)
        high = torch.where(inside, 2.0 * high, high)
    for _ in range(30):
        middle = 0.5 * (low + high)
        inside = below(middle)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    reach = 0.5 * (high[:dim] + high[dim:]).cpu().double()
    deviations = (reach / math.sqrt(2.0 * _RISE)).clamp(min=1e-12)
    return Gaussian(point, _factor(axes, deviations).to(point))


def _least_by_first_order(target: Target, start: Tensor) -> Tensor:
    def value_gradient(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = target(torch.as_tensor(u).to(start).unsqueeze(0))
        return float(value), gradient[0].cpu().double().numpy()

    found = minimize(value_gradient, start.cpu().double().numpy(), jac=True, method="L-BFGS-B")
    point: Tensor = torch.as_tensor(found.x).to(start)
    return point if bool(torch.isfinite(point).all()) else start
