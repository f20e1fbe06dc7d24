"""The gradient of log Z by persistent chains of Metropolis-adjusted Langevin steps, in any number of dimensions."""

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_lift.diagnostics.mcmc import effective_sample_size, split_r_hat
from lightning_lift.partition.annealed import AnnealedImportanceSampling
from lightning_lift.partition.base import PartitionEstimate
from lightning_lift.partition.chain_partition import ChainPartition
from lightning_lift.partition.chains import LANGEVIN_ACCEPTANCE, Ensemble, adapted, factor_of, step
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.pilot import find_start
from lightning_lift.potential import Potential

_STEP_GAIN = 0.05
_AVERAGING = 0.05  # of the running covariance and acceptance, a call of forward
_REFACTOR = 10  # calls between two Cholesky factors of the running covariance
_PATIENCE = 100  # calls before the acceptance is judged
_ACCEPTABLE = (0.2, 0.9)
_HISTORY = 24  # calls whose last states are kept
_LARGEST_R_HAT = 1.5  # over so few calls of a target that moves; 1.02 to 1.1 is usual


class Langevin(ChainPartition):
    """Persistent Langevin chains: each training step moves them a little and takes their mean energy.

    The chains start where a pilot run around the mode has ended, follow the energy as it is trained, and live in
    unconstrained coordinates where the support is bounded. Their steps are preconditioned by the chains' own running
    covariance, and the step size follows the acceptance. ``forward`` gives -mean E(chains), whose gradient in the
    weights is an estimate of that of log Z. Its value is NOT log Z: with it the training loss is the difference of
    mean energies between data and chains, which says how far the model is from the data's moments (zero when they
    agree), and is no likelihood. ``evaluate`` and ``sample`` are those of ``AnnealedImportanceSampling`` with its
    defaults; for other settings name it as the model's ``evaluation``.

    In validation it reports ``chain_acceptance``, ``chain_step_size``, and over the last calls of ``forward``
    ``chain_r_hat`` (the largest over columns and the energy; the target's own drift raises it too) and
    ``chain_effective_sample_size`` (the least). Chains with an acceptance outside [0.2, 0.9] or an R-hat above 1.5 are
    not to be trusted, and are warned of once. With several processes each has chains of its own; a checkpoint keeps
    those of the first.

    Args:
        num_chains: C; their mean energy is as noisy as that of a batch of as many rows.
        num_steps: Langevin steps at each call.
        seed: of the chains' random numbers.

    Raises:
        ValueError: a number below its least.
    """

    def __init__(self, num_chains: int = 256, num_steps: int = 5, seed: int = 0) -> None:
        super().__init__()
        for name, number, least in (("num_chains", num_chains, 16), ("num_steps", num_steps, 1)):
            if number < least:
                raise ValueError(f"{name}={number}: give at least {least}.")
        self.num_chains = num_chains
        self.num_steps = num_steps
        self.seed = seed
        self._evaluator = (AnnealedImportanceSampling(),)  # in a tuple: it has no state to keep in a checkpoint
        self._state: dict[str, Any] | None = None
        self._warned = False

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Set the support; chains that a checkpoint has brought go on from where they are.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box that holds most of the data, or None.

        Raises:
            ValueError: an empty support.
        """
        super().prepare(support, window)
        self._evaluator[0].prepare(support, window)
        if self._state is not None and not torch.equal(self._state["support"], support.detach().cpu().float()):
            self._state = None

    def forward(self, potential: Potential) -> Tensor:
        """Move the chains and return -mean E over them, with gradient in the weights.

        Args:
            potential: the energy under the present weights.
        """
        target, guess = self.problem(potential)
        if self._state is None:
            if not bool(torch.isfinite(target(guess.unsqueeze(0))[0])):
                return torch.full((), math.nan).to(guess) * target.like.sum()  # diverged: there is nothing to follow
            self._state = self._started(target, guess)
        state = self._state
        points = self._moved(target, state)
        self._judge(state)
        return -potential.value(target.coordinates.to_support(points)).mean()

    @torch.no_grad()
    def _started(self, target: Target, guess: Tensor) -> dict[str, Any]:
        rank = dist.get_rank() if dist.is_initialized() else 0
        generator = torch.Generator().manual_seed(_seed_of(self.seed, rank, 0))
        start = find_start(target, guess, self.num_chains, generator)
        return {
            "points": start.chains.points,
            "covariance": torch.atleast_2d(torch.cov(start.chains.points.cpu().double().T)),
            "factor": start.factor,
            "step_size": start.step_size,
            "acceptance": LANGEVIN_ACCEPTANCE,
            "calls": 0,
            "history": [],  # (C, D + 1) each: points and energies
            "generator": generator.get_state(),
            "rank": rank,
            "support": target.coordinates.support,
        }

    @torch.no_grad()
    def _moved(self, target: Target, state: dict[str, Any]) -> Tensor:
        """The chains after some steps; the state is replaced entry by entry, never written into."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        generator = torch.Generator()
        if state["rank"] == rank:
            generator.set_state(state["generator"])
        else:  # the first process's chains, from a checkpoint: other random numbers from here on
            generator.manual_seed(_seed_of(self.seed, rank, state["calls"]))
            state["rank"] = rank
        like = target.like
        factor = state["factor"].to(like)
        chains = Ensemble.at(target, state["points"].to(like))
        step_size, acceptance = state["step_size"], 0.0
        for _ in range(self.num_steps):
            chains, accepted = step(target, chains, step_size, factor, generator)
            step_size = adapted(step_size, accepted, LANGEVIN_ACCEPTANCE, _STEP_GAIN)
            acceptance += accepted / self.num_steps
        state["points"], state["step_size"] = chains.points, step_size
        state["acceptance"] += _AVERAGING * (acceptance - state["acceptance"])
        seen = torch.cat([chains.points, chains.energies.unsqueeze(1)], 1)
        state["history"] = [*state["history"][1 - _HISTORY :], seen]
        state["calls"] += 1
        self._follow_covariance(state, chains.points)
        state["generator"] = generator.get_state()
        return chains.points

    @staticmethod
    def _follow_covariance(state: dict[str, Any], points: Tensor) -> None:
        points = points.cpu().double()
        centred = points - points.mean(0)  # their own mean: a running one lags behind a density that moves
        if not bool(torch.isfinite(centred).all()):
            return
        state["covariance"] = torch.lerp(state["covariance"], centred.T @ centred / len(points), _AVERAGING)
        if state["calls"] % _REFACTOR == 0:
            state["factor"] = factor_of(state["covariance"], round(len(points) / _AVERAGING)).to(state["factor"])

    def _judge(self, state: dict[str, Any]) -> None:
        low, high = _ACCEPTABLE
        if state["calls"] >= _PATIENCE and not low <= state["acceptance"] <= high:
            self._warn(
                f"Langevin accepts {state['acceptance']:.2f} of its steps (wanted {LANGEVIN_ACCEPTANCE}) at a step "
                f"size of {state['step_size']:.2g}"
            )

    def _warn(self, finding: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{finding}: its gradient of log Z is not to be trusted. The energy changes too fast for the chains, "
                "or has diverged: lower the learning rate, clip gradients, or raise num_steps.",
                stacklevel=3,
            )

    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z by ``AnnealedImportanceSampling`` with its defaults."""
        return self._evaluator[0].evaluate(potential)

    def evaluate_quickly(self, potential: Potential) -> PartitionEstimate:
        """log Z by ``AnnealedImportanceSampling``, with the fewer temperatures of validation."""
        return self._evaluator[0].evaluate_quickly(potential)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Acceptance, step size, R-hat and effective sample size of the training chains; empty before they exist."""
        state = self._state
        if state is None or state["calls"] == 0:
            return {}
        figures = {"chain_acceptance": float(state["acceptance"]), "chain_step_size": float(state["step_size"])}
        if len(state["history"]) == _HISTORY:
            history = torch.stack([seen.cpu() for seen in state["history"]])
            figures["chain_r_hat"] = float(split_r_hat(history).max())
            figures["chain_effective_sample_size"] = float(effective_sample_size(history).min())
            if not figures["chain_r_hat"] <= _LARGEST_R_HAT:
                self._warn(
                    f"Langevin's chains have not mixed over the last {_HISTORY} steps of training: R-hat is "
                    f"{figures['chain_r_hat']:.2f} (above {_LARGEST_R_HAT})"
                )
        return figures

    def get_extra_state(self) -> dict[str, Any]:
        """Chains, preconditioner, step size, history and generator, for checkpoints."""
        return {"state": None if self._state is None else dict(self._state)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` returned."""
        self._state = None if state["state"] is None else dict(state["state"])


def _seed_of(seed: int, rank: int, calls: int) -> int:
    return (seed * 1_000_003 + rank * 7_919 + calls) % 2**63
