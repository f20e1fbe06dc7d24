"""Conditional convex flows: for each context the gradient of a convex potential as a map from rows to noise."""

from collections.abc import Callable
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.flows.inverse import InverseResult
from lightning_lift.flows.logdet import LogDet, LogDetChoice, StochasticLogDet
from lightning_lift.flows.transform import FlowMap
from lightning_lift.modules.conditional_density import ConditionalDensityTask
from lightning_lift.modules.defaults import ConditionalAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.frozen import FrozenConditionalFlow, draws_at
from lightning_lift.modules.gradient_flow import GradientFlow
from lightning_lift.networks import PICNN, ConvexNetwork
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Parameterization


class ConditionalConvexFlow(GradientFlow, ConditionalDensityTask):
    """Maximum likelihood for f = grad F in x: log p(x | u) = log N(f(x; u); 0, I) + log det Hess F(x; u), nats.

    With one block, PCP-Map (Wang, Baptista, Marzouk, Ruthotto & Verma, Efficient neural network approaches for
    conditional optimal transport with applications in Bayesian inference, 2023); with several, f is the composition of
    such maps. A batch is (x, context): parameters and the data that a simulator made of them, for a posterior.

    It logs what ``GradientFlow`` does. Where the data module states a ``support``, draws outside it are rejected, and
    ``log_prob`` is -inf there; what it is inside does not change.

    Args:
        dim: dimension D of x; linked from the data module on the command line.
        context_shape: shape of one row's context; linked from the data module on the command line.
        network: factory of a block's potential, convex in x, called with ``dim`` and ``context_shape``; twice
            differentiable, strongly convex.
        parameterization: factory of the way in which the weights are kept nonnegative: ``direct_gain``,
            ``direct``, ``pgd``, ``lift``.
        num_blocks: potentials whose gradient maps are composed.
        actnorm: an ActNorm before each block, started from data, so that a block sees rows of mean 0 and variance 1.
        logdet: ``exact`` (Hessian and Cholesky factor), ``stochastic`` (conjugate gradients and Lanczos quadrature), or
            ``auto``: exact up to 256 dimensions; the choice is printed.
        precision: of the map and its log-determinant; ``float64`` is for stiff potentials, the weights stay as they
            are.
        chunk_size: rows at a time in the exact log-determinant; None for what is fastest.
        stochastic_logdet: factory of the stochastic log-determinant.
        inverse_tolerance: relative residual |f(x) - y| / (1 + |y|) at which an inverse counts as found; None for 1e-5
            in float32.
        inverse_rows: test rows that the inverse and the condition number are measured on; 0 for none.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
            None for a constant rate.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: an argument out of range, a network that takes no context, or one whose gradient is not invertible.
    """

    def __init__(
        self,
        dim: int,
        context_shape: tuple[int, ...],
        network: Callable[[int, tuple[int, ...]], ConvexNetwork] = PICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        num_blocks: int = 1,
        actnorm: bool = True,
        logdet: LogDetChoice = "auto",
        precision: Literal["float32", "float64"] = "float32",
        chunk_size: int | None = None,
        stochastic_logdet: Callable[[], LogDet] = StochasticLogDet,
        inverse_tolerance: float | None = None,
        inverse_rows: int = 1000,
        optimizer: OptimizerCallable = ConditionalAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
    ) -> None:
        self.context_shape = tuple(context_shape)  # before the base class, whose constructor builds the networks
        super().__init__(
            dim=dim,
            network=network,
            parameterization=parameterization,
            num_blocks=num_blocks,
            actnorm=actnorm,
            logdet=logdet,
            precision=precision,
            chunk_size=chunk_size,
            stochastic_logdet=stochastic_logdet,
            inverse_tolerance=inverse_tolerance,
            inverse_rows=inverse_rows,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            learning_rate=learning_rate,
        )

    def make_network(self, network: Callable[..., ConvexNetwork]) -> ConvexNetwork:
        """Make the convex potential of one block.

        Args:
            network: the factory given to the constructor.
        """
        made = network(self.dim, self.context_shape)
        if made.context_shape != self.context_shape:
            raise ValueError(
                f"{type(made).__name__} takes a context of shape {made.context_shape}, not {self.context_shape}: give "
                "a partially convex network such as PICNN."
            )
        return made

    def _flow_at(self, context: Tensor) -> FlowMap:
        return self.flow_map().at(context)

    def log_prob_scaled(self, x: Tensor, context: Tensor) -> Tensor:
        """log N(f(x; u); 0, I) + log det Df(x; u) in training units under the weights of evaluation.

        Args:
            x: points, shape (N, D).
            context: one a point, shape (N, ...), or one for all, (1, ...).

        Returns:
            Shape (N,), nats.
        """
        check_points(x, self.dim)
        with self._evaluation_mode():
            return self._score(self._flow_at(context), x)

    def map(self, x: Tensor, context: Tensor) -> Tensor:
        """The noise that rows are mapped to, under the weights of evaluation; differentiable.

        Args:
            x: points in original units, shape (N, D).
            context: in original units, one a point, shape (N, ...), or one for all, (1, ...).

        Returns:
            Shape (N, D): standard normal where the model is right.
        """
        rows, entries = self.to_batch(x, context)[:2]
        assert entries is not None
        with self._evaluation_mode():
            return self._flow_at(entries).map(self._at_precision(rows)).to(rows.dtype)

    @torch.no_grad()
    def inverse_map(self, y: Tensor, context: Tensor) -> InverseResult:
        """The points that ``map`` takes to y, under the weights of evaluation, without gradient.

        Args:
            y: noise, shape (N, D).
            context: in original units, one a row of y, shape (N, ...), or one for all, (1, ...).

        Returns:
            The points in original units; of each a convergence flag and its residual in units of the noise.
        """
        with self._evaluation_mode():
            result = self._flow_at(self._scaled_context(context)).inverse(self._at_precision(y))
        return result._replace(x=self.to_original(result.x.to(y.dtype)), residual=result.residual.to(y.dtype))

    @torch.no_grad()
    def sample_scaled(self, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation: noise through the inverse map.

        Args:
            num_samples: how many at each context, n.
            context: shape (B, ...).
            generator: of the noise, on the CPU.

        Returns:
            Shape (n, B, D).

        Raises:
            RuntimeError: points whose inverse is not found, in float64 either.
        """
        with self._evaluation_mode():
            return draws_at(self._flow_at(context), num_samples, len(context), generator, next(self.parameters()))

    def frozen(self) -> FrozenConditionalFlow:
        """The density under the weights of evaluation, with ``log_prob`` and ``sample`` at contexts, original units."""
        frozen = FrozenConditionalFlow(self.flow_map(), self.location, self.scale, self.logdet)
        frozen.keep_units(self.context_units(), self.support)
        return frozen
