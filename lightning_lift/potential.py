"""A potential: a convex network with its weights bound. The only thing that a task touches."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from lightning_lift.networks.base import ConvexNetwork, Derivatives, check_points
from lightning_lift.networks.hessian_vector import Linearization


class Potential:
    """A convex function of x: value, gradient, Hessian, log-determinant of the Hessian.

    Everything runs in at least float32 with autocast off: Cholesky has no half-precision kernels, and a bf16 Hessian
    is wrong in its third digit.

    Args:
        network: the convex network.
        weights: its nonnegative weights by name, and its free parameters where they are emitted.

    Raises:
        KeyError: names that are no parameters of the network, or nonnegative names that are missing
            (``functional_call`` would ignore either in silence).
    """

    def __init__(self, network: ConvexNetwork, weights: Mapping[str, Tensor]) -> None:
        expected = set(network.nonnegative_names())
        missing = expected - set(weights)
        unknown = {name for name in set(weights) - expected if not _has_tensor(network, name)}
        if missing or unknown:
            raise KeyError(
                f"weights do not fit {type(network).__name__}: missing {sorted(missing)}, unknown {sorted(unknown)}; "
                f"its nonnegative names are {sorted(expected)}."
            )
        self.network = network
        self.weights = dict(weights)

    @property
    def dim(self) -> int:
        """Input dimension D."""
        return self.network.dim

    def value(self, x: Tensor) -> Tensor:
        """E(x): shape (N, D) to (N,)."""
        check_points(x, self.dim)
        with _full_precision(x):
            value: Tensor = functional_call(self.network, self.weights, (_at_least_float32(x),))
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
        check_points(x, self.dim)
        with _full_precision(x):
            return self.network.gradient_logdet(_at_least_float32(x), self.weights, chunk_size)

    def logdet(self, x: Tensor) -> Tensor:
        """log det Hess E(x), NaN where ``gradient_logdet`` is: shape (N, D) to (N,)."""
        return self.gradient_logdet(x)[1]

    def linearize(self, x: Tensor) -> Linearization:
        """E, grad E and the Hessian as a linear map at x, shape (N, D): for many products at the same points."""
        check_points(x, self.dim)
        with _full_precision(x):
            return self.network.linearize(_at_least_float32(x), self.weights)

    def hessian_vector(self, x: Tensor, v: Tensor) -> Tensor:
        """Hess E(x) v without building the Hessian: v of shape (N, D) or (N, D, m), to the same shape."""
        check_points(x, self.dim)
        with _full_precision(x):
            return self.network.hessian_vector(_at_least_float32(x), self.weights, _at_least_float32(v))

    def to(self, dtype: torch.dtype) -> "Potential":
        """The same function in another precision, differentiable in this one's tensors; the network is not touched."""
        # Free tensors are handed in like the nonnegative ones: the network itself keeps its precision. Buffers are read
        # from a copy in the other one.
        network, own = self.network, {**dict(self.network.named_parameters()), **self.weights}
        if any(buffer.is_floating_point() and buffer.dtype != dtype for buffer in network.buffers()):
            network = copy.deepcopy(network).to(dtype)
        return Potential(network, {name: t.to(dtype) if t.is_floating_point() else t for name, t in own.items()})

    def _derivatives(self, x: Tensor, order: int) -> Derivatives:
        check_points(x, self.dim)
        with _full_precision(x):
            return self.network.derivatives(_at_least_float32(x), self.weights, order)


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
