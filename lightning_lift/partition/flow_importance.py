"""log Z by importance sampling from a normalizing flow that is trained together with the energy."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_lift.flows.nflows_adapter import FlowKind
from lightning_lift.partition.base import EstimateMemory, PartitionEstimate, in_double, stored
from lightning_lift.partition.chain_partition import ChainPartition
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.flow_proposal import FlowProposal, FlowSettings
from lightning_lift.partition.importance_weights import log_mean, pareto_shape
from lightning_lift.partition.laplace_approximation import Gaussian
from lightning_lift.partition.pilot import COARSE, find_start
from lightning_lift.potential import Potential

_PILOT_CHAINS = 256
_AVERAGING = 0.05  # of the running figures, a call of forward
_PATIENCE = 100  # calls before the effective sample size is judged
_LEAST_EFFICIENCY = 0.1  # effective sample size over draws
_LARGEST_ERROR = 0.05  # nats
_LARGEST_SHAPE = 0.7  # of the weights' tail (Vehtari et al., JMLR 2024)


class FlowImportance(ChainPartition):
    """A flow q of nflows follows the energy, and log Z ~ log mean exp(-E(x_m)) / q(x_m) over draws x_m of q.

    q is trained by the reverse relative entropy KL(q | p) with the energy frozen: ``warm_up`` steps before the first
    step of the energy, then 1 to ``max_flow_steps`` before each, until its running mean is below
    ``relative_entropy``. It lives in unconstrained coordinates where the support is bounded, starts close to the
    Gaussian that the mode and a pilot run suggest, and is no part of the model's parameters. ``forward`` gives log Z
    itself, with the gradient of the self-normalised estimate.

    log Z by importance sampling is **biased low**, by about half its squared standard error where q covers the density
    and without limit where it does not; that flatters the likelihood. Evaluation refines a copy of q at the weights of
    evaluation (at most ``warm_up`` steps in test, until half of ``relative_entropy``; ``max_flow_steps`` in
    validation), and states: ``log_partition_standard_error`` (nats, delta method), ``effective_sample_size`` (of
    ``evaluation_samples``), ``pareto_shape`` (of the largest weights; above 0.7 neither value nor error mean anything),
    ``flow_relative_entropy`` (KL(q | p), nats) and ``log_partition_trusted`` (1 or 0). An estimate with an effective
    sample size below a tenth of the draws, a shape above 0.7 or a standard error above 0.05 nats is not to be trusted,
    and a warning says so. A q that misses a part of the density altogether cannot be seen from its own draws:
    name ``AnnealedImportanceSampling`` as the model's ``evaluation`` for a bracket. ``sample`` draws by Hamiltonian
    chains.

    In validation it also reports on training: ``flow_efficiency`` (effective sample size over ``num_samples``),
    ``training_relative_entropy`` and ``flow_steps`` (a call), averaged over the last calls.
    With several processes all have the same flow and the same draws.

    Args:
        num_samples: M, draws of one energy step.
        evaluation_samples: draws in validation and test.
        flow: ``maf`` (affine autoregressive layers, any number of columns), ``realnvp``, ``rq_nsf_coupling`` or
            ``rq_nsf_autoregressive``; those with coupling need two columns. All run in their fast direction.
        num_layers: transforms in the chain.
        hidden_features: width of each conditioning network.
        learning_rate: of the flow's own Adam.
        flow_batch_size: draws of one flow step.
        warm_up: flow steps before the first energy step; fewer where the criterion is met.
        max_flow_steps: most flow steps before each energy step.
        relative_entropy: KL(q | p), nats, below which the flow is good enough; at 0.1 about four fifths of the draws
            are effective.
        seed: of its random numbers.

    Raises:
        ValueError: an argument out of range.
    """

    def __init__(
        self,
        num_samples: int = 512,
        evaluation_samples: int = 8192,
        flow: FlowKind = "rq_nsf_autoregressive",
        num_layers: int = 2,
        hidden_features: int = 64,
        learning_rate: float = 3e-3,
        flow_batch_size: int = 256,
        warm_up: int = 1000,
        max_flow_steps: int = 30,
        relative_entropy: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, number, least in (
            ("num_samples", num_samples, 16),
            ("evaluation_samples", evaluation_samples, 256),
            ("flow_batch_size", flow_batch_size, 16),
            ("warm_up", warm_up, 0),
            ("max_flow_steps", max_flow_steps, 1),
        ):
            if number < least:
                raise ValueError(f"{name}={number}: give at least {least}.")
        for name, positive in (("learning_rate", learning_rate), ("relative_entropy", relative_entropy)):
            if not positive > 0.0:
                raise ValueError(f"{name}={positive}: must be positive.")
        self.num_samples = num_samples
        self.evaluation_samples = evaluation_samples
        self.warm_up = warm_up
        self.max_flow_steps = max_flow_steps
        self.relative_entropy = relative_entropy
        self.seed = seed
        self.settings = FlowSettings(flow, num_layers, hidden_features, learning_rate, flow_batch_size)
        self._state: dict[str, Any] | None = None  # all but the proposal, which is kept alive beside it
        self._proposal: FlowProposal | None = None
        self._memory = EstimateMemory()
        self._warned = False

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Set the support; a flow that a checkpoint has brought goes on.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box that holds most of the data, or None.

        Raises:
            ValueError: an empty support, or a flow with coupling on one column.
        """
        super().prepare(support, window)
        if support.shape[1] == 1 and self.settings.kind in ("realnvp", "rq_nsf_coupling"):
            raise ValueError(f"flow {self.settings.kind} couples columns and these data have one: choose maf.")
        self._memory.clear()
        if self._state is not None and not torch.equal(self._state["support"], support.detach().cpu().float()):
            self._state, self._proposal = None, None

    # -- training ---------------------------------------------------------------------------------------------------

    def forward(self, potential: Potential) -> Tensor:
        """Train the flow, then estimate log Z, with gradient in the energy's weights.

        Args:
            potential: the energy under the present weights.

        Returns:
            A scalar; NaN where the energy is not finite.
        """
        target, guess = self.problem(potential)
        self._memory.clear()  # the flow moves, and estimates with it
        with _training(target.like):
            u, log_density = self._followed(target, guess)
        if u is None or log_density is None:
            return torch.full((), math.nan).to(guess) * target.like.sum()  # diverged: there is nothing to follow
        log_weights = _log_weights(target, u, log_density)
        if float(log_weights.detach().abs().max()) * torch.finfo(log_weights.dtype).eps > COARSE:
            target = Target(in_double(potential), target.coordinates)
            log_weights = _log_weights(target, u, log_density)
        finite = torch.isfinite(log_weights.detach())
        if not bool(finite.all()):
            # Left out before the energy is computed: the gradient of an infinite number is NaN even with weight zero.
            log_weights = _log_weights(target, u[finite], log_density[finite])
        self._judge(log_weights.detach())
        value = torch.logsumexp(log_weights, 0) - math.log(self.num_samples)
        return value.to(stored(float(value.detach()), potential).dtype)

    def _followed(self, target: Target, guess: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The flow after some steps, and draws from it; the state is replaced entry by entry, never written into."""
        if not bool(torch.isfinite(target(guess.unsqueeze(0))[0])):
            return None, None
        generator = torch.Generator().manual_seed(self.seed)
        if self._state is None:
            proposal = self._started(target, guess, generator)
            self._state = {"calls": 0, "efficiency": 1.0, "steps": 1.0, "support": target.coordinates.support}
            proposal.follow(target, self.warm_up, self.relative_entropy, generator, "flow warm-up")
        else:
            generator.set_state(self._state["generator"])
            proposal = self._living(target.like)
        steps = proposal.follow(target, self.max_flow_steps, self.relative_entropy, generator)
        with torch.no_grad():
            u, log_density = proposal.draw(self.num_samples, generator)
        state = self._state
        state["steps"] += _AVERAGING * (steps - state["steps"])
        state["relative_entropy"] = proposal.relative_entropy
        state["calls"] += 1
        state["generator"] = generator.get_state()
        self._proposal = proposal
        return u, log_density

    def _started(self, target: Target, guess: Tensor, generator: torch.Generator) -> FlowProposal:
        start = find_start(target, guess, _PILOT_CHAINS, generator)
        gaussian = Gaussian(start.gaussian.mean.to(guess), start.gaussian.factor.to(guess))
        return FlowProposal(self.settings, gaussian, self.seed)

    def _living(self, like: Tensor) -> FlowProposal:
        """The proposal on the device of ``like``: the one at hand, or made anew from the state of a checkpoint."""
        assert self._state is not None
        proposal = self._proposal
        if proposal is None:
            proposal = FlowProposal.restored(self.settings, self._state["proposal"], like)
        elif proposal.mean.device != like.device or proposal.mean.dtype != like.dtype:
            proposal = FlowProposal.restored(self.settings, proposal.state(), like)
        self._proposal = proposal
        return proposal

    def _judge(self, log_weights: Tensor) -> None:
        state = self._state
        assert state is not None
        efficiency = log_mean(log_weights.double())[2] / len(log_weights)
        if math.isfinite(efficiency):
            state["efficiency"] += _AVERAGING * (efficiency - state["efficiency"])
        if self._warned or state["calls"] < _PATIENCE or state["efficiency"] >= _LEAST_EFFICIENCY:
            return
        self._warned = True
        warnings.warn(
            f"FlowImportance: only {100 * state['efficiency']:.1f} % of the flow's draws are effective after "
            f"{state['steps']:.0f} flow steps a call: log Z and its gradient are not to be trusted. The energy changes "
            "too fast for the flow: lower the learning rate, clip gradients, or raise max_flow_steps or num_layers.",
            stacklevel=2,
        )

    # -- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z with a well refined copy of the flow: what test, predict and freeze use."""
        return self._evaluate(potential, careful=True)

    def evaluate_quickly(self, potential: Potential) -> PartitionEstimate:
        """log Z with a shortly refined copy of the flow: what validation uses."""
        return self._evaluate(potential, careful=False)

    def _evaluate(self, potential: Potential, careful: bool) -> PartitionEstimate:
        known = self._memory.recall(careful, potential)
        if known is not None:
            return known
        target, guess = self.problem(potential)
        with _training(target.like):
            return self._memory.keep(careful, potential, self._importance(target, guess, careful))

    def _importance(self, target: Target, guess: Tensor, careful: bool) -> PartitionEstimate:
        if not bool(torch.isfinite(target(guess.unsqueeze(0))[0])):
            return PartitionEstimate(torch.full((), math.nan).to(target.like), {"log_partition_trusted": 0.0})
        generator = torch.Generator().manual_seed(self.seed)
        if self._state is None:
            proposal = self._started(target, guess, generator)
            most = self.warm_up
        else:
            proposal = self._living(target.like).clone()
            most = self.warm_up if careful else self.max_flow_steps
        wanted = 0.5 * self.relative_entropy if careful else self.relative_entropy
        proposal.follow(target, most, wanted, generator, "log Z")
        with torch.no_grad():
            u, log_density = proposal.draw(self.evaluation_samples, generator)
            fine = Target(in_double(target.potential), target.coordinates)
            log_weights = _log_weights(fine, u, log_density).cpu().double()
        log_weights = log_weights.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
        value, error, size = log_mean(log_weights)
        shape = pareto_shape(log_weights)
        trusted = error <= _LARGEST_ERROR and shape <= _LARGEST_SHAPE and size >= _LEAST_EFFICIENCY * len(u)
        figures = {
            "log_partition_standard_error": error,
            "effective_sample_size": size,
            "pareto_shape": shape,
            "flow_relative_entropy": value - float(log_weights.mean()),
            "log_partition_trusted": float(trusted),
        }
        if not trusted:
            _warn(value, figures, len(u))
        return PartitionEstimate(stored(value, target.potential), figures)

    def diagnostics(self) -> dict[str, float]:
        """Efficiency, relative entropy and flow steps of the last calls of ``forward``; empty before the first."""
        state = self._state
        if state is None or state["calls"] == 0:
            return {}
        return {
            "flow_efficiency": float(state["efficiency"]),
            "training_relative_entropy": float(state["relative_entropy"]),
            "flow_steps": float(state["steps"]),
        }

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """The flow, its optimizer, the running figures and the generator, for checkpoints."""
        if self._state is None:
            return {"state": None}
        proposal = self._state.get("proposal") if self._proposal is None else self._proposal.state()
        return {"state": {**self._state, "proposal": proposal}}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` returned."""
        self._state = None if state["state"] is None else dict(state["state"])
        self._proposal = None
        self._memory.clear()


@contextmanager
def _training(like: Tensor) -> Iterator[None]:
    """Grad mode on, inference mode and autocast off: a flow step can be taken in any surroundings."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device_type=like.device.type, enabled=False),
    ):
        yield


def _log_weights(target: Target, u: Tensor, log_density: Tensor) -> Tensor:
    """-E(u) - log q(u) in the target's precision, with gradient in the energy's weights: shape (M,)."""
    u = u.to(target.like)
    energies = target.potential.value(target.coordinates.to_support(u))
    return target.coordinates.jacobian(u)[0].sum(1) - energies - log_density.to(u)


def _warn(value: float, figures: dict[str, float], num_draws: int) -> None:
    warnings.warn(
        f"log Z = {value:.3f} by importance sampling is not to be trusted, and is biased low: of {num_draws} draws "
        f"{figures['effective_sample_size']:.0f} are effective, its standard error is "
        f"{figures['log_partition_standard_error']:.3f} nats and the tail of its weights has the shape "
        f"{figures['pareto_shape']:.2f} (at most {_LARGEST_SHAPE}); raise warm_up, num_layers or evaluation_samples of "
        "FlowImportance, or name AnnealedImportanceSampling as the model's evaluation.",
        stacklevel=2,
    )
