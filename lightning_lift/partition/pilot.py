"""Start of chains and of annealing: the mode, a pilot run, and the better of the Gaussians that they suggest."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_lift.partition.base import in_double
from lightning_lift.partition.chains import (
    HAMILTONIAN_ACCEPTANCE,
    Ensemble,
    adapted,
    covariance_factor,
    quarter_turn,
    step,
)
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.laplace_approximation import Gaussian, find_mode

_ROUNDS = 4  # each with the covariance of the round before
_STEPS = 10  # Hamiltonian steps of a round; the second half of them tells the covariance
COARSE = 1e-3  # round-off of float32, in nats or in conditional standard deviations, from which float64 is taken
_MARGIN = 0.02  # nats by which another Gaussian must be better than the inverse Hessian, which is exact for quadratics


@dataclass(frozen=True)
class Start:
    """What a pilot run has found.

    Attributes:
        target: the energy, in float64 where float32 could not tell its values or its points apart.
        gaussian: the proposal of least relative entropy to the density.
        is_laplace: whether it is the one with the inverse Hessian.
        factor: Cholesky factor of the chains' covariance, shape (D, D).
        step_size: Hamiltonian step in the coordinates that the factor whitens.
        chains: where the pilot's chains ended.
    """

    target: Target
    gaussian: Gaussian
    is_laplace: bool
    factor: Tensor
    step_size: float
    chains: Ensemble


def find_start(target: Target, guess: Tensor, num_chains: int, generator: torch.Generator) -> Start:
    """Mode, pilot chains from the profile there, and the better of three Gaussians.

    The inverse Hessian at the mode misleads at kinks, beside walls, and where the density is far from a Gaussian; the
    profile along the Hessian's axes is cruder but safe; the mean and the covariance of the pilot's chains are good
    wherever the chains have come about. The one with the least E_q[log q + E], which is its relative entropy to the
    density up to log Z, is taken.

    Args:
        target: the energy.
        guess: a point for the search of the mode, shape (D,).
        num_chains: of the pilot.
        generator: on the CPU.

    Raises:
        ValueError: the energy is not finite at the guess.
    """
    start = _found(target, guess, num_chains, generator)
    epsilon = torch.finfo(guess.dtype).eps
    energies = float(start.chains.energies.abs().max())
    distances = float(start.gaussian.mean.abs().max() / start.gaussian.factor.diagonal().min())
    if max(energies, distances) * epsilon <= COARSE:  # never so in float64, short of 1e12 nats
        return start
    double = Target(in_double(target.potential), target.coordinates, target.chunk_size)
    return _found(double, guess.to(double.like), num_chains, generator)


@torch.no_grad()
def _found(target: Target, guess: Tensor, num_chains: int, generator: torch.Generator) -> Start:
    if not bool(torch.isfinite(target(guess.unsqueeze(0))[0]).all()):
        raise ValueError(
            "the energy is not finite at the middle of the data: the model has diverged; lower the learning rate or "
            "clip gradients."
        )
    mode = find_mode(target, guess)
    chains = Ensemble.at(target, _typical(target, mode.point, mode.profile.draw(num_chains, generator)))
    factor, step_size = mode.profile.factor, 0.5
    visited: list[Tensor] = []
    for _ in range(_ROUNDS):
        visited = []
        for index in range(_STEPS):
            chains, acceptance = step(target, chains, step_size, factor, generator, quarter_turn(step_size))
            step_size = adapted(step_size, acceptance, HAMILTONIAN_ACCEPTANCE, gain=0.8)
            if 2 * index >= _STEPS:
                visited.append(chains.points)
        factor = covariance_factor(torch.cat(visited))
    candidates = [mode.laplace, Gaussian(torch.cat(visited).mean(0), factor), mode.profile]
    state = generator.get_state()
    entropies = []
    for candidate in candidates:
        generator.set_state(state)  # the same normal numbers for all
        entropies.append(torch.inf if candidate is None else _relative_entropy(target, candidate, generator))
    entropies[0] -= _MARGIN
    best = min(range(len(candidates)), key=entropies.__getitem__)
    gaussian = candidates[best]
    assert gaussian is not None
    return Start(target, gaussian, best == 0, factor, step_size, chains)


def _relative_entropy(target: Target, gaussian: Gaussian, generator: torch.Generator) -> float:
    u = gaussian.draw(1024, generator)
    entropy = float((target(u)[0] - gaussian.value_gradient(u)[0]).cpu().double().mean())
    return entropy if entropy == entropy else float("inf")  # NaN orders with nothing


def _typical(target: Target, mode: Tensor, points: Tensor) -> Tensor:
    """Points of untypically high energy moved towards the mode, half way at a time.

    Under a log-concave density in D dimensions the energy above its minimum has a mean and a variance of at most D
    (Fradelizi, Madiman & Wang, 2016). A chain that starts far above that stands on a slope so steep that every proposal
    is thrown out.
    """
    dim = len(mode)
    level = target(mode.unsqueeze(0))[0] + dim + 5.0 * math.sqrt(dim)
    for _ in range(60):
        high = ~(target(points)[0] <= level)
        if not bool(high.any()):
            break
        points = torch.where(high.unsqueeze(1), 0.5 * (points + mode), points)
    return points
