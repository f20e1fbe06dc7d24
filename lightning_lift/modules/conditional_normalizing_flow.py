"""The flows of nflows at a context, the baseline of conditional convex flows under the same commands."""

import copy
import math

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.datamodules.batches import Batch
from lightning_lift.flows.nflows_adapter import Flow, FlowKind, Mixing, draw_samples, make_flow
from lightning_lift.modules.conditional_density import ConditionalDensityTask
from lightning_lift.modules.frozen import FrozenConditional
from lightning_lift.modules.normalizing_flow import constant_
from lightning_lift.networks.base import check_points


class ConditionalNormalizingFlow(ConditionalDensityTask):
    """A baseline of nflows at a context, trained by maximum likelihood: by default rational-quadratic splines.

    It logs what ``ConditionalDensityTask`` does. The context is flattened and goes into every conditioning network.

    Args:
        dim: dimension D of x; linked from the data module on the command line.
        context_shape: shape of one row's context; linked from the data module on the command line.
        flow: ``maf`` (Papamakarios et al., NeurIPS 2017), ``realnvp`` (Dinh et al., ICLR 2017), ``rq_nsf_coupling`` or
            ``rq_nsf_autoregressive`` (rational-quadratic splines, Durkan et al., NeurIPS 2019). Those with coupling
            need two columns.
        num_layers: transforms in the chain.
        hidden_features: width of each conditioning network.
        num_blocks: hidden layers of MADE in ``maf``, residual blocks elsewhere.
        num_bins: of each spline.
        tail_bound: the splines act on [-tail_bound, tail_bound], in training units; outside they are the identity.
        dropout: probability, in the conditioning networks.
        batch_norm: whether each transform is followed by batch normalisation, as in the papers of MAF and RealNVP.
        mixing: what goes before each transform: ``none``, ``reverse`` or ``random`` permutation, ``lu`` (a random
            permutation and a linear layer); ``paper`` is ``reverse`` for MAF, ``none`` for RealNVP, ``lu`` for splines.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: an argument out of range, or coupling on one column.
        TypeError: a factory that is not one, or that a checkpoint could not store.
    """

    meaning = ("flow", "num_layers", "num_blocks", "num_bins", "tail_bound", "batch_norm", "mixing")

    def __init__(
        self,
        dim: int,
        context_shape: tuple[int, ...],
        flow: FlowKind = "rq_nsf_coupling",
        num_layers: int = 5,
        hidden_features: int = 64,
        num_blocks: int = 2,
        num_bins: int = 8,
        tail_bound: float = 3.0,
        dropout: float = 0.0,
        batch_norm: bool = False,
        mixing: Mixing = "paper",
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(dim, optimizer, lr_scheduler, learning_rate)
        self.context_shape = tuple(context_shape)
        self.flow = make_flow(
            flow,
            dim,
            num_layers=num_layers,
            hidden_features=hidden_features,
            num_blocks=num_blocks,
            num_bins=num_bins,
            tail_bound=tail_bound,
            dropout=dropout,
            batch_norm=batch_norm,
            mixing=mixing,
            context_features=math.prod(self.context_shape),
        )

    def batch_loss(self, batch: Batch) -> Tensor:
        """The mean of -log p over the batch, in training units, with dropout and batch statistics in training mode.

        Args:
            batch: in training units.
        """
        rows = self.as_batch(batch)
        return -_log_prob(self.flow, rows.x, rows.context).mean()

    def log_prob_scaled(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density in training units under the weights of evaluation.

        Args:
            x: points, shape (N, D).
            context: one a point, shape (N, ...), or one for all, (1, ...).

        Returns:
            Shape (N,), nats.
        """
        with self._evaluation_mode():
            return _log_prob(self.flow, x, context)

    def sample_scaled(self, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation: shape (n, B, D).

        Args:
            num_samples: how many at each context, n.
            context: shape (B, ...).
            generator: of the noise, on the CPU.

        Raises:
            RuntimeError: the inverse is not finite at some draws, also in float64.
        """
        with torch.no_grad(), self._evaluation_mode():
            return _draws(self.flow, num_samples, context, generator)

    def frozen(self) -> "FrozenConditionalNormalizingFlow":
        """The density under the weights of evaluation, with ``log_prob`` and ``sample`` at contexts, original units."""
        frozen = FrozenConditionalNormalizingFlow(self.flow, self.location, self.scale)
        frozen.keep_units(self.context_units(), self.support)
        return frozen


class FrozenConditionalNormalizingFlow(FrozenConditional):
    """A conditional flow of nflows with constant weights.

    Args:
        flow: copied; nothing is shared with the model it came from.
        location: of x, shape (D,); original = location + scale * training.
        scale: of x, shape (D,).
    """

    def __init__(self, flow: Flow, location: Tensor, scale: Tensor) -> None:
        super().__init__(location, scale, next(flow.parameters()))
        self.flow = constant_(copy.deepcopy(flow))
        self.eval()

    def log_prob_scaled(self, x: Tensor, context: Tensor) -> Tensor:
        """The flow's log-density in training units, shape (N, D) to (N,), at contexts (N, ...) or (1, ...)."""
        return _log_prob(self.flow, x, context)

    def sample_scaled(self, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
        """The flow's draws in training units, at contexts (B, ...): shape (n, B, D)."""
        return _draws(self.flow, num_samples, context, generator)


def _log_prob(flow: Flow, x: Tensor, context: Tensor) -> Tensor:
    check_points(x, flow._distribution._shape[0])
    with torch.autocast(device_type=x.device.type, enabled=False):
        log_prob: Tensor = flow.log_prob(x, context.flatten(1).to(x).expand(len(x), -1))
    return log_prob


def _draws(flow: Flow, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
    entries = context.flatten(1).repeat(num_samples, 1)
    with torch.autocast(device_type=context.device.type, enabled=False):
        return draw_samples(flow, len(entries), generator, entries).view(num_samples, len(context), -1)
