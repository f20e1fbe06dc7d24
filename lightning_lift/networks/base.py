"""The contract of a convex network: a scalar function, convex in its input while its weights are nonnegative."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, jacrev, vmap

from lightning_lift.networks.hessian_vector import AutogradLinearization, Linearization


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
          lower bound on the Hessian's eigenvalues;
        - a partially convex network sets ``context_shape``, and its ``forward`` takes ``context``.
        ``derivatives`` works at once through ``torch.func``; override it with a closed form to be fast.
    """

    dim: int
    context_shape: tuple[int, ...] | None = None
    """Shape of one entry of the context that a partially convex network takes; its methods get it as ``context``."""
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

    def bind_context(self, context: Tensor, weights: Mapping[str, Tensor]) -> Any:
        """What depends on the context and not on the points, made once: what the methods below take as ``context``.

        By default the context itself. It must have a length, and give rows by ``[rows]`` and a precision by ``to``.

        Args:
            context: one entry a point or one for all points, shape (N, ...) or (1, ...).
            weights: replacement tensors by parameter name.
        """
        return context

    def derivatives(
        self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2, *, context: Any = None
    ) -> Derivatives:
        """Value, gradient and, at order 2, Hessian; pure in ``weights`` and differentiable in them.

        The generic form by ``torch.func``, one row at a time under ``vmap``; it also works under ``inference_mode``.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name (the nonnegative ones, and free ones where they are emitted).
            order: 1 for value and gradient, 2 for the Hessian too.
            context: of the points, or of all of them, for a partially convex network.

        Raises:
            NotImplementedError: order 2 on a network that is not twice differentiable.
        """
        self.check_order(order)
        replacements = dict(weights)
        rows = () if context is None else (context.expand(len(x), *context.shape[1:]),)

        def energy(point: Tensor, *entry: Tensor) -> Tensor:
            points = (point.unsqueeze(0), *(row.unsqueeze(0) for row in entry))
            result: Tensor = functional_call(self, replacements, points)
            return result.squeeze(0)

        gradient, value = vmap(grad_and_value(energy))(x, *rows)
        hessian = vmap(jacrev(lambda *row: grad_and_value(energy)(*row)[0]))(x, *rows) if order == 2 else None
        return Derivatives(value, gradient, hessian)

    def gradient_logdet(
        self, x: Tensor, weights: Mapping[str, Tensor], chunk_size: int | None = None, *, context: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The gradient and the log-determinant of the Hessian: what a convex potential flow is trained with.

        The generic form: ``derivatives`` and a Cholesky factor, differentiable by autograd in ``weights`` and ``x``.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            chunk_size: rows at a time; None for all at once.
            context: as for ``derivatives``.

        Returns:
            grad E, shape (N, D), and log det Hess E, shape (N,). The log-determinant is NaN at a point whose Hessian
            is not finite, or not positive definite in this precision: a training run that diverges shows it in its
            loss. (Positive definite means a ``strong_convexity`` above round-off of the largest eigenvalue: raise it,
            or use float64.)

        Raises:
            ValueError: points of the wrong shape, or a chunk_size below 1.
            NotImplementedError: the network is not twice differentiable.
        """
        self.check_order(2)
        check_points(x, self.dim)
        check_chunk_size(chunk_size)
        gradients, logdets = [], []
        size = chunk_size or max(len(x), 1)
        for start in range(0, max(len(x), 1), size):
            rows = slice(start, start + size)
            _, gradient, hessian = self.derivatives(x[rows], weights, context=context_rows(context, rows))
            assert hessian is not None
            gradients.append(gradient)
            logdets.append(cholesky_logdet(hessian))
        return torch.cat(gradients), torch.cat(logdets)

    def linearize(self, x: Tensor, weights: Mapping[str, Tensor], *, context: Any = None) -> Linearization:
        """Value, gradient and the Hessian as a linear map, which is never built; pure in ``weights``.

        The generic form through ``torch.func``; override it with a closed form to be fast.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            context: as for ``derivatives``.

        Raises:
            NotImplementedError: the network is not twice differentiable.
        """
        self.check_order(2)
        check_points(x, self.dim)
        replacements = dict(weights)

        def energy(points: Tensor, *entries: Tensor) -> Tensor:
            result: Tensor = functional_call(self, replacements, (points, *entries))
            return result

        return AutogradLinearization(energy, x, *(() if context is None else (context,)))

    def hessian_vector(self, x: Tensor, weights: Mapping[str, Tensor], v: Tensor, *, context: Any = None) -> Tensor:
        """Hess E(x) v, without building the Hessian; differentiable in ``weights`` and ``x``.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            v: one vector a point, shape (N, D), or m of them, shape (N, D, m).
            context: as for ``derivatives``.

        Returns:
            The shape of ``v``.
        """
        return self.linearize(x, weights, context=context)(v)

    def check_order(self, order: int) -> None:
        """Refuse an order of derivatives that this network cannot give.

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


def context_rows(context: Any, rows: Tensor | slice) -> Any:
    """What belongs to some of the points: those entries, or the one for all of them, or None.

    Args:
        context: what ``ConvexNetwork.bind_context`` gives, or None.
        rows: indices or a mask of the points, or a slice of them.
    """
    return context if context is None or len(context) == 1 else context[rows]


def cholesky_logdet(hessian: Tensor) -> Tensor:
    """log det of positive definite matrices (N, D, D), shape (N,); NaN, never an error, where one is not."""
    factor, info = torch.linalg.cholesky_ex(hessian)
    logdet: Tensor = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    # Multiplied, not selected: the gradient of such a row is then NaN too, and cannot pass for a zero.
    return logdet * torch.ones_like(logdet).masked_fill(info != 0, torch.nan)


def check_chunk_size(chunk_size: int | None) -> None:
    """Refuse a chunk size that is no number of rows.

    Raises:
        ValueError: ``chunk_size`` is below 1.
    """
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: give at least one row at a time, or None for the fastest size.")


def check_points(x: Tensor, dim: int) -> None:
    """Refuse points of the wrong shape.

    Raises:
        ValueError: ``x`` is not of shape (N, dim).
    """
    if x.ndim != 2 or x.shape[1] != dim:
        raise ValueError(f"points of shape {tuple(x.shape)} do not fit: expected (N, {dim}), one row a point.")
