"""A potential: a convex network with its weights bound. The only thing that a task touches."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from lightning_lift.networks.base import ConvexNetwork, Derivatives, check_points
from lightning_lift.networks.hessian_vector import Linearization
from lightning_lift.networks.icnn import ICNN
from lightning_lift.networks.tensors import NetworkTensors


class Potential:
    """A convex function of x: value, gradient, Hessian, log-determinant of the Hessian.

    Everything runs in at least float32 with autocast off: Cholesky has no half-precision kernels, and a bf16 Hessian
    is wrong in its third digit.

    Args:
        network: the convex network.
        weights: its nonnegative weights by name, and its free parameters where they are emitted.
        context: what a partially convex network may depend on in any way, one entry a row of x or one for all rows,
            shape (N, ...) or (1, ...); see also :meth:`at`.

    Raises:
        ValueError: a context of the wrong shape, or for a network that takes none; where it is evaluated, also a
            network that takes one and has got none.
        KeyError: names that are no parameters of the network, or nonnegative names that are missing
            (``functional_call`` would ignore either in silence).
    """

    def __init__(self, network: ConvexNetwork, weights: Mapping[str, Tensor], context: Tensor | None = None) -> None:
        expected = set(network.nonnegative_names())
        missing = expected - set(weights)
        unknown = {name for name in set(weights) - expected if not _has_tensor(network, name)}
        if missing or unknown:
            raise KeyError(
                f"weights do not fit {type(network).__name__}: missing {sorted(missing)}, unknown {sorted(unknown)}; "
                f"its nonnegative names are {sorted(expected)}."
            )
        if context is not None:
            _check_context(network, context)
        self.network = network
        self.weights = dict(weights)
        self.context = context
        self._rows: Any = None if context is None else network.bind_context(context, self.weights)

    def at(self, context: Tensor | None) -> "Potential":
        """The same function at another context.

        Args:
            context: one entry a row of x or one for all rows, shape (N, ...) or (1, ...).

        Raises:
            ValueError: a context of the wrong shape, or for a network that takes none.
        """
        if context is self.context:
            return self
        return Potential(self.network, self.weights, context)

    @property
    def is_shared(self) -> bool:
        """Whether it is one function for all points: it has no context, or one for all."""
        return self.context is None or len(self.context) == 1

    def rows(self, rows: Tensor | slice) -> "Potential":
        """The same function at some of the points: at their contexts, where each has its own.

        Args:
            rows: indices or a mask of the points, or a slice of them.
        """
        if self.context is None or self.is_shared:
            return self
        some = copy.copy(self)
        some.context, some._rows = self.context[rows], self._rows[rows]
        return some

    @property
    def dim(self) -> int:
        """Input dimension D."""
        return self.network.dim

    def value(self, x: Tensor) -> Tensor:
        """E(x): shape (N, D) to (N,)."""
        bound = self._bound(x)
        with _full_precision(x):
            value: Tensor = functional_call(self.network, self.weights, (_at_least_float32(x),), bound)
        return value

    def gradient(self, x: Tensor) -> Tensor:
        """grad E(x): shape (N, D) to (N, D)."""
        return self._derivatives(x, order=1).gradient

    def hessian(self, x: Tensor) -> Tensor:
        """Hess E(x): shape (N, D) to (N, D, D)."""
        hessian = self._derivatives(x, order=2).hessian
        assert hessian is not None
        return hessian

    def value_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and grad E(x) in one sweep: shapes (N,) and (N, D)."""
        value, gradient, _ = self._derivatives(x, order=1)
        return value, gradient

    def value_gradient_hessian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E(x), grad E(x) and Hess E(x) in one sweep: shapes (N,), (N, D) and (N, D, D)."""
        value, gradient, hessian = self._derivatives(x, order=2)
        assert hessian is not None
        return value, gradient, hessian

    def gradient_logdet(self, x: Tensor, chunk_size: int | None = None) -> tuple[Tensor, Tensor]:
        """grad E(x) and log det Hess E(x) in one sweep, the hot path of a flow: shapes (N, D) and (N,).

        Args:
            x: points, shape (N, D).
            chunk_size: rows at a time; None for what the network finds fastest.

        Returns:
            The log-determinant is NaN at a point whose Hessian is not finite or not positive definite in this
            precision (see ``ConvexNetwork.gradient_logdet``).
        """
        bound = self._bound(x)
        with _full_precision(x):
            return self.network.gradient_logdet(_at_least_float32(x), self.weights, chunk_size, **bound)

    def logdet(self, x: Tensor) -> Tensor:
        """log det Hess E(x), NaN where ``gradient_logdet`` is: shape (N, D) to (N,)."""
        return self.gradient_logdet(x)[1]

    def linearize(self, x: Tensor) -> Linearization:
        """E, grad E and the Hessian as a linear map at x, shape (N, D): for many products at the same points."""
        bound = self._bound(x)
        with _full_precision(x):
            return self.network.linearize(_at_least_float32(x), self.weights, **bound)

    def hessian_vector(self, x: Tensor, v: Tensor) -> Tensor:
        """Hess E(x) v without building the Hessian: v of shape (N, D) or (N, D, m), to the same shape."""
        bound = self._bound(x)
        with _full_precision(x):
            return self.network.hessian_vector(_at_least_float32(x), self.weights, _at_least_float32(v), **bound)

    def tensors(self, x: Tensor) -> NetworkTensors:
        """The effective tensors of every layer at the points' contexts, of an ICNN or a PICNN.

        Raises:
            TypeError: another network, whose layers are its own affair.
        """
        bound = self._bound(x)
        if not isinstance(self.network, ICNN):
            raise TypeError(
                f"{type(self.network).__name__} cannot be written as a program: only the layers of an ICNN (or a PICNN "
                "at a context) are known to a solver."
            )
        return self.network.tensors_at(x, self.weights, **bound)

    def to(self, dtype: torch.dtype) -> "Potential":
        """The same function in another precision, differentiable in this one's tensors; the network is not touched."""
        # Free tensors are handed in like the nonnegative ones: the network itself keeps its precision. Buffers are read
        # from a copy in the other one.
        network, own = self.network, {**dict(self.network.named_parameters()), **self.weights}
        if any(buffer.is_floating_point() and buffer.dtype != dtype for buffer in network.buffers()):
            network = copy.deepcopy(network).to(dtype)
        cast = copy.copy(self)
        cast.network = network
        cast.weights = {name: t.to(dtype) if t.is_floating_point() else t for name, t in own.items()}
        cast._rows = None if self._rows is None else self._rows.to(dtype)
        return cast

    def _derivatives(self, x: Tensor, order: int) -> Derivatives:
        bound = self._bound(x)
        with _full_precision(x):
            return self.network.derivatives(_at_least_float32(x), self.weights, order, **bound)

    def _bound(self, x: Tensor) -> dict[str, Any]:
        """The context as the network's methods take it, once the points have been seen to fit."""
        check_points(x, self.dim)
        if self.network.context_shape is None:
            return {}
        if self.context is None:
            raise ValueError(
                f"{type(self.network).__name__} needs a context of shape (N, "
                f"{', '.join(map(str, self.network.context_shape))}) beside its points: potential.at(context)."
            )
        if self.context.shape[0] not in (1, x.shape[0]):  # len would fix the number under torch.export
            raise ValueError(
                f"a context of {len(self.context)} entries does not fit {len(x)} points: give one a point, or one for "
                "all points."
            )
        return {"context": self._rows}


def _check_context(network: ConvexNetwork, context: Tensor) -> None:
    if network.context_shape is None:
        raise ValueError(
            f"{type(network).__name__} takes no context, and one of shape {tuple(context.shape)} is given: use a "
            "partially convex network, PICNN."
        )
    if tuple(context.shape[1:]) != network.context_shape or context.ndim == 0:
        raise ValueError(
            f"a context of shape {tuple(context.shape)} does not fit: {type(network).__name__} takes (N, "
            f"{', '.join(map(str, network.context_shape))})."
        )


def _full_precision(x: Tensor) -> torch.autocast:
    return torch.autocast(device_type=x.device.type, enabled=False)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _has_tensor(network: ConvexNetwork, name: str) -> bool:
    owner, _, leaf = name.rpartition(".")
    try:
        module = network.get_submodule(owner)
    except AttributeError:
        return False
    return leaf in module._parameters or leaf in module._buffers
