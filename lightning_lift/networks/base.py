"""The contract of a convex network: a scalar function, convex in its input while its weights are nonnegative."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, jacrev, vmap


class Derivatives(NamedTuple):
    """Value and derivatives of a convex function at N points.

    Attributes:
        value: shape (N,).
        gradient: shape (N, D).
        hessian: shape (N, D, D), or None when only first derivatives were asked for.
    """

    value: Tensor
    gradient: Tensor
    hessian: Tensor | None


class ConvexNetwork(nn.Module, ABC):
    """A scalar function x -> E(x), convex in x as long as its declared weights are nonnegative.

    A network knows which of its parameters must be nonnegative and nothing of how they are kept so: a
    ``Parameterization`` takes those parameters over, and they are handed back on each call.

    Subclass requirements:
        - set ``dim`` in the constructor;
        - ``nonnegative_names()`` lists parameters as ``named_parameters()`` spells them, and each of them starts
          nonnegative;
        - ``forward(x)`` reads its parameters as attributes, so that ``torch.func.functional_call`` can replace them;
        - ``twice_differentiable`` is False where second derivatives are useless (relu), and ``strong_convexity`` is a
          lower bound on the Hessian's eigenvalues.
        ``derivatives`` works at once through ``torch.func``; override it with a closed form to be fast.
    """

    dim: int
    twice_differentiable: bool = True

    @property
    def strong_convexity(self) -> float:
        """A lower bound k >= 0 on the eigenvalues of the Hessian, known by construction."""
        return 0.0

    @abstractmethod
    def nonnegative_names(self) -> tuple[str, ...]:
        """Names of the parameters that must stay nonnegative for the network to be convex."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The energy at each point.

        Args:
            x: points, shape (N, D).

        Returns:
            Shape (N,).
        """

    def derivatives(self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2) -> Derivatives:
        """Value, gradient and, at order 2, Hessian; pure in ``weights`` and differentiable in them.

        The generic form by ``torch.func``, one row at a time under ``vmap``; it also works under ``inference_mode``.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name (the nonnegative ones, and free ones where they are emitted).
            order: 1 for value and gradient, 2 for the Hessian too.

        Raises:
            NotImplementedError: order 2 on a network that is not twice differentiable.
        """
        self.check_order(order)
        replacements = dict(weights)

        def energy(point: Tensor) -> Tensor:
            result: Tensor = functional_call(self, replacements, (point.unsqueeze(0),))
            return result.squeeze(0)

        gradient, value = vmap(grad_and_value(energy))(x)
        hessian = vmap(jacrev(lambda point: grad_and_value(energy)(point)[0]))(x) if order == 2 else None
        return Derivatives(value, gradient, hessian)

    def check_order(self, order: int) -> None:
        """Refuses an order of derivatives that this network cannot give.

        Raises:
            ValueError: order is neither 1 nor 2.
            NotImplementedError: order 2 on a network that is not twice differentiable.
        """
        if order not in (1, 2):
            raise ValueError(f"order={order!r}: derivatives of order 1 or 2 can be had.")
        if order == 2 and not self.twice_differentiable:
            raise NotImplementedError(
                f"{type(self).__name__} is not twice differentiable (its activation has a kink), so its Hessian is "
                "useless; choose activation 'softplus' or 'gaussian_softplus'."
            )


def check_points(x: Tensor, dim: int) -> None:
    """Refuses points of the wrong shape.

    Raises:
        ValueError: ``x`` is not of shape (N, dim).
    """
    if x.ndim != 2 or x.shape[1] != dim:
        raise ValueError(f"points of shape {tuple(x.shape)} do not fit: expected (N, {dim}), one row a point.")
