"""The map of a convex potential flow: blocks of an ActNorm and the gradient of a convex network, composed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_lift.flows.inverse import InverseResult, default_tolerance, invert
from lightning_lift.flows.logdet import ExactLogDet, LogDet, LogDetResult
from lightning_lift.flows.regression import LinearRegression, Residual
from lightning_lift.networks.actnorm import ActNorm, Normalization
from lightning_lift.networks.base import ConvexNetwork, check_points, cholesky_logdet
from lightning_lift.networks.icnn import ICNN
from lightning_lift.potential import Potential


class FlowBlock(nn.Module):
    """The parameters of one block, x -> grad F(s(x)) with s an ActNorm.

    Args:
        network: F.
        actnorm: whether there is an ActNorm before it.
        regression: whether there is a linear regression on the context before that, if the context is a vector.

    Raises:
        ValueError: a network whose gradient is no invertible map.
    """

    def __init__(self, network: ConvexNetwork, actnorm: bool, regression: bool = False) -> None:
        super().__init__()
        check_invertible(network)
        shape = network.context_shape or ()
        self.regression = LinearRegression(network.dim, shape[0]) if regression and len(shape) == 1 else None
        self.actnorm = ActNorm(network.dim) if actnorm else None
        self.network = network

    @torch.no_grad()
    def initialize_(self, x: Tensor, potential: Potential) -> Tensor:
        """Start the ActNorms before and inside the network from data; those started before stay.

        Args:
            x: rows as they reach this block, shape (N, D).
            potential: the network under its present weights.

        Returns:
            The rows as they leave it, shape (N, D).
        """
        if self.regression is not None and potential.context is not None:
            self.regression.initialize_(x, potential.context)
        if self.actnorm is not None:
            self.actnorm.initialize_(self.stage(potential)._replace(normalization=None).normalize(x))
        x = self.stage(potential).normalize(x)
        inner = getattr(self.network, "initialize_actnorm_", None)
        if inner is not None:
            inner(x, potential.weights)
        return potential.gradient(x)

    @property
    def is_initialized(self) -> bool:
        """Whether no ActNorm in this block waits for data."""
        return all(bool(part.initialized) for part in self.modules() if isinstance(part, ActNorm | LinearRegression))

    def stage(self, potential: Potential) -> "FlowStage":
        """This block under weights.

        Args:
            potential: the network with them bound.
        """
        return FlowStage(
            potential,
            None if self.actnorm is None else self.actnorm.normalization,
            None if self.regression is None else self.regression.residual,
        )


class FlowStage(NamedTuple):
    """One block with its weights bound.

    Attributes:
        potential: F.
        normalization: s, the ActNorm's map; None without one.
        residual: what comes before s, at the potential's context; None without one.
    """

    potential: Potential
    normalization: Normalization | None = None
    residual: Residual | None = None

    def normalize(self, x: Tensor) -> Tensor:
        """s(x), shape (N, D)."""
        if self.residual is not None and self.potential.context is not None:
            x = self.residual.apply(x, self.potential.context)
        return x if self.normalization is None else self.normalization.apply(x)

    def denormalize(self, u: Tensor) -> Tensor:
        """The x with s(x) = u, shape (N, D)."""
        x = u if self.normalization is None else self.normalization.invert(u)
        if self.residual is not None and self.potential.context is not None:
            x = self.residual.invert(x, self.potential.context)
        return x

    @property
    def log_det(self) -> Tensor | float:
        """log |d s / d x|."""
        own = 0.0 if self.normalization is None else self.normalization.log_scale.sum()
        return own if self.residual is None else own + self.residual.log_det

    def to(self, dtype: torch.dtype) -> "FlowStage":
        """The same in another precision, differentiable in this one's tensors."""
        own, before = self.normalization, self.residual
        return FlowStage(
            self.potential.to(dtype),
            None if own is None else Normalization(*(tensor.to(dtype) for tensor in own)),
            None if before is None else before.to(dtype),
        )

    def at(self, context: Tensor) -> "FlowStage":
        """The same at another context, if the network takes one."""
        if self.potential.network.context_shape is None:
            return self
        return self._replace(potential=self.potential.at(context))

    def rows(self, rows: Tensor | slice) -> "FlowStage":
        """The same at some of the points, with their contexts."""
        return self._replace(potential=self.potential.rows(rows))


class FlowMap:
    """f = f_B o ... o f_1 with f_b(x) = grad F_b(s_b(x)), all weights bound: the map from data to noise.

    Each F_b is strongly convex, so that f is one to one and onto, and log det of its Jacobian is the sum of
    log det Hess F_b and the ActNorms' log scales (Huang et al., Convex potential flows, ICLR 2021, section 3).

    Args:
        stages: the blocks, first to last.
        tolerance: of the inverse, see ``flows.inverse.invert``; None for its default.

    Raises:
        ValueError: no stages.
    """

    def __init__(self, stages: Sequence[FlowStage], tolerance: float | None = None) -> None:
        if not stages:
            raise ValueError("a flow needs at least one block.")
        self.stages = tuple(stages)
        self.tolerance = tolerance

    @property
    def dim(self) -> int:
        """Dimension D."""
        return self.stages[0].potential.dim

    def to(self, dtype: torch.dtype) -> "FlowMap":
        """The same map in another precision, differentiable in this one's tensors."""
        return FlowMap([stage.to(dtype) for stage in self.stages], self.tolerance)

    def at(self, context: Tensor) -> "FlowMap":
        """The map at a context, shape (N, ...) for one a point or (1, ...) for all."""
        return FlowMap([stage.at(context) for stage in self.stages], self.tolerance)

    def rows(self, rows: Tensor | slice) -> "FlowMap":
        """The same map at some of the points: at their contexts, where each has its own."""
        return FlowMap([stage.rows(rows) for stage in self.stages], self.tolerance)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The image and the exact log-determinant of the Jacobian, differentiable in the weights and in x.

        Args:
            x: points, shape (N, D).

        Returns:
            f(x), shape (N, D), and log det Df(x), shape (N,).
        """
        result = self.estimate(x, ExactLogDet())
        return result.gradient, result.logdet

    def estimate(self, x: Tensor, logdet: LogDet) -> LogDetResult:
        """``forward`` with a log-determinant of another kind.

        Args:
            x: points, shape (N, D).
            logdet: the estimator, applied to each block.

        Returns:
            As for one potential, through all blocks: ``gradient`` is f(x), ``standard_error`` the sum over the blocks
            (a bound: their probes may be the same), ``residual`` the largest.
        """
        check_points(x, self.dim)
        total = error = residual = x.new_zeros(x.shape[0])
        converged = torch.ones_like(total, dtype=torch.bool)
        for stage in self.stages:
            own = logdet(stage.potential, stage.normalize(x))
            x, total, error = own.gradient, total + own.logdet, error + own.standard_error
            residual, converged = torch.maximum(residual, own.residual), converged & own.converged
            total = total + stage.log_det
        return LogDetResult(x, total, error, residual, converged)

    def map(self, x: Tensor) -> Tensor:
        """f(x) alone, shape (N, D)."""
        check_points(x, self.dim)
        for stage in self.stages:
            x = stage.potential.gradient(stage.normalize(x))
        return x

    @torch.no_grad()
    def inverse(self, y: Tensor) -> InverseResult:
        """The points with f(x) = y.

        Block by block, last to first. Points that miss the tolerance in float32 are solved once more in float64 and
        rounded, on devices that have it.

        Args:
            y: shape (N, D).

        Returns:
            The points (N, D); ``residual`` is |f(x) - y| of these very points through all blocks, in float64 where the
            device has it; ``converged`` says that it is within tolerance * (1 + |y|), ``found`` that it is so, or was
            before a float64 solution was rounded; ``iterations`` are those of all blocks.
        """
        check_points(y, self.dim)
        tolerance = self._tolerance(y.dtype)
        result = self._solve(y, tolerance)
        again = ~result.converged & torch.isfinite(y).all(1)
        if y.dtype != torch.float32 or y.device.type == "mps" or not bool(again.any()):
            return result
        some = self.rows(again)
        better = some.to(torch.float64)._solve(y[again].double(), tolerance)
        rounded = better.x.to(y.dtype)
        residual = some._residual(rounded, y[again])
        result.x[again], result.residual[again] = rounded, residual
        result.converged[again] = residual <= tolerance * (1.0 + y[again].norm(dim=1))
        result.iterations[again] += better.iterations
        found = result.converged.clone()
        found[again] = better.converged
        return result._replace(found=found)

    def _tolerance(self, dtype: torch.dtype) -> float:
        if self.tolerance is not None:
            return self.tolerance
        # The round-off of one block is amplified by the blocks behind it.
        return default_tolerance(dtype) * (1.0 if len(self.stages) == 1 or dtype == torch.float32 else 100.0)

    def _solve(self, y: Tensor, tolerance: float) -> InverseResult:
        x, iterations = y, torch.zeros(len(y), dtype=torch.long, device=y.device)
        for stage in reversed(self.stages):
            result = invert(stage.potential, x, tolerance=self.tolerance)
            x, iterations = stage.denormalize(result.x), iterations + result.iterations
        residual = self._residual(x, y)
        return InverseResult(x, residual <= tolerance * (1.0 + y.norm(dim=1)), residual, iterations)

    def _residual(self, x: Tensor, y: Tensor) -> Tensor:
        """|f(x) - y| in float64 where the device has it, rounded: shape (N,)."""
        dtype = x.dtype if x.device.type == "mps" else torch.float64
        residual: Tensor = (self.to(dtype).map(x.to(dtype)) - y.to(dtype)).norm(dim=1).to(x.dtype)
        return residual

    @torch.no_grad()
    def hessian_condition(self, x: Tensor) -> Tensor:
        """The largest condition number among the blocks' Hessians at each point, by eigenvalues in float64.

        Args:
            x: points, shape (N, D).

        Returns:
            Shape (N,), in the dtype of ``x``.
        """
        check_points(x, self.dim)
        worst = torch.zeros_like(x[:, 0])
        for stage in self.stages:
            _, x, hessian = stage.potential.value_gradient_hessian(stage.normalize(x))
            eigenvalues = torch.linalg.eigvalsh(hessian if x.device.type == "mps" else hessian.double())
            worst = torch.maximum(worst, (eigenvalues[:, -1] / eigenvalues[:, 0]).to(x))
        return worst


def standard_normal_log_prob(y: Tensor) -> Tensor:
    """log N(y; 0, I) in nats: shape (N, D) to (N,)."""
    return -0.5 * y.square().sum(1) - 0.5 * y.shape[1] * math.log(2.0 * math.pi)


def all_points(result: InverseResult) -> Tensor:
    """The points of an inverse, all of them found.

    Args:
        result: of an inverse map.

    Returns:
        Shape (N, D).

    Raises:
        RuntimeError: some missed the tolerance, before they were rounded too.
    """
    failed = int((~(result.converged if result.found is None else result.found)).sum())
    if failed:
        raise RuntimeError(
            f"{failed} of {len(result.x)} points were not found: their inverse missed its tolerance (largest residual "
            f"{float(result.residual.max()):.2g}), in float64 too. inverse_map(y) returns what was found, with flags; "
            "a larger strong_convexity or inverse_tolerance makes the problem easier."
        )
    return result.x


class PlainLogDet(LogDet):
    """The exact log-determinant in plain operations, for ``torch.export``: no chunks, and no backward of its own."""

    kind = "exact"

    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        """The map and its log-determinant; see ``LogDet``."""
        _, gradient, hessian = potential.value_gradient_hessian(x)
        logdet = cholesky_logdet(hessian)
        zero = torch.zeros_like(logdet)
        return LogDetResult(gradient, logdet, zero, zero, torch.isfinite(logdet))


def check_invertible(network: ConvexNetwork) -> None:
    """Refuse convex networks whose gradient is not known to be an invertible map with a Jacobian.

    Args:
        network: a block's network.

    Raises:
        ValueError: it is not twice differentiable, or has no quadratic term.
    """
    if not network.twice_differentiable:
        raise ValueError(
            f"{type(network).__name__} is not twice differentiable (a relu has a kink), so the gradient of it is "
            "piecewise constant or linear: as a flow it has no log-determinant to train and no inverse. Choose "
            "activation 'softplus' or 'gaussian_softplus'."
        )
    # A network of the user's own need not state a bound: whether it is strongly convex is then its author's affair.
    if isinstance(network, ICNN) and network.strong_convexity == 0.0:
        raise ValueError(
            "strong_convexity=0: the gradient of such an ICNN is bounded, so the flow does not reach all of the "
            "noise, its density does not integrate to 1 and it has no inverse for distant noise. Give a positive "
            "strong_convexity, such as 0.02, or 'learned'."
        )
