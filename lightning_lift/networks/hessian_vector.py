"""Products of the Hessian of a convex function with vectors, without ever building the Hessian."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.func import grad_and_value, vjp, vmap


class Linearization(ABC):
    """A convex function at N points: its value, its gradient, and its Hessian as a linear map.

    What does not depend on the vector is computed once, so that many products at the same points (conjugate gradients,
    Lanczos) pay only for the products.

    Subclass requirements: ``multiply`` for columns, and ``select``. Both are differentiable by autograd wherever the
    value is.

    Attributes:
        value: shape (N,).
        gradient: shape (N, D).
    """

    value: Tensor
    gradient: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """Hess E(x) v, point by point, with autocast off.

        Args:
            v: one vector a point, shape (N, D), or m of them, shape (N, D, m).

        Returns:
            The shape of ``v``.

        Raises:
            ValueError: vectors that do not fit the points.
        """
        if v.ndim not in (2, 3) or v.shape[:2] != self.gradient.shape:
            count, dim = self.gradient.shape
            raise ValueError(f"vectors of shape {tuple(v.shape)} do not fit: expected ({count}, {dim}[, m]).")
        with torch.autocast(device_type=v.device.type, enabled=False):
            return self.multiply(v) if v.ndim == 3 else self.multiply(v.unsqueeze(2)).squeeze(2)

    @abstractmethod
    def multiply(self, v: Tensor) -> Tensor:
        """Hess E(x) v for columns: shape (N, D, m) to (N, D, m)."""

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """The same at some of the points.

        Args:
            rows: their indices, shape (n,).
        """


class AutogradLinearization(Linearization):
    """The generic form, through ``torch.func``: one reverse pass over the gradient for each product.

    Args:
        energy: maps (n, D) to (n,), each row by itself; given their contexts too, where there are any.
        x: points, shape (N, D).
        context: of the points, shape (N, ...), or of all of them, (1, ...).
    """

    def __init__(self, energy: Callable[..., Tensor], x: Tensor, *context: Tensor) -> None:
        def total(points: Tensor) -> tuple[Tensor, Tensor]:
            values = energy(points, *context)
            return values.sum(), values

        def gradient(points: Tensor) -> tuple[Tensor, Tensor]:
            slopes, (_, values) = grad_and_value(total, has_aux=True)(points)
            return slopes, values

        self._energy, self._x, self._context, self._gradient = energy, x, context, gradient
        self.gradient, self.value = gradient(x)

    def multiply(self, v: Tensor) -> Tensor:
        """By the vector-Jacobian product of the gradient: a Hessian is symmetric."""
        pull_back = vjp(self._gradient, self._x, has_aux=True)[1]
        product: Tensor = vmap(lambda column: pull_back(column)[0], in_dims=2, out_dims=2)(v)
        return product

    def select(self, rows: Tensor) -> Self:
        """The same at some of the points."""
        own = (entries if len(entries) == 1 else entries[rows] for entries in self._context)
        return type(self)(self._energy, self._x[rows], *own)


class LayeredLinearization(Linearization):
    r"""The closed form for z_{l+1} = s(T_l z_l + A_l x + c_l) with curvature (k/2) |x|^2.

    With J_l = d a_l / d x the Jacobian of the pre-activations, s'_l their slopes and c_l = lambda_l s''(a_l) their
    curvatures, Hess E = k I + sum_l J_l^T diag(c_l) J_l. Its product with v takes one sweep up, J_0 v = A_0 v,
    J_{l+1} v = T_l (s'_l J_l v) + A_l v, and one down, r_l = c_l J_l v + s'_l (T_l^T r_{l+1}), Hess v = k v +
    sum_l A_l^T r_l: no more than two evaluations of the network for each vector.

    Args:
        value: shape (N,).
        gradient: shape (N, D).
        layers: effective T (None first) and A of each layer, first to last.
        slopes: s'(a_l) of each layer, shape (N, h).
        curvatures: lambda_l s''(a_l) of each layer, shape (N, h).
        strong_convexity: k.
        input_scales: q of each layer, shape (N, L, D), where its A is A diag(q); None for 1.
    """

    def __init__(
        self,
        value: Tensor,
        gradient: Tensor,
        layers: Sequence[tuple[Tensor | None, Tensor]],
        slopes: Sequence[Tensor],
        curvatures: Sequence[Tensor],
        strong_convexity: Tensor | float,
        input_scales: Tensor | None = None,
    ) -> None:
        self.value, self.gradient = value, gradient
        self._layers, self.slopes, self.curvatures = layers, slopes, curvatures
        self._strong_convexity, self._input_scales = strong_convexity, input_scales

    def multiply(self, v: Tensor) -> Tensor:
        """One sweep up and one down; rows of vectors, so that each layer is one matrix product."""
        rows = v.transpose(1, 2)  # (N, m, D)
        tangents: list[Tensor] = []
        for index, (hidden, inputs) in enumerate(self._layers):
            tangent = self._scaled(rows, index) @ inputs.T
            if hidden is not None:
                tangent = tangent + (self.slopes[index - 1].unsqueeze(1) * tangents[-1]) @ hidden.T
            tangents.append(tangent)
        product = self._strong_convexity * rows
        above: Tensor | None = None
        for index in reversed(range(len(self._layers))):
            hidden, inputs = self._layers[index]
            adjoint = self.curvatures[index].unsqueeze(1) * tangents[index]
            if above is not None:
                adjoint = adjoint + self.slopes[index].unsqueeze(1) * above
            product = product + self._scaled(adjoint @ inputs, index)
            above = None if hidden is None else adjoint @ hidden
        return product.transpose(1, 2)

    def _scaled(self, vectors: Tensor, index: int) -> Tensor:
        """q of this layer times vectors (N, m, D)."""
        return vectors if self._input_scales is None else vectors * self._input_scales[:, index].unsqueeze(1)

    def select(self, rows: Tensor) -> Self:
        """The same at some of the points."""
        return type(self)(
            self.value[rows],
            self.gradient[rows],
            self._layers,
            [slope[rows] for slope in self.slopes],
            [curvature[rows] for curvature in self.curvatures],
            self._strong_convexity,
            None if self._input_scales is None else self._input_scales[rows],
        )
