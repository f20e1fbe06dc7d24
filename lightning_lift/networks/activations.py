"""Convex, non-decreasing activations with exact first and second derivatives.

Each activation is a value together with its closed-form derivatives, because automatic differentiation of the usual
implementations is wrong where it matters: ``F.softplus`` has second derivative exactly zero beyond its threshold, and
relu-based forms have wrong derivatives at exactly zero.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ActivationName = Literal["softplus", "gaussian_softplus", "relu"]


class Activation(ABC):
    """A convex, non-decreasing scalar function applied elementwise.

    Subclass requirements: ``value``, ``first`` and ``second`` are elementwise on tensors of any shape, in closed form,
    finite for every finite input, and themselves differentiable by autograd.
    """

    twice_differentiable: bool = True

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """The function, elementwise."""

    @abstractmethod
    def first(self, x: Tensor) -> Tensor:
        """The first derivative, elementwise, in [0, inf)."""

    @abstractmethod
    def second(self, x: Tensor) -> Tensor:
        """The second derivative, elementwise, nonnegative.

        Raises:
            NotImplementedError: the activation has a kink (``twice_differentiable`` is False).
        """


class Softplus(Activation):
    """log(1 + e^x), derivatives sigmoid(x) and sigmoid(x) sigmoid(-x)."""

    def value(self, x: Tensor) -> Tensor:
        """log(1 + e^x), elementwise."""
        # logsigmoid has no threshold, and an exact derivative at 0 and far out; F.softplus and logaddexp do not.
        return -F.logsigmoid(-x)

    def first(self, x: Tensor) -> Tensor:
        """sigmoid(x), elementwise."""
        return torch.sigmoid(x)

    def second(self, x: Tensor) -> Tensor:
        """sigmoid(x) sigmoid(-x), elementwise."""
        return torch.sigmoid(x) * torch.sigmoid(-x)


class GaussianSoftplus(Activation):
    """x Phi(x) + phi(x), the mean of relu(x + N(0, 1)); derivatives Phi(x) and phi(x)."""

    def value(self, x: Tensor) -> Tensor:
        """x Phi(x) + phi(x), elementwise."""
        return x * self.first(x) + self.second(x)

    def first(self, x: Tensor) -> Tensor:
        """Phi(x), the standard normal distribution function, elementwise."""
        # erfc keeps its relative accuracy in the left tail; torch.special.ndtr loses it.
        return 0.5 * torch.erfc(-x / math.sqrt(2.0))

    def second(self, x: Tensor) -> Tensor:
        """phi(x), the standard normal density, elementwise."""
        return torch.exp(-0.5 * x.square()) / math.sqrt(2.0 * math.pi)


class ReLU(Activation):
    """max(x, 0). Convex but with a kink: usable where only values and gradients are needed."""

    twice_differentiable = False

    def value(self, x: Tensor) -> Tensor:
        """max(x, 0), elementwise."""
        return torch.relu(x)

    def first(self, x: Tensor) -> Tensor:
        """1 where x > 0, else 0 (a subgradient at 0)."""
        return (x > 0).to(x.dtype)

    def second(self, x: Tensor) -> Tensor:
        """Always raises: the second derivative of relu is a measure, zero almost everywhere."""
        raise NotImplementedError(
            "relu has no usable second derivative (zero almost everywhere, so a Hessian or a log-determinant built "
            "on it is meaningless); choose activation 'softplus' or 'gaussian_softplus' where Hessians are needed."
        )


_ACTIVATIONS: dict[str, type[Activation]] = {
    "softplus": Softplus,
    "gaussian_softplus": GaussianSoftplus,
    "relu": ReLU,
}


def make_activation(name: str) -> Activation:
    """Makes the activation of this name.

    Args:
        name: ``softplus``, ``gaussian_softplus`` or ``relu``.

    Raises:
        ValueError: for any other name.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation={name!r} is not known; choose one of {sorted(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]()
