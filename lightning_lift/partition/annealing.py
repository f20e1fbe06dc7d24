"""Annealed importance sampling between a Gaussian and exp(-E), in both directions (Neal, 2001)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_lift.partition.chains import (
    HAMILTONIAN_ACCEPTANCE,
    LANGEVIN_ACCEPTANCE,
    Ensemble,
    Tempering,
    adapted,
    step,
)
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.importance_weights import systematic
from lightning_lift.partition.laplace_approximation import Gaussian
from lightning_lift.partition.pilot import Start

_SCOUT_CHAINS = 256
_SCOUT_SIZE = 0.8  # conditional effective sample size, as a fraction, that a scout's increment leaves
_SCOUT_STEPS = 3
_SCOUT_STAGES = 200


@dataclass(frozen=True)
class Path:
    """exp(-(1 - b) E_q - b E) from the Gaussian q (b = 0) to the density (b = 1).

    Attributes:
        target: E.
        gaussian: q, whose own energy is -log q.
        factor: preconditioner of the transitions, shape (D, D).
        temperatures: b_0 = 0 < ... < b_T = 1, T + 1 numbers.
        step_sizes: of the transitions at each of them, T + 1 numbers.
        num_leapfrog: leapfrog steps of a transition.
    """

    target: Target
    gaussian: Gaussian
    factor: Tensor
    temperatures: Sequence[float]
    step_sizes: Sequence[float]
    num_leapfrog: int

    def tempering(self, b: float) -> Tempering:
        """Energies and gradients at temperature b from those of the target."""
        return _tempering(self.gaussian, b)

    def log_ratios(self, chains: Ensemble) -> Tensor:
        """E - E_q at the chains' points, shape (C,), float64 on the CPU (some devices have no float64)."""
        return _log_ratios(self.gaussian, chains)

    def move(self, chains: Ensemble, index: int, generator: torch.Generator) -> Ensemble:
        """One transition that leaves the density at the temperature of this index alone."""
        return step(
            self.target,
            chains,
            self.step_sizes[index],
            self.factor,
            generator,
            self.num_leapfrog,
            self.tempering(self.temperatures[index]),
        )[0]


def plan(target: Target, start: Start, num_temperatures: int, num_leapfrog: int, generator: torch.Generator) -> Path:
    """Temperatures at equal distances in what a scout finds hard, with step sizes for each.

    A small ensemble goes from b = 0 to 1 by increments that each leave the same conditional effective sample size,
    resampled and moved in between. Its increments say how fast b may grow, and the temperatures are put at equal parts
    of one increment. The scout adapts, and so would bias log Z; the run that follows its plan is another one.

    Args:
        target: the energy.
        start: of the chains.
        num_temperatures: T, increments of the path.
        num_leapfrog: leapfrog steps of a transition.
        generator: on the CPU.
    """
    wanted = LANGEVIN_ACCEPTANCE if num_leapfrog == 1 else HAMILTONIAN_ACCEPTANCE
    chains = Ensemble.at(target, start.gaussian.draw(_SCOUT_CHAINS, generator))
    b, step_size = 0.0, start.step_size
    knots, step_sizes = [0.0], [step_size]
    while b < 1.0 and len(knots) < _SCOUT_STAGES:
        ratios = _log_ratios(start.gaussian, chains)
        increment = _increment(ratios, 1.0 - b)
        chains = chains[systematic(-increment * ratios, len(ratios), generator)]
        b = 1.0 if increment >= 1.0 - b else b + increment
        for index in range(_SCOUT_STEPS if len(knots) > 1 else 4 * _SCOUT_STEPS):
            chains, acceptance = step(
                target, chains, step_size, start.factor, generator, num_leapfrog, _tempering(start.gaussian, b)
            )
            step_size = adapted(step_size, acceptance, wanted, gain=1.0 / math.sqrt(1.0 + index))
        knots.append(b)
        step_sizes.append(step_size)
    if b < 1.0:  # hopeless: the estimate's own figures will say so
        knots.append(1.0)
        step_sizes.append(step_size)
    step_sizes[0] = step_sizes[1]
    stages = np.linspace(0.0, len(knots) - 1.0, num_temperatures + 1)
    temperatures = np.interp(stages, np.arange(len(knots)), knots)
    sizes = np.exp(np.interp(stages, np.arange(len(knots)), np.log(step_sizes)))
    temperatures[-1] = 1.0
    return Path(target, start.gaussian, start.factor, temperatures.tolist(), sizes.tolist(), num_leapfrog)


def forwards(path: Path, num_chains: int, generator: torch.Generator, stages: Iterable[int]) -> tuple[Tensor, Ensemble]:
    """From the Gaussian to the density: E[exp(log w)] = Z, so log mean w is a lower bound of log Z in expectation.

    Args:
        path: with T increments.
        num_chains: C.
        generator: on the CPU.
        stages: 1, ..., T (a progress bar around it).

    Returns:
        log w, shape (C,), float64 on the CPU, and where the chains ended.
    """
    chains = Ensemble.at(path.target, path.gaussian.draw(num_chains, generator))
    log_weights = torch.zeros(num_chains, dtype=torch.float64)
    for index in stages:
        log_weights -= (path.temperatures[index] - path.temperatures[index - 1]) * path.log_ratios(chains)
        chains = path.move(chains, index, generator)
    return log_weights.nan_to_num(nan=-torch.inf), chains


def backwards(path: Path, chains: Ensemble, generator: torch.Generator, stages: Iterable[int]) -> Tensor:
    """From draws of the density to the Gaussian: E[exp(log v)] = 1 / Z, so -log mean v is an upper bound of log Z.

    Only as far as the chains start from the density itself.

    Args:
        path: with T increments.
        chains: draws from the density.
        generator: on the CPU.
        stages: T, ..., 1.

    Returns:
        log v, shape (C,), float64 on the CPU.
    """
    log_weights = torch.zeros(len(chains.points), dtype=torch.float64)
    for index in stages:
        chains = path.move(chains, index, generator)
        log_weights += (path.temperatures[index] - path.temperatures[index - 1]) * path.log_ratios(chains)
    return log_weights.nan_to_num(nan=-torch.inf)


def _tempering(gaussian: Gaussian, b: float) -> Tempering:
    def temper(points: Tensor, energies: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        base_energies, base_gradients = gaussian.value_gradient(points)
        return (1.0 - b) * base_energies + b * energies, (1.0 - b) * base_gradients + b * gradients

    return temper


def _log_ratios(gaussian: Gaussian, chains: Ensemble) -> Tensor:
    difference: Tensor = (chains.energies - gaussian.value_gradient(chains.points)[0]).cpu().double()
    return difference.nan_to_num(nan=torch.inf)


def _increment(ratios: Tensor, largest: float) -> float:
    """The largest step in b that leaves the wanted conditional effective sample size, by bisection."""

    def size(increment: float) -> float:
        weights = (-increment * (ratios - ratios.min())).exp()
        return float(weights.mean().square() / weights.square().mean())

    if size(largest) >= _SCOUT_SIZE:
        return largest
    low, high = 0.0, largest
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if size(middle) >= _SCOUT_SIZE else (low, middle)
    return max(low, 1e-6 * largest)
