"""Convex, non-decreasing activations with exact first, second and third derivatives.

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

# Above it log(1 + e^x) = x in float64, and e^x is finite in float32.
_LINEAR = 80.0

ActivationName = Literal["softplus", "gaussian_softplus", "relu"]


class Activation(ABC):
    """A convex, non-decreasing scalar function applied elementwise.

    Subclass requirements: ``value``, ``first``, ``second`` and ``third`` are elementwise on tensors of any shape, in
    closed form, finite for every finite input, and themselves differentiable by autograd.
    """

    twice_differentiable: bool = True

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """The function, elementwise."""

    def value_into(self, x: Tensor, out: Tensor) -> None:
        """``value`` written into ``out``, where autograd is off; override it to save passes over memory."""
        out.copy_(self.value(x))

    @abstractmethod
    def first(self, x: Tensor) -> Tensor:
        """The first derivative, elementwise, in [0, inf)."""

    @abstractmethod
    def second(self, x: Tensor) -> Tensor:
        """The second derivative, elementwise, nonnegative.

        Raises:
            NotImplementedError: the activation has a kink (``twice_differentiable`` is False).
        """

    @abstractmethod
    def third(self, x: Tensor) -> Tensor:
        """The third derivative, elementwise: what the gradient of a Hessian's log-determinant needs.

        Raises:
            NotImplementedError: the activation has a kink (``twice_differentiable`` is False).
        """

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First, second and third derivative, where autograd is off; override it where they share work."""
        return self.first(x), self.second(x), self.third(x)


class Softplus(Activation):
    """log(1 + e^x), derivatives sigmoid(x) and sigmoid(x) sigmoid(-x)."""

    def value(self, x: Tensor) -> Tensor:
        """log(1 + e^x), elementwise."""
        # logsigmoid has no threshold, and an exact derivative at 0 and far out; F.softplus and logaddexp do not.
        return -F.logsigmoid(-x)

    def value_into(self, x: Tensor, out: Tensor) -> None:
        """log(1 + e^x), elementwise, into ``out``; only its derivatives by autograd need the other form."""
        torch.nn.functional.softplus(x, 1.0, _LINEAR, out=out)  # type: ignore[call-arg]

    def first(self, x: Tensor) -> Tensor:
        """sigmoid(x), elementwise."""
        return torch.sigmoid(x)

    def second(self, x: Tensor) -> Tensor:
        """sigmoid(x) sigmoid(-x), elementwise."""
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def third(self, x: Tensor) -> Tensor:
        """sigmoid(x) sigmoid(-x) (sigmoid(-x) - sigmoid(x)), elementwise."""
        first, complement = torch.sigmoid(x), torch.sigmoid(-x)
        return (complement - first) * (first * complement)

    def derivatives(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First, second and third derivative, elementwise, from one pair of sigmoids."""
        first, complement = torch.sigmoid(x), (-x).sigmoid_()
        second = first * complement
        return first, second, complement.sub_(first).mul_(second)


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

    def third(self, x: Tensor) -> Tensor:
        """-x phi(x), elementwise."""
        return -x * self.second(x)


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
        """No value: the second derivative of relu is a measure, zero almost everywhere."""
        raise NotImplementedError(
            "relu has no usable second derivative (zero almost everywhere, so a Hessian or a log-determinant built "
            "on it is meaningless); choose activation 'softplus' or 'gaussian_softplus' where Hessians are needed."
        )

    def third(self, x: Tensor) -> Tensor:
        """No value, as for ``second``.

        Raises:
            NotImplementedError: always.
        """
        return self.second(x)


_ACTIVATIONS: dict[str, type[Activation]] = {
    "softplus": Softplus,
    "gaussian_softplus": GaussianSoftplus,
    "relu": ReLU,
}


def make_activation(name: str) -> Activation:
    """Make the activation of this name.

    Args:
        name: ``softplus``, ``gaussian_softplus`` or ``relu``.

    Raises:
        ValueError: for any other name.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation={name!r} is not known; choose one of {sorted(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]()
