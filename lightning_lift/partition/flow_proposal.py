"""A flow of nflows that draws about where an energy is low, with the density of its draws."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

# Sideways in the import order: flows and partition both stand on potential, and nflows is touched in one file only.
from lightning_lift.flows.nflows_adapter import FlowKind, make_flow, to_noise
from lightning_lift.partition.chains import covariance_factor
from lightning_lift.partition.coordinates import Target
from lightning_lift.partition.laplace_approximation import Gaussian

_AFFINE_RATE = 10.0  # times the flow's learning rate: the energy's spread moves further than its shape
_CLIP = 10.0  # norm of the gradient of one step
_AVERAGING = 0.2  # of the relative entropy, a step
_BAR_DELAY = 5.0  # seconds after which a progress bar appears
_BINS = 5  # of each spline: 8 gain little, and their softmax is most of the cost of a draw
_SMALL = 0.1  # times nflows' start of the last layer of each conditioning network
_START_DRAWS = 4096
_LOGISTIC_SCALE = math.sqrt(3.0) / math.pi  # unit variance


@dataclass(frozen=True)
class FlowSettings:
    """What a proposal is built from.

    Attributes:
        kind: of ``make_flow``.
        num_layers: transforms in the chain.
        hidden_features: width of each conditioning network.
        learning_rate: of Adam.
        batch_size: draws of one step.
    """

    kind: FlowKind
    num_layers: int
    hidden_features: int
    learning_rate: float
    batch_size: int


class FlowProposal:
    """The density of u = m + L (A T(z) + b) with z independent standardised logistics and T a flow of nflows.

    m and L are a Gaussian's, fixed; A (lower triangular), b and T are trained. T runs in the direction that nflows
    takes for training: an autoregressive flow then draws in one pass (Kingma et al., 2016, inverse autoregressive
    flows), and no spline has to be inverted; the density is only ever wanted at its own draws. The base has exponential
    tails because those of a log-concave density are at most that heavy, and a proposal of lighter tails has weights of
    infinite variance.

    It is no ``nn.Module``: its parameters must not reach the model's optimizer.

    Attributes:
        relative_entropy: running mean of KL(q | p) over the steps, nats; NaN before the first.

    Args:
        settings: of the flow.
        start: Gaussian from which T starts close to.
        seed: of the flow's start.
    """

    def __init__(self, settings: FlowSettings, start: Gaussian, seed: int) -> None:
        self.settings = settings
        self.mean, self.factor = start.mean.detach().clone(), start.factor.detach().clone()
        dim, like = len(self.mean), self.mean
        with torch.random.fork_rng(devices=[]):  # nflows draws its start from the global generator
            torch.manual_seed(seed)
            flow = make_flow(settings.kind, dim, settings.num_layers, settings.hidden_features, num_bins=_BINS)
        self.flow = flow.to(like)
        self.shift = torch.zeros_like(like).requires_grad_()
        self.log_diagonal = torch.zeros_like(like).requires_grad_()
        self.below = like.new_zeros(dim, dim).requires_grad_()
        self.relative_entropy = math.nan
        self._start_close(seed)
        groups: list[dict[str, Any]] = [
            {"params": list(self.flow.parameters()), "lr": settings.learning_rate},
            {"params": self._affine, "lr": _AFFINE_RATE * settings.learning_rate},
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))

    @torch.no_grad()
    def _start_close(self, seed: int) -> None:
        """Start T close to an affine map, and A and b such that the whole has the Gaussian's mean and covariance."""
        for part in self.flow.modules():
            last = getattr(part, "final_layer", None)  # of a conditioning network
            if isinstance(last, torch.nn.Linear):
                last.weight.mul_(_SMALL)
                last.bias.mul_(_SMALL)
                if self.settings.kind.startswith("rq_nsf"):
                    # Of each column's parameters the last are slopes behind a softplus: 1, as in the linear tails.
                    last.bias.view(-1, 3 * _BINS - 1)[:, 2 * _BINS :] += math.log(math.expm1(1.0))
        v = self._transformed(_START_DRAWS, torch.Generator().manual_seed(seed))[0].double().cpu()
        lower = torch.linalg.inv(covariance_factor(v))  # lower triangular, as the factor is
        self.log_diagonal.copy_(lower.diagonal().log())
        self.below.copy_(lower.tril(-1))
        self.shift.copy_(-(v.mean(0) @ lower.T))

    @property
    def _affine(self) -> list[Tensor]:
        return [self.shift, self.log_diagonal, self.below]

    def draw(self, num_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws and their log-density, differentiable in the flow's parameters.

        Args:
            num_draws: n.
            generator: on the CPU.

        Returns:
            Shapes (n, D) and (n,).
        """
        v, log_density = self._transformed(num_draws, generator)
        lower = self.below.tril(-1) + torch.diag(self.log_diagonal.exp())
        u = self.mean + (v @ lower.T + self.shift) @ self.factor.T
        return u, log_density - self.log_diagonal.sum() - self.factor.diagonal().log().sum()

    def _transformed(self, num_draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """T(z) and its log-density."""
        dim, like = len(self.mean), self.mean
        # Strictly inside (0, 1), so that the logit is finite.
        uniform = torch.rand((num_draws, dim), generator=generator, dtype=torch.float64).clamp(1e-12, 1.0 - 1e-12)
        logits = torch.logit(uniform).to(like)
        noise = _LOGISTIC_SCALE * logits
        log_density = (F.logsigmoid(logits) + F.logsigmoid(-logits)).sum(1) - dim * math.log(_LOGISTIC_SCALE)
        v, logdet = to_noise(self.flow, noise)
        return v, log_density - logdet

    def follow(self, target: Target, most: int, wanted: float, generator: torch.Generator, name: str = "") -> int:
        """Steps until the running mean of their relative entropies is below what is wanted.

        One batch's own is noisy and biased low: a lucky batch must not end the training.

        Args:
            target: the energy.
            most: steps.
            wanted: relative entropy, nats.
            generator: on the CPU.
            name: of a progress bar, which appears after some seconds on rank 0's screen; empty for none.

        Returns:
            How many steps were taken, at least one where ``most`` allows it.
        """
        step = 0
        silent = True if not name or (dist.is_initialized() and dist.get_rank()) else None
        with tqdm(total=most, desc=name, delay=_BAR_DELAY, leave=False, disable=silent) as bar:
            while step < most:
                entropy = self.step(target, generator)
                step += 1
                bar.update()
                if math.isfinite(entropy):
                    past = self.relative_entropy
                    self.relative_entropy = entropy if math.isnan(past) else past + _AVERAGING * (entropy - past)
                if self.relative_entropy < wanted:
                    break
        return step

    def step(self, target: Target, generator: torch.Generator) -> float:
        """One step of Adam on the relative entropy E_q[log q + E] + log Z, the energy frozen.

        Args:
            target: the energy.
            generator: on the CPU.

        Returns:
            The relative entropy before the step, nats, with log Z estimated from the same draws; not finite where the
            energy or the flow is not (the step is then left out).
        """
        u, log_density = self.draw(self.settings.batch_size, generator)
        energies, slopes = target(u.detach())
        loss = (log_density + (slopes * u).sum(1)).mean()  # the gradient of E through u, by the chain rule
        parameters = [*self.flow.parameters(), *self._affine]
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        log_weights = -energies.cpu().double() - log_density.detach().cpu().double()
        entropy = float(torch.logsumexp(log_weights, 0) - math.log(len(u)) - log_weights.mean())
        if math.isfinite(entropy) and bool(torch.isfinite(norm)):
            self.optimizer.step()
            return entropy
        return math.nan

    def clone(self) -> "FlowProposal":
        """A copy that can be trained on its own."""
        return copy.deepcopy(self)

    def state(self) -> dict[str, Any]:
        """Tensors and numbers from which ``restored`` makes this proposal again."""
        return copy.deepcopy(
            {
                "mean": self.mean,
                "factor": self.factor,
                "flow": dict(self.flow.state_dict()),
                "affine": [tensor.detach() for tensor in self._affine],
                "optimizer": self.optimizer.state_dict(),
                "relative_entropy": self.relative_entropy,
            }
        )

    @classmethod
    def restored(cls, settings: FlowSettings, state: dict[str, Any], like: Tensor) -> "FlowProposal":
        """The proposal of a state, in the dtype and on the device of ``like``.

        Args:
            settings: those that it was built from.
            state: what ``state()`` gave.
            like: any tensor.
        """
        made = cls(settings, Gaussian(state["mean"].to(like), state["factor"].to(like)), seed=0)
        made.flow.load_state_dict(state["flow"])
        with torch.no_grad():
            for own, stored in zip(made._affine, state["affine"], strict=True):
                own.copy_(stored)
        made.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        made.relative_entropy = state["relative_entropy"]
        return made
