"""The one file that touches nflows: convex potentials as its transforms, and the flows that they are compared with."""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from nflows.distributions.normal import StandardNormal
from nflows.flows import Flow
from nflows.nn.nets import ResidualNet
from nflows.transforms import (
    AffineCouplingTransform,
    BatchNorm,
    CompositeTransform,
    LULinear,
    MaskedAffineAutoregressiveTransform,
    PiecewiseRationalQuadraticCouplingTransform,
    RandomPermutation,
    ReversePermutation,
    Transform,
)
from nflows.transforms.autoregressive import MaskedPiecewiseRationalQuadraticAutoregressiveTransform
from torch import Tensor, nn

from lightning_lift.flows.inverse import implicit_inverse
from lightning_lift.flows.transform import FlowMap, FlowStage, check_invertible
from lightning_lift.networks.base import ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Parameterization
from lightning_lift.potential import Potential

__all__ = [
    "ConvexPotentialTransform",
    "Flow",
    "FlowKind",
    "Mixing",
    "base_to_data",
    "draw_samples",
    "make_flow",
    "to_data",
    "to_noise",
]

FlowKind = Literal["maf", "realnvp", "rq_nsf_coupling", "rq_nsf_autoregressive"]
Mixing = Literal["paper", "none", "reverse", "random", "lu"]

_COUPLING = ("realnvp", "rq_nsf_coupling")
_MIXING: dict[FlowKind, Mixing] = {
    "maf": "reverse",
    "realnvp": "none",  # its masks alternate
    "rq_nsf_coupling": "lu",
    "rq_nsf_autoregressive": "lu",
}


class ConvexPotentialTransform(Transform):  # type: ignore[misc]  # nflows is not annotated
    """The map f(x) = grad F(x) of a convex potential as an nflows transform (Huang et al., ICLR 2021, section 3).

    It composes with nflows' own transforms and flows. ``forward(x)`` gives f(x) and log det Hess F(x); ``inverse(y)``
    solves f(x) = y and gives x and -log det Hess F(x). Both are differentiable, the inverse by the implicit function
    theorem.

    A convex network is trained with the flow around it, its nonnegative weights through ``parameterization`` (with
    ``pgd`` call ``project_()`` after each optimizer step). Anything else keeps the weights that it has.

    Args:
        source: a ``ConvexNetwork``; a ``Potential`` or a ``FlowMap``, bound; or a module with a method ``flow_map()``
            or ``potential()`` that gives one, such as a frozen model (a frozen flow maps rows in training units).
        parameterization: factory of the way in which a network's weights are kept nonnegative. A lift cannot be used:
            a transform does not see the data batch.
        tolerance: of the inverse, as in ``flows.inverse.invert``; None for its default, or the map's own.
        on_failure: what ``inverse`` does where the tolerance is not reached: ``raise``, or ``nan`` in those rows.

    Raises:
        TypeError: a source of another kind.
        ValueError: a parameterization that conditions on the data, or a network whose gradient is no invertible map.
    """

    def __init__(
        self,
        source: ConvexNetwork | Potential | FlowMap | nn.Module,
        parameterization: Callable[[], Parameterization] = DirectSoftplus,
        tolerance: float | None = None,
        on_failure: Literal["raise", "nan"] = "raise",
    ) -> None:
        super().__init__()
        if on_failure not in ("raise", "nan"):
            raise ValueError(f"on_failure={on_failure!r}: choose 'raise' or 'nan'.")
        self.tolerance, self.on_failure = tolerance, on_failure
        self.source: nn.Module | None = source if isinstance(source, nn.Module) else None
        self.parameterization: Parameterization | None = None
        self._bound = source if isinstance(source, Potential | FlowMap) else None
        if isinstance(source, ConvexNetwork):
            self.parameterization = parameterization().bind(source)
            if self.parameterization.needs_calibration:
                raise ValueError(
                    f"{type(self.parameterization).__name__} conditions on the data batch, which a transform inside an "
                    "nflows flow does not see: choose ProjectedGradient or DirectSoftplus, or train a "
                    "ConvexPotentialFlow and wrap it frozen."
                )
        elif self._bound is None and self._method() is None:
            raise TypeError(
                f"{type(source).__name__} is no convex potential: give a ConvexNetwork, a Potential, a FlowMap, or a "
                "module with flow_map() or potential(), such as a frozen network."
            )
        for stage in self.flow_map().stages:
            check_invertible(stage.potential.network)

    def flow_map(self) -> FlowMap:
        """The map under the present weights."""
        found: Any = self._bound
        if self.parameterization is not None:
            assert isinstance(self.source, ConvexNetwork)
            found = Potential(self.source, self.parameterization.weights())
        elif found is None:
            method = self._method()
            assert method is not None
            found = method()
        if isinstance(found, FlowMap):
            return found if self.tolerance is None else FlowMap(found.stages, self.tolerance)
        return FlowMap([FlowStage(found)], self.tolerance)

    def project_(self) -> None:
        """Move stored weights to the nearest nonnegative ones; for ``pgd``, after each optimizer step."""
        if self.parameterization is not None:
            self.parameterization.project_()

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """f(x) and log det of its Jacobian.

        Args:
            inputs: x, shape (N, D).
            context: not used.

        Returns:
            Shapes (N, D) and (N,).
        """
        return self.flow_map().forward(inputs)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x with f(x) = y, and minus the log-determinant there.

        Args:
            inputs: y, shape (N, D).
            context: not used.

        Returns:
            Shapes (N, D) and (N,); NaN in rows that do not reach the tolerance, with ``on_failure='nan'``.

        Raises:
            RuntimeError: points that do not reach the tolerance, with ``on_failure='raise'``.
        """
        flow_map = self.flow_map()
        result = flow_map.inverse(inputs)
        x, converged = result.x, result.converged if result.found is None else result.found
        failed = ~converged
        if self.on_failure == "raise" and bool(failed.any()):
            raise RuntimeError(
                f"the inverse missed its tolerance at {int(failed.sum())} of {len(failed)} points (largest residual "
                f"{float(result.residual[failed].max()):.3g}): use float64, a larger strong convexity or a larger "
                "tolerance, or on_failure='nan' to have those rows as NaN."
            )
        if torch.is_grad_enabled():
            x = _attached(flow_map, x, inputs)
        _, logdet = flow_map.forward(x)
        if bool(failed.any()):
            x = torch.where(converged[:, None], x, torch.nan)
            logdet = torch.where(converged, logdet, torch.nan)
        return x, -logdet

    def _method(self) -> Callable[[], Any] | None:
        for name in ("flow_map", "potential"):
            method = getattr(self.source, name, None)
            if callable(method):
                return method  # type: ignore[no-any-return]
        return None


def make_flow(
    kind: FlowKind,
    dim: int,
    num_layers: int = 5,
    hidden_features: int = 64,
    num_blocks: int = 2,
    num_bins: int = 8,
    tail_bound: float = 3.0,
    dropout: float = 0.0,
    batch_norm: bool = False,
    mixing: Mixing = "paper",
    context_features: int | None = None,
) -> Flow:
    """Make a flow of nflows with a standard normal base, as its paper builds it.

    Args:
        kind: ``maf`` (Papamakarios et al., NeurIPS 2017: masked affine autoregressive layers, ReLU MADE),
            ``realnvp`` (Dinh et al., ICLR 2017: affine coupling on alternating halves), ``rq_nsf_coupling`` or
            ``rq_nsf_autoregressive`` (Durkan et al., NeurIPS 2019: rational-quadratic splines with linear tails).
        dim: columns D.
        num_layers: transforms in the chain.
        hidden_features: width of each conditioning network.
        num_blocks: hidden layers of MADE in ``maf``, residual blocks elsewhere.
        num_bins: of each spline.
        tail_bound: the splines act on [-tail_bound, tail_bound]; outside they are the identity.
        dropout: probability, in the conditioning networks.
        batch_norm: whether each transform is followed by batch normalisation, as in the papers of MAF and RealNVP.
        mixing: what goes before each transform: ``none``, ``reverse`` or ``random`` permutation, ``lu`` (a random
            permutation and a linear layer by its LU factors); ``paper`` is ``reverse`` for MAF, ``none`` for RealNVP,
            ``lu`` for splines.
        context_features: numbers of a context that every conditioning network sees too; None for no context.

    Returns:
        An ``nflows.flows.Flow`` on (N, D).

    Raises:
        ValueError: an argument out of range, or coupling on one column.
    """
    if kind not in _MIXING:
        raise ValueError(f"flow {kind!r} is unknown: choose one of {', '.join(_MIXING)}.")
    _check_counts(
        dim=dim, num_layers=num_layers, hidden_features=hidden_features, num_blocks=num_blocks, num_bins=num_bins
    )
    if dim == 1 and kind in _COUPLING:
        raise ValueError(
            f"{kind} couples one half of the columns to the other and these data have one column: choose maf or "
            "rq_nsf_autoregressive."
        )
    if num_bins > 999:
        raise ValueError(f"num_bins={num_bins}: each bin is at least 1e-3 of the spline wide, so at most 999.")
    if not tail_bound > 0.0:
        raise ValueError(f"tail_bound={tail_bound}: must be positive.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout}: must be at least 0 and below 1.")
    mixing = _MIXING[kind] if mixing == "paper" else mixing
    layers: list[Any] = []
    for index in range(num_layers):
        layers += _mixing_layers(mixing, dim)
        sizes = (hidden_features, num_blocks, num_bins, tail_bound, dropout, context_features)
        layers.append(_layer(kind, dim, index, *sizes))
        if batch_norm:
            norm = _BatchNorm(dim)
            norm.running_var.fill_(1.0)  # it starts at 0: an evaluation before the first step would divide by 1e-5
            layers.append(norm)
    return Flow(CompositeTransform(layers), _StandardNormal([dim]))


def to_noise(flow: Flow, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rows to base noise, with the log-determinant: shapes (N, D) to (N, D) and (N,), at contexts (N, C)."""
    return flow._transform(x, context=context)  # type: ignore[no-any-return]


def to_data(flow: Flow, noise: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Base noise to rows, with the log-determinant of that direction: shapes (N, D) to (N, D) and (N,).

    Differentiable. nflows' splines end in an AssertionError where round-off makes a discriminant negative.
    """
    return flow._transform.inverse(noise, context=context)  # type: ignore[no-any-return]


@torch.no_grad()
def base_to_data(flow: Flow, noise: Tensor, context: Tensor | None = None) -> Tensor:
    """Base noise to rows without gradient, in float64 where float32 fails.

    Args:
        flow: in evaluation mode.
        noise: shape (N, D).
        context: shape (N, C), for a flow that takes one.

    Returns:
        Shape (N, D), in the dtype of ``noise``; not finite where float64 fails too.
    """
    try:
        x, _ = to_data(flow, noise, context)
        if bool(x.isfinite().all()):
            return x
    except AssertionError:  # a discriminant that round-off made negative
        pass
    try:
        entries = None if context is None else context.double()
        return to_data(copy.deepcopy(flow).double(), noise.double(), entries)[0].to(noise.dtype)
    except AssertionError:
        return torch.full_like(noise, torch.nan)


def _attached(flow_map: FlowMap, x: Tensor, y: Tensor) -> Tensor:
    """Solutions x of f(x) = y, each block solved from its own, so that they are differentiable in y and the weights."""
    starts = []
    with torch.no_grad():
        for stage in flow_map.stages:
            starts.append(stage.normalize(x))
            x = stage.potential.gradient(starts[-1])
    for stage, start in zip(reversed(flow_map.stages), reversed(starts), strict=True):
        y = stage.denormalize(implicit_inverse(stage.potential, y, tolerance=flow_map.tolerance, start=start).x)
    return y


@torch.no_grad()
def draw_samples(flow: Flow, num_samples: int, generator: torch.Generator, context: Tensor | None = None) -> Tensor:
    """Independent draws from a flow of ``make_flow``; unlike nflows' own, they come from a generator.

    Args:
        flow: in evaluation mode.
        num_samples: how many, n.
        generator: of the noise, on the CPU, so that a seed gives the same draws everywhere.
        context: one a draw, shape (n, C), for a flow that takes one.

    Returns:
        Shape (n, D), in the precision and on the device of the flow.

    Raises:
        RuntimeError: the inverse is not finite at some draws, also in float64.
    """
    # A frozen flow has its weights among the buffers; masks stay float32 beside weights in float64.
    tensors = [tensor for tensor in (*flow.parameters(), *flow.buffers()) if tensor.is_floating_point()]
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    noise = torch.randn(num_samples, *flow._distribution._shape, generator=generator, dtype=dtype)
    x = base_to_data(flow, noise.to(tensors[0].device), context)
    failed = int((~x.isfinite().all(1)).sum())
    if failed:
        raise RuntimeError(
            f"the flow's inverse is not finite at {failed} of {num_samples} draws, also in float64: it has diverged; "
            "lower the learning rate, or clip the gradient."
        )
    return x


class _BatchNorm(BatchNorm):  # type: ignore[misc]
    """nflows' layer, without NaN for a batch that has no standard deviation."""

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self.training and len(inputs) < 2:
            raise ValueError(
                "batch_norm=True and a training batch of one row, which has no standard deviation: choose a batch_size "
                "that leaves no batch of one row, or batch_norm=False."
            )
        return super().forward(inputs, context)  # type: ignore[no-any-return]


class _StandardNormal(StandardNormal):  # type: ignore[misc]
    """nflows' base without its float64 buffer, which some accelerators refuse."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__(shape)
        self._log_normaliser = 0.5 * math.prod(shape) * math.log(2.0 * math.pi)
        self.register_buffer("_log_z", torch.tensor(self._log_normaliser, dtype=torch.float32), persistent=False)

    def _log_prob(self, inputs: Tensor, context: Tensor | None) -> Tensor:
        return -0.5 * inputs.square().sum(1) - self._log_normaliser


class _AffineCoupling(AffineCouplingTransform):  # type: ignore[misc]
    """Affine coupling with scales in [e^-3, e^3]: nflows' own scale is below 1.001, so a chain of them only contracts.

    Without batch normalisation in between, such a density cannot exceed that of its base anywhere.
    """

    def _scale_and_shift(self, transform_params: Tensor) -> tuple[Tensor, Tensor]:
        shift, raw = transform_params.chunk(2, dim=1)
        return (3.0 * torch.tanh(raw / 3.0)).exp(), shift


class _LULinear(LULinear):  # type: ignore[misc]
    """nflows' layer with the triangular solver that torch keeps; its own one is deprecated there."""

    def inverse_no_cache(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self._create_lower_upper()
        columns = (inputs - self.bias).T
        columns = torch.linalg.solve_triangular(lower, columns, upper=False, unitriangular=True)
        columns = torch.linalg.solve_triangular(upper, columns, upper=True)
        return columns.T, -self.logabsdet() * inputs.new_ones(len(inputs))


def _mixing_layers(mixing: Mixing, dim: int) -> list[Any]:
    if mixing == "none" or dim == 1:
        return []
    if mixing == "reverse":
        return [ReversePermutation(dim)]
    if mixing == "random":
        return [RandomPermutation(dim)]
    if mixing == "lu":
        return [RandomPermutation(dim), _LULinear(dim)]
    raise ValueError(f"mixing={mixing!r}: choose paper, none, reverse, random or lu.")


def _layer(
    kind: FlowKind,
    dim: int,
    index: int,
    hidden: int,
    num_blocks: int,
    num_bins: int,
    tail_bound: float,
    dropout: float,
    context: int | None,
) -> Any:
    if kind == "maf":
        return MaskedAffineAutoregressiveTransform(
            dim,
            hidden,
            context_features=context,
            num_blocks=num_blocks,
            use_residual_blocks=False,
            dropout_probability=dropout,
        )
    if kind == "rq_nsf_autoregressive":
        return MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
            dim,
            hidden,
            context_features=context,
            num_bins=num_bins,
            tails="linear",
            tail_bound=tail_bound,
            num_blocks=num_blocks,
            dropout_probability=dropout,
        )
    mask = torch.where(torch.arange(dim) % 2 == index % 2, 1.0, -1.0)

    def network(features: int, outputs: int) -> nn.Module:
        net: nn.Module = ResidualNet(
            features, outputs, hidden, context, num_blocks, activation=F.relu, dropout_probability=dropout
        )
        return net

    if kind == "realnvp":
        return _AffineCoupling(mask, network)
    return PiecewiseRationalQuadraticCouplingTransform(
        mask, network, num_bins=num_bins, tails="linear", tail_bound=tail_bound
    )


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}: give an integer of at least 1.")
