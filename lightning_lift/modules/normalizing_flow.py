"""The flows of nflows as a task, so that the same data, metrics and commands give a comparison."""

import copy

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.flows.inverse import InverseResult
from lightning_lift.flows.nflows_adapter import (
    Flow,
    FlowKind,
    Mixing,
    base_to_data,
    draw_samples,
    make_flow,
    to_noise,
)
from lightning_lift.modules.density import DensityTask
from lightning_lift.modules.frozen import FrozenDistribution
from lightning_lift.networks.base import check_points

_INVERSE_ROWS = 1000  # of the first test batch, whose inverse is checked
_INVERSE_TOLERANCE = 1e-4  # residual relative to 1 + |z|: float32 layers without refinement give about 1e-5


class NormalizingFlow(DensityTask):
    """A baseline of nflows, trained by maximum likelihood: no convex network and no parameterization.

    It logs what ``DensityTask`` does and ``test/inverse_error``: the largest distance between a row and the inverse of
    its image, over the first 1000 test rows. The density lives on the whole space, whatever the support of the data.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
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
        )

    def batch_loss(self, batch: Tensor) -> Tensor:
        """The mean of -log p over the batch, in training units, with dropout and batch statistics in training mode.

        Args:
            batch: shape (N, D).
        """
        return -self._log_prob(batch).mean()

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """Log-density in training units under the weights of evaluation.

        Args:
            x: points in training units, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        with self._evaluation_mode():
            return self._log_prob(x)

    def map(self, x: Tensor) -> Tensor:
        """Rows in original units to base noise, under the weights of evaluation: shape (N, D) to (N, D)."""
        return self._map_scaled(self.to_scaled(x))

    def _map_scaled(self, x: Tensor) -> Tensor:
        with self._evaluation_mode(), self._full_precision():
            return to_noise(self.flow, x)[0]

    def inverse_map(self, y: Tensor) -> InverseResult:
        """Base noise to rows in original units, under the weights of evaluation, without gradient.

        nflows inverts layer by layer and does not refine; ``converged`` says where the image of the result is within
        1e-4 (1 + |y|) of y.

        Args:
            y: noise, shape (N, D).
        """
        result = self._inverse_scaled(y)
        return result._replace(x=self.to_original(result.x))

    def _inverse_scaled(self, y: Tensor) -> InverseResult:
        check_points(y, self.dim)
        with torch.no_grad(), self._evaluation_mode(), self._full_precision():
            x = base_to_data(self.flow, y)
            residual = (to_noise(self.flow, x)[0] - y).norm(dim=1)
        converged = residual <= _INVERSE_TOLERANCE * (1.0 + y.norm(dim=1))
        return InverseResult(x, converged, residual, torch.zeros_like(residual, dtype=torch.long))

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation.

        Args:
            num_samples: how many, n.
            generator: of the noise, on the CPU.

        Returns:
            Shape (n, D).

        Raises:
            RuntimeError: the inverse is not finite at some draws, also in float64.
        """
        with self._evaluation_mode(), self._full_precision():
            return draw_samples(self.flow, num_samples, generator)

    def frozen(self) -> "FrozenNormalizingFlow":
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""
        return FrozenNormalizingFlow(self.flow, self.location, self.scale)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Accumulate the negative log-likelihood of test rows, and check the inverse on the first ones."""
        super().test_step(batch, batch_idx)
        if batch_idx == 0:
            rows = self.own_units(batch)[:_INVERSE_ROWS]
            error = (self._inverse_scaled(self._map_scaled(rows)).x - rows).norm(dim=1).max()
            self.log("test/inverse_error", error, on_step=False, on_epoch=True, sync_dist=True, reduce_fx="max")

    def _log_prob(self, x: Tensor) -> Tensor:
        check_points(x, self.dim)
        with self._full_precision():
            log_prob: Tensor = self.flow.log_prob(x)
        return log_prob

    def _full_precision(self) -> torch.autocast:
        return torch.autocast(device_type=self.device.type, enabled=False)


class FrozenNormalizingFlow(FrozenDistribution):
    """A flow of nflows with constant weights.

    ``torch.export`` takes the affine kinds (``maf``, ``realnvp``); the splines branch on their data.

    Args:
        flow: copied; nothing is shared with the model it came from.
        location: shape (D,); original = location + scale * training.
        scale: shape (D,).
    """

    def __init__(self, flow: Flow, location: Tensor, scale: Tensor) -> None:
        super().__init__(location, scale, next(flow.parameters()))
        self.flow = constant_(copy.deepcopy(flow))
        self.eval()

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """The flow's log-density in training units, shape (N, D) to (N,)."""
        log_prob: Tensor = self.flow.log_prob(x)
        return log_prob

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """The flow's draws in training units, shape (n, D)."""
        return draw_samples(self.flow, num_samples, generator)


def constant_(flow: Flow) -> Flow:
    """The flow itself, its parameters now buffers."""
    for module in flow.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
    return flow
