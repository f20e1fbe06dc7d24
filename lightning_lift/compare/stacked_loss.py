"""The losses of several seeds in one call: a task's own formula under ``torch.func.vmap``."""

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightning_lift.compare.stacking import NotVectorizable, SeedStack
from lightning_lift.compare.windows import StackedWindows
from lightning_lift.flows.logdet import ExactLogDet, LogDet, LogDetResult
from lightning_lift.flows.transform import standard_normal_log_prob
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.energy import LogConcaveEBM
from lightning_lift.modules.flow import ConvexPotentialFlow
from lightning_lift.networks.activations import Softplus
from lightning_lift.networks.base import ConvexNetwork
from lightning_lift.parameterizations import ADMM, DirectSoftplus, Lift, Parameterization, ProjectedGradient
from lightning_lift.parameterizations.emissions import DenseEmission
from lightning_lift.partition.quadrature import Quadrature
from lightning_lift.potential import Potential


class StackedLoss:
    """The losses of the seeds of a stack, and their gradients.

    In two stages: the parameterizations' weights, then the task on them. What a seed has to repeat because its window
    has moved is the second stage alone.

    Args:
        stack: of modules in training mode.
        core: of the second stage.

    Attributes:
        errors: why a seed failed, by its index.
    """

    def __init__(self, stack: SeedStack, core: "_Core") -> None:
        self.stack = stack
        self.errors: dict[int, str] = {}
        self._core = core
        self._weights = StackedWeights(stack)
        self._free = {name: leaf for name, leaf in stack.leaves.items() if not name.startswith(_PREFIX)}

    def backward(self, batch: Tensor, alive: Sequence[bool]) -> Tensor:
        """Puts each seed's gradient into its slice of the leaves' ``grad``, which must be None before.

        A seed that fails (its density has no finite mass) is named in ``errors``, with the reason.

        Args:
            batch: shape (S, N, D).
            alive: the seeds that still train.

        Returns:
            The losses, without graph and without a parameterization's own penalty, shape (S,).
        """
        weights = self._weights(batch)
        given = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        losses = self._second(given, batch, alive)
        used = [name for name, tensor in given.items() if tensor.grad is not None]
        self._weights.backward([weights[name] for name in used], [cast(Tensor, given[name].grad) for name in used])
        return losses

    def _second(self, given: Mapping[str, Tensor], batch: Tensor, alive: Sequence[bool]) -> Tensor:
        """Losses (S,) of the weights handed in; puts gradients on them and on the network's own leaves."""
        losses: Tensor = self._call({**self._free}, given, batch)
        losses.sum().backward()
        return losses.detach()

    def _call(self, free: Mapping[str, Tensor], given: Mapping[str, Tensor], *inputs: Tensor | None) -> Any:
        core = self._core

        def one(own: dict[str, Tensor], weights: dict[str, Tensor], *rest: Tensor | None) -> Any:
            return functional_call(core, own, (weights, *rest))

        renamed = {f"module.{name}": leaf for name, leaf in free.items()}
        dims = (0 if renamed else None, 0, *(None if tensor is None else 0 for tensor in inputs))
        with _said_plainly():
            return vmap(one, in_dims=dims)(renamed, dict(given), *inputs)


_PREFIX = "parameterization."
_STATELESS_WEIGHTS = (Parameterization.weights, Lift.weights)
_STATELESS_LATENTS = (ProjectedGradient.latent, DirectSoftplus.latent, ADMM.latent, Lift.latent)


class StackedWeights:
    """The weights of every seed under its own parameterization.

    All at once where a parameterization is a function of its parameters and the batch; seed by seed where it holds
    something else (an earlier batch, its own noise), which vmap cannot see.

    Args:
        stack: of modules with a parameterization.
    """

    def __init__(self, stack: SeedStack) -> None:
        self._stack = stack
        self._own = [cast(ConvexModule, module).parameterization for module in stack.modules]
        first = self._own[0]
        self._leaves = {n.removeprefix(_PREFIX): t for n, t in stack.leaves.items() if n.startswith(_PREFIX)}
        self._core = _Weights(first) if is_stateless(first) else None
        self._has_penalty = type(first).penalty is not Parameterization.penalty

    def __call__(self, batch: Tensor) -> dict[str, Tensor]:
        """The weights by name, each (S, ...), with their graph.

        Args:
            batch: shape (S, N, D).
        """
        if self._core is None:
            each = [own.weights(rows) for own, rows in zip(self._own, batch, strict=True)]
            return {name: torch.stack([weights[name] for weights in each]) for name in each[0]}
        core = self._core

        def one(leaves: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
            own: dict[str, Tensor] = functional_call(core, leaves, (rows,))
            return own

        with _said_plainly():
            return vmap(one)({f"own.{name}": leaf for name, leaf in self._leaves.items()}, batch)

    def backward(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """From the gradients of the weights to those of the parameters, with the parameterizations' own penalties.

        Args:
            weights: what a call gave.
            gradients: of the same shapes.
        """
        if self._core is None or self._has_penalty:
            for leaf in self._leaves.values():
                leaf.grad = torch.zeros_like(leaf)
            self._stack.lend_gradients()
        torch.autograd.backward(weights, gradients)
        if self._has_penalty:
            for own in self._own:
                penalty = own.penalty()
                if penalty is not None:
                    penalty.backward()


def is_stateless(parameterization: Parameterization) -> bool:
    """Whether its weights are a function of its parameters and the batch alone, as far as this package knows.

    Args:
        parameterization: of any class.
    """
    kind = type(parameterization)
    if kind.weights not in _STATELESS_WEIGHTS or kind.latent not in _STATELESS_LATENTS:
        return False
    own = ("code", "_training_summary", "_latent_of")
    return not isinstance(parameterization, Lift) or all(getattr(kind, name) is getattr(Lift, name) for name in own)


class _Weights(nn.Module):
    def __init__(self, own: Parameterization) -> None:
        super().__init__()
        self.own = copy.deepcopy(own)
        for part in self.own.modules():
            if type(part) is DenseEmission:
                # F.linear under vmap gives the largest gradient of all in a layout that is copied once more.
                part.forward = functools.partial(_emitted, part)  # type: ignore[method-assign]

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        return self.own.weights(batch)


def _emitted(emission: DenseEmission, code: Tensor) -> Tensor:
    emitted: Tensor = _Product.apply(emission.weight, code)  # type: ignore[no-untyped-call]
    return emitted


class _Product(torch.autograd.Function):
    """A matrix (d, F) times a vector (F,), each product in the order that is fastest for many of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, vector: Tensor) -> Tensor:
        return F.linear(vector, matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_product: Tensor) -> tuple[Tensor, Tensor]:
        matrix, vector = ctx.saved_tensors
        return by_product.unsqueeze(-1) * vector, F.linear(by_product, matrix.t())


@contextmanager
def _said_plainly() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "vmap" not in text and "functorch" not in text and "data-dependent" not in text:
            raise
        raise NotVectorizable(f"torch.func.vmap cannot take it ({text.splitlines()[0][:160]})") from error


def stacked_loss(stack: SeedStack) -> StackedLoss:
    """The losses of a stack of modules.

    Args:
        stack: of modules of one class.

    Raises:
        NotVectorizable: the module's loss cannot be had for several seeds at once.
    """
    module = stack.modules[0]
    if not isinstance(module, ConvexModule):
        raise NotVectorizable(f"{type(module).__name__} is no task on convex networks")
    if isinstance(module, ConvexPotentialFlow):
        return _flow_loss(stack, module)
    if isinstance(module, LogConcaveEBM):
        return _EnergyLoss(stack, module)
    return StackedLoss(stack, _PlainCore(module))


class _Given(nn.Module):
    """Stands in the place of a parameterization, with the weights of the call at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: Mapping[str, Tensor] = {}

    def weights(self, batch: Tensor | None = None, latent: Tensor | None = None) -> dict[str, Tensor]:
        return dict(self.tensors)


class _Core(nn.Module):
    """The task as a function of weights and rows, for ``functional_call``.

    It holds a stand-in for the module: a shallow copy whose network is a copy and whose parameterization is ``_Given``.
    """

    def __init__(self, module: ConvexModule) -> None:
        super().__init__()
        stand_in = copy.copy(module)
        stand_in._modules = dict(module._modules)
        stand_in._modules["network"] = copy.deepcopy(module.network)
        self._given = _Given()
        stand_in._modules["parameterization"] = self._given
        self.module = stand_in

    def forward(self, weights: dict[str, Tensor], *inputs: Tensor | None) -> Any:
        """What the task gives under these weights."""
        self._given.tensors = weights
        try:
            return self.results(*inputs)
        finally:
            self._given.tensors = {}  # of a transform that is over

    def results(self, *inputs: Any) -> Any:
        """What the task gives; ``self.module`` has the weights."""
        raise NotImplementedError


class _EnergyCore(_Core):
    def __init__(self, module: LogConcaveEBM) -> None:
        super().__init__(module)
        _faster_activations_(self.module)

    def results(self, batch: Tensor, points: Tensor, log_weights: Tensor, rays: Tensor | None) -> tuple[Tensor, ...]:
        potential = self.module.potential(batch)
        # One pass for grid and batch together.
        energies, of_batch = potential.value(torch.cat([points, batch])).split([len(points), len(batch)])
        log_partition = torch.logsumexp(log_weights - energies, 0)
        results = of_batch.mean() + log_partition, energies.detach(), log_partition.detach()
        if rays is None:
            return results
        with torch.no_grad():
            value, gradient = potential.value_gradient(rays)
        return *results, value, gradient


class _EnergyLoss(StackedLoss):
    """Mean energy plus log Z by quadrature, each seed on a window of its own."""

    def __init__(self, stack: SeedStack, module: LogConcaveEBM) -> None:
        if type(module).loss is not LogConcaveEBM.loss or type(module).batch_loss is not ConvexModule.batch_loss:
            raise NotVectorizable(f"{type(module).__name__} has a loss of its own")
        partitions = [cast(LogConcaveEBM, other).partition for other in stack.modules]
        if type(module.partition) is not Quadrature:
            raise NotVectorizable(
                f"{type(module.partition).__name__} estimates log Z with random numbers or a state of its own"
            )
        super().__init__(stack, _EnergyCore(module))
        quadratures = [partition for partition in partitions if isinstance(partition, Quadrature)]
        if any(not torch.equal(other.open_sides, quadratures[0].open_sides) for other in quadratures):
            raise NotVectorizable("the seeds' data have supports of different kinds")
        self.windows = StackedWindows(quadratures, module.dim, next(module.parameters()))

    def _second(self, given: Mapping[str, Tensor], batch: Tensor, alive: Sequence[bool]) -> Tensor:
        windows = self.windows
        both = ({**self._free}, given)
        seeds = list(range(len(self.stack)))
        results = batch.new_zeros(len(seeds))
        for attempt in range(windows.max_moves):
            rows = torch.tensor(seeds)
            # Of the seeds that are repeated a copy: the gradients of the first pass may be infinite, and must not be
            # added to.
            own = both if attempt == 0 else tuple(_copies(leaves, rows) for leaves in both)
            inputs: tuple[Tensor | None, ...] = (batch, windows.points, windows.log_weights, windows.rays)
            if attempt:
                inputs = tuple(None if tensor is None else tensor[rows] for tensor in inputs)
            losses, energies, masses, *on_rays = self._call(*own, *inputs)
            moved = windows.follow(seeds, energies, masses, on_rays, alive)
            kept = [place for place, seed in enumerate(seeds) if seed not in moved]
            if kept:
                (losses[kept] if moved else losses).sum().backward()
            if attempt:
                for copied, leaves in zip(own, both, strict=True):
                    _hand_over(copied, leaves, kept, [seeds[place] for place in kept])
            results[rows] = losses.detach()
            if not moved:
                return results
            seeds = moved
        for seed in seeds:
            self.errors[seed] = windows.never_ends(seed)
        return results


def _copies(leaves: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: leaf.detach()[rows].requires_grad_(leaf.requires_grad) for name, leaf in leaves.items()}


def _hand_over(own: Mapping[str, Tensor], leaves: Mapping[str, Tensor], places: list[int], seeds: list[int]) -> None:
    for name, leaf in leaves.items():
        gradient = own[name].grad
        if gradient is not None:
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            leaf.grad[seeds] = gradient[places]


class _PlainCore(_Core):
    """Any ``batch_loss`` that vmap can take."""

    def results(self, batch: Tensor) -> Tensor:
        return self.module.batch_loss(batch)


class _UnrolledLogDet(LogDet):
    """Gradient and log-determinant by ``derivatives`` and a Cholesky factor in plain operations.

    The network's own ``gradient_logdet`` may be written by hand for autograd, which vmap cannot take; and LAPACK would
    be called once for each point of each seed.
    """

    kind = "exact"

    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        gradient, hessian = potential.value_gradient_hessian(x)[1:]
        logdet = _unrolled_logdet(hessian)
        zero = torch.zeros_like(logdet)
        return LogDetResult(gradient, logdet, zero, zero, torch.ones_like(zero, dtype=torch.bool))


_UNROLLED_UP_TO = 4


def _unrolled_logdet(hessian: Tensor) -> Tensor:
    """log det of (N, D, D) for small D, NaN where a pivot is not positive: shape (N,)."""
    dim = hessian.shape[-1]
    rows = [[hessian[:, i, j] for j in range(i + 1)] for i in range(dim)]
    pivots = []
    for k in range(dim):
        pivot = rows[k][k]
        pivots.append(torch.where(pivot > 0, pivot, torch.nan).log())
        for i in range(k + 1, dim):
            for j in range(k + 1, i + 1):
                rows[i][j] = rows[i][j] - rows[i][k] * rows[j][k] / pivot
    return torch.stack(pivots).sum(0)


class _FlowCore(_Core):
    """Negative log-likelihood of a convex potential flow with exact log-determinants in few dimensions."""

    def __init__(self, module: ConvexPotentialFlow) -> None:
        super().__init__(module)
        self._logdet = _UnrolledLogDet()

    def results(self, batch: Tensor) -> Tensor:
        flow = cast(ConvexPotentialFlow, self.module).flow_map(batch)
        x = batch.to(flow.stages[0].potential.weights[next(iter(flow.stages[0].potential.weights))])
        result = flow.estimate(x, self._logdet)
        return -(standard_normal_log_prob(result.gradient) + result.logdet).to(batch.dtype).mean()


def _flow_loss(stack: SeedStack, module: ConvexPotentialFlow) -> StackedLoss:
    kind = type(module)
    if kind.batch_loss is not ConvexPotentialFlow.batch_loss or kind._score is not ConvexPotentialFlow._score:
        raise NotVectorizable(f"{kind.__name__} has a loss of its own")
    if not isinstance(module.logdet, ExactLogDet):
        raise NotVectorizable("its log-determinant is estimated with random numbers")
    if module.dim > _UNROLLED_UP_TO:
        raise NotVectorizable(f"Hessians of {module.dim} dimensions keep the processor busy one run at a time")
    return StackedLoss(stack, _FlowCore(module))


class _FirstOrderSoftplus(Softplus):
    """log(1 + e^x) in one pass; its second derivative by autograd is wrong, and nothing here asks for it."""

    def value(self, x: Tensor) -> Tensor:
        return F.softplus(x, 1.0, 80.0)


def _faster_activations_(module: nn.Module) -> None:
    """Gives networks that are only differentiated once the softplus that takes one pass over memory."""
    for part in module.modules():
        if isinstance(part, ConvexNetwork) and type(getattr(part, "activation", None)) is Softplus:
            part.activation = _FirstOrderSoftplus()  # type: ignore[assignment]
