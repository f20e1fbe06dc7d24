"""Convex potential flows: the gradient of a convex potential as an invertible map from data to noise."""

from collections.abc import Callable
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.flows.inverse import ConvexConjugate, InverseResult, convex_conjugate
from lightning_lift.flows.logdet import LogDet, LogDetChoice, StochasticLogDet
from lightning_lift.flows.transform import all_points
from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.frozen import FrozenFlow
from lightning_lift.modules.gradient_flow import GradientFlow
from lightning_lift.networks import ConvexNetwork, FlowICNN
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Parameterization


class ConvexPotentialFlow(GradientFlow, DensityModule):
    """Maximum likelihood for f = grad F: log p(x) = log N(f(x); 0, I) + log det Hess F(x), nats.

    With several blocks f is the composition of such maps (Huang et al., Convex potential flows, ICLR 2021). One
    parameterization holds the nonnegative weights of all blocks, and a lift conditions on the data batch for each.

    It logs what ``DensityTask`` and ``GradientFlow`` do.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of a block's convex potential F, called with ``dim``; twice differentiable, strongly convex.
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
        ValueError: an argument out of range, or a network whose gradient is not invertible.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = FlowICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        num_blocks: int = 1,
        actnorm: bool = True,
        logdet: LogDetChoice = "auto",
        precision: Literal["float32", "float64"] = "float32",
        chunk_size: int | None = None,
        stochastic_logdet: Callable[[], LogDet] = StochasticLogDet,
        inverse_tolerance: float | None = None,
        inverse_rows: int = 1000,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
    ) -> None:
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

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """log N(f(x); 0, I) + log det Df(x) in training units under the weights of evaluation.

        Args:
            x: points in training units, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        check_points(x, self.dim)
        with self._evaluation_mode():
            return self._score(self.flow_map(), x)

    def map(self, x: Tensor) -> Tensor:
        """The noise that rows are mapped to, under the weights of evaluation; differentiable.

        Args:
            x: points in original units, shape (N, D).

        Returns:
            Shape (N, D): standard normal where the model is right.
        """
        return self._map_scaled(self.to_scaled(x))

    def inverse_map(self, y: Tensor) -> InverseResult:
        """The points that ``map`` takes to y, under the weights of evaluation, without gradient.

        Args:
            y: noise, shape (N, D).

        Returns:
            The points in original units; of each a convergence flag and its residual in units of the noise.
        """
        result = self._inverse_scaled(y)
        return result._replace(x=self.to_original(result.x))

    def _map_scaled(self, x: Tensor) -> Tensor:
        with self._evaluation_mode():
            return self.flow_map().map(self._at_precision(x)).to(x.dtype)

    @torch.no_grad()
    def _inverse_scaled(self, y: Tensor) -> InverseResult:
        with self._evaluation_mode():
            result = self.flow_map().inverse(self._at_precision(y))
        return result._replace(x=result.x.to(y.dtype), residual=result.residual.to(y.dtype))

    def convex_conjugate(self, y: Tensor) -> ConvexConjugate:
        """F*(y) = max over u of <u, y> - F(u), for a flow of one block, under the weights of evaluation.

        F is a function of training units, behind an ActNorm of the normalised points u = s(x). The gradient of F* is
        the inverse of grad F.

        Args:
            y: noise, shape (N, D).

        Returns:
            The values (N,), differentiable, with the maximisers u and whether they were found.

        Raises:
            ValueError: a flow of several blocks, whose map is the gradient of no convex function.
        """
        if self._num_blocks > 1:
            raise ValueError(
                f"this flow has num_blocks={self._num_blocks}: a composition of gradient maps is in general no "
                "gradient, so it has no convex conjugate. Ask a flow of one block, or each of potentials()."
            )
        with self._evaluation_mode():
            (stage,) = self.flow_map().stages
            return convex_conjugate(stage.potential, self._at_precision(y), tolerance=self.inverse_tolerance)

    # -- samples ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation: noise through the inverse map.

        Args:
            num_samples: how many, n.
            generator: of the noise, on the CPU.

        Returns:
            Shape (n, D).

        Raises:
            RuntimeError: points whose inverse is not found, in float64 either.
        """
        noise = torch.randn(num_samples, self.dim, generator=generator)
        return all_points(self._inverse_scaled(noise.to(next(self.parameters()))))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> InverseResult:
        """Rows through the map and back.

        Args:
            x: points in original units, shape (N, D).

        Returns:
            What ``inverse_map`` gives at the images.
        """
        return self.inverse_map(self.map(x))

    @torch.no_grad()
    def interpolate(self, first: Tensor, last: Tensor, num_points: int) -> Tensor:
        """Points along the straight line between the images of two rows, mapped back.

        Args:
            first: where the paths start, in original units, shape (N, D).
            last: where they end, in original units, shape (N, D).
            num_points: points on each path, both ends among them.

        Returns:
            Shape (num_points, N, D), in original units.

        Raises:
            ValueError: shapes that differ, or fewer than two points.
            RuntimeError: points whose inverse is not found.
        """
        if first.shape != last.shape:
            raise ValueError(f"first has shape {tuple(first.shape)} and last {tuple(last.shape)}: give equal ones.")
        if num_points < 2:
            raise ValueError(f"num_points={num_points}: a path has at least its two ends.")
        start, end = self.map(first), self.map(last)
        steps = torch.linspace(0.0, 1.0, num_points).to(start).view(-1, 1, 1)
        path = torch.lerp(start.unsqueeze(0), end.unsqueeze(0), steps)
        return all_points(self.inverse_map(path.reshape(-1, self.dim))).view(path.shape)

    def frozen(self) -> FrozenFlow:
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""
        return FrozenFlow(self.flow_map(), self.location, self.scale, self.logdet)
