"""Draws from exp(-E) by many Hamiltonian chains, with what their history says of them."""

import math
import warnings

import torch
from torch import Tensor

from lightning_lift.diagnostics.mcmc import effective_sample_size, split_r_hat
from lightning_lift.partition.chains import Ensemble, adapted, quarter_turn, step
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.pilot import find_start

_FEWEST_CHAINS, _MOST_CHAINS = 128, 2048
_SETTLING = 20  # steps at the pilot's covariance before the history begins
_SPACING = 3  # steps between two states of the history, and between two draws of one chain
_HISTORY = 40  # states of the history that is judged
_ACCEPTANCE = 0.85  # above the best for one gradient's worth: a chain that stays put looks like one that has not mixed
_LARGEST_R_HAT = 1.05


@torch.no_grad()
def draw(
    target: Target, guess: Tensor, num_samples: int, generator: torch.Generator
) -> tuple[Tensor, dict[str, float]]:
    """Draws from chains that start where a pilot run has ended.

    Up to 2048 draws come from as many chains, one each; more come from the same chains, some steps apart.

    Args:
        target: the energy in unconstrained coordinates.
        guess: for the search of the mode, shape (D,).
        num_samples: how many, n.
        generator: of all random numbers, on the CPU.

    Returns:
        Points of the support, shape (n, D), in order of their chains' steps, and ``r_hat`` (the largest over columns
        and the energy), ``effective_sample_size`` (the least, of the chains' judged history), ``history_size`` (states
        in that history) and ``acceptance``.

    Raises:
        ValueError: ``num_samples`` below 1, or an energy that is not finite.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples}: ask for at least one draw.")
    num_chains = min(max(num_samples, _FEWEST_CHAINS), _MOST_CHAINS)
    start = find_start(target, guess, num_chains, generator)
    like, target = guess, start.target
    chains, step_size = start.chains, start.step_size
    for _ in range(_SETTLING):
        chains, acceptance = _moved(target, chains, step_size, start.factor, generator)
        step_size = adapted(step_size, acceptance, _ACCEPTANCE, gain=0.3)
    history: list[Tensor] = []
    draws: list[Tensor] = []
    acceptances: list[float] = []
    rounds = math.ceil(num_samples / num_chains)
    for index in range(_SPACING * max(_HISTORY, rounds)):
        chains, acceptance = _moved(target, chains, step_size, start.factor, generator)
        acceptances.append(acceptance)
        if index % _SPACING == _SPACING - 1:
            if len(history) < _HISTORY:
                history.append(torch.cat([chains.points, chains.energies.unsqueeze(1)], 1))
            draws = [*draws, chains.points][-rounds:]  # the last states: the longer a chain has run, the better
    states = torch.stack(history)
    figures = {
        "r_hat": float(split_r_hat(states).max()),
        "effective_sample_size": float(effective_sample_size(states).min()),
        "history_size": float(states.shape[0] * states.shape[1]),
        "acceptance": sum(acceptances) / len(acceptances),
    }
    if not figures["r_hat"] <= _LARGEST_R_HAT:
        warnings.warn(
            f"the chains have not mixed: R-hat is {figures['r_hat']:.3f} (above {_LARGEST_R_HAT}) at an acceptance of "
            f"{figures['acceptance']:.2f}; the draws are not to be trusted.",
            stacklevel=2,
        )
    return target.coordinates.to_support(torch.cat(draws)[:num_samples]).to(like), figures


def _moved(
    target: Target, chains: Ensemble, step_size: float, factor: Tensor, generator: torch.Generator
) -> tuple[Ensemble, float]:
    # The length varies from step to step: a Gaussian's chains of one fixed length could go round in circles.
    jitter = 0.8 + 0.4 * float(torch.rand((), generator=generator))
    return step(target, chains, jitter * step_size, factor, generator, quarter_turn(step_size))
