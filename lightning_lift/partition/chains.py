"""Many Markov chains at once: preconditioned Langevin and Hamiltonian steps with a Metropolis correction."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LANGEVIN_ACCEPTANCE = 0.574  # best for one leapfrog step in many dimensions (Roberts & Rosenthal, 1998)
HAMILTONIAN_ACCEPTANCE = 0.75
_SMALLEST_STEP, _LARGEST_STEP = 1e-4, 2.0
_MAX_LEAPFROG = 12

ValueGradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Energies (C,) and gradients (C, D) at points (C, D)."""

Tempering = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From points, energies and gradients to those of the density that the chains are to follow."""


@dataclass(frozen=True)
class Ensemble:
    """C chains.

    Attributes:
        points: shape (C, D).
        energies: at the points, shape (C,).
        gradients: of the energy, shape (C, D).
    """

    points: Tensor
    energies: Tensor
    gradients: Tensor

    @classmethod
    def at(cls, target: ValueGradient, points: Tensor) -> "Ensemble":
        """Chains at these points."""
        return cls(points, *target(points))

    def where(self, keep: Tensor, other: "Ensemble") -> "Ensemble":
        """These chains where ``keep``, shape (C,), the other's elsewhere."""
        column = keep.unsqueeze(1)
        return Ensemble(
            torch.where(column, self.points, other.points),
            torch.where(keep, self.energies, other.energies),
            torch.where(column, self.gradients, other.gradients),
        )

    def __getitem__(self, index: Tensor) -> "Ensemble":
        """The chains of these positions."""
        index = index.to(self.points.device)
        return Ensemble(self.points[index], self.energies[index], self.gradients[index])


def normals(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers from a generator on the CPU, on the device and in the dtype of ``like``."""
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)


@torch.no_grad()
def step(
    target: ValueGradient,
    chains: Ensemble,
    step_size: float,
    factor: Tensor,
    generator: torch.Generator,
    num_leapfrog: int = 1,
    tempering: Tempering | None = None,
) -> tuple[Ensemble, float]:
    """One Hamiltonian step of every chain; with one leapfrog step it is the Metropolis-adjusted Langevin step.

    In the coordinates that the factor L whitens (u = L v): p ~ N(0, I), half a kick -h/2 L^T grad, then drifts
    u += h L p and kicks, accepted with probability min(1, exp(-change of energy)) (Neal, 2011, section 5.2). Each
    leapfrog step calls the target once.

    Args:
        target: the energy.
        chains: where they are.
        step_size: h, a number or at most two in these coordinates.
        factor: L, shape (D, D), with L L^T about the covariance.
        generator: on the CPU.
        num_leapfrog: leapfrog steps of one proposal.
        tempering: follows another density that can be made from the same energies and gradients.

    Returns:
        The chains after the step, with the target's own energies and gradients, and the mean acceptance probability.
    """
    temper = tempering or (lambda points, energies, gradients: (energies, gradients))
    energy, gradient = temper(chains.points, chains.energies, chains.gradients)
    momentum = normals(tuple(chains.points.shape), generator, chains.points)
    kinetic = 0.5 * momentum.square().sum(1)
    proposal, proposed_gradient = chains, gradient
    proposed_energy = energy
    for _ in range(num_leapfrog):
        momentum = momentum - 0.5 * step_size * (proposed_gradient @ factor)
        proposal = Ensemble.at(target, proposal.points + step_size * (momentum @ factor.T))
        proposed_energy, proposed_gradient = temper(proposal.points, proposal.energies, proposal.gradients)
        momentum = momentum - 0.5 * step_size * (proposed_gradient @ factor)
    log_ratio = energy + kinetic - proposed_energy - 0.5 * momentum.square().sum(1)
    # A chain that stands on an infinite or undefined energy leaves it for any proper point, and none ever goes there.
    log_ratio = torch.where(torch.isfinite(energy + kinetic), log_ratio, 0.0)
    proper = torch.isfinite(proposed_energy + momentum.sum(1))
    log_ratio = torch.where(proper, log_ratio, -torch.inf)
    uniform = torch.rand(log_ratio.shape, generator=generator, dtype=log_ratio.dtype).to(log_ratio.device)
    acceptance = float(log_ratio.clamp(max=0.0).exp().mean())
    return proposal.where(uniform.log() < log_ratio, chains), acceptance


def adapted(step_size: float, acceptance: float, wanted: float, gain: float) -> float:
    """The step size moved towards the wanted acceptance: h exp(gain (acceptance - wanted)), within fixed bounds.

    Args:
        step_size: h.
        acceptance: mean over the chains in the last step.
        wanted: acceptance.
        gain: how fast.
    """
    moved = step_size * math.exp(gain * (acceptance - wanted))
    return min(max(moved, _SMALLEST_STEP), _LARGEST_STEP)


def quarter_turn(step_size: float) -> int:
    """Leapfrog steps of about a quarter of a Gaussian's period, pi / 2, after which it has forgotten its start."""
    return min(max(round(0.5 * math.pi / step_size), 1), _MAX_LEAPFROG)


def covariance_factor(points: Tensor) -> Tensor:
    """Cholesky factor of the points' covariance, shrunk to its diagonal where the points are few.

    Args:
        points: shape (N, D), N >= 2.

    Returns:
        Shape (D, D), lower triangular, in the points' dtype.
    """
    return factor_of(torch.cov(points.detach().cpu().double().T), len(points)).to(points)


def factor_of(covariance: Tensor, num_points: int) -> Tensor:
    """Cholesky factor of a covariance, shrunk to its diagonal by D / (D + N).

    Args:
        covariance: shape (D, D), float64, on the CPU (some devices have no float64, and no kernel pays at this size).
        num_points: N, that it was made of.
    """
    covariance = torch.atleast_2d(covariance)
    dim = len(covariance)
    diagonal = covariance.diagonal()
    diagonal = diagonal.clamp(min=1e-8 * float(diagonal.max()) + 1e-30)
    shrinkage = dim / (dim + num_points)
    shrunk = (1.0 - shrinkage) * covariance
    shrunk.diagonal().copy_(diagonal * (1.0 + 1e-6))
    factor: Tensor = torch.linalg.cholesky(shrunk)
    return factor
