"""Readouts psi: monotone maps from a latent to a nonnegative weight, each with its exact right inverse."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ReadoutName = Literal["softplus", "floored_relu", "exp", "square"]


class Readout(ABC):
    """A monotone scalar map psi(latent) = weight >= 0, applied elementwise.

    Subclass requirements: the three maps in closed form, with ``value(inverse(w)) == w`` for w >= ``floor``.

    Attributes:
        floor: the smallest weight whose latent can be had; smaller ones are raised to it by ``inverse``.
    """

    floor: float

    @abstractmethod
    def value(self, latent: Tensor) -> Tensor:
        """psi(latent), elementwise."""

    @abstractmethod
    def slope(self, latent: Tensor) -> Tensor:
        """psi'(latent), elementwise."""

    @abstractmethod
    def inverse(self, weights: Tensor) -> Tensor:
        """A latent with psi(latent) = max(weights, floor), elementwise."""


class Softplus(Readout):
    """psi(u) = log(1 + e^(beta u)) / beta.

    Args:
        beta: sharpness, positive; psi approaches relu as it grows.
        floor: smallest weight that ``inverse`` resolves.
    """

    def __init__(self, beta: float = 1.0, floor: float = 1e-6) -> None:
        self.beta, self.floor = beta, floor

    def value(self, latent: Tensor) -> Tensor:
        """log(1 + e^(beta u)) / beta, elementwise."""
        return -F.logsigmoid(-self.beta * latent) / self.beta

    def slope(self, latent: Tensor) -> Tensor:
        """sigmoid(beta u), elementwise."""
        return torch.sigmoid(self.beta * latent)

    def inverse(self, weights: Tensor) -> Tensor:
        """w + log(1 - e^(-beta w)) / beta, elementwise, for w at least the floor."""
        weights = weights.clamp(min=self.floor)
        return weights + torch.log(-torch.expm1(-self.beta * weights)) / self.beta


class FlooredReLU(Readout):
    """psi(u) = max(u, floor).

    Args:
        floor: smallest weight, nonnegative.
    """

    def __init__(self, floor: float = 0.0) -> None:
        self.floor = floor

    def value(self, latent: Tensor) -> Tensor:
        """max(u, floor), elementwise."""
        return latent.clamp(min=self.floor)

    def slope(self, latent: Tensor) -> Tensor:
        """1 where u is at least the floor, else 0."""
        return (latent >= self.floor).to(latent.dtype)

    def inverse(self, weights: Tensor) -> Tensor:
        """max(w, floor), elementwise."""
        return weights.clamp(min=self.floor)


class Exp(Readout):
    """psi(u) = e^u.

    Args:
        floor: smallest weight that ``inverse`` resolves.
    """

    def __init__(self, floor: float = 1e-6) -> None:
        self.floor = floor

    def value(self, latent: Tensor) -> Tensor:
        """e^u, elementwise."""
        return latent.exp()

    def slope(self, latent: Tensor) -> Tensor:
        """e^u, elementwise."""
        return latent.exp()

    def inverse(self, weights: Tensor) -> Tensor:
        """log max(w, floor), elementwise."""
        return weights.clamp(min=self.floor).log()


class Square(Readout):
    """psi(u) = u^2, monotone on u >= 0, where ``inverse`` lands.

    Args:
        floor: smallest weight that ``inverse`` resolves; at u = 0 itself the gradient vanishes.
    """

    def __init__(self, floor: float = 1e-6) -> None:
        self.floor = floor

    def value(self, latent: Tensor) -> Tensor:
        """u^2, elementwise."""
        return latent.square()

    def slope(self, latent: Tensor) -> Tensor:
        """2 u, elementwise."""
        return 2.0 * latent

    def inverse(self, weights: Tensor) -> Tensor:
        """sqrt(max(w, floor)), elementwise."""
        return weights.clamp(min=self.floor).sqrt()


def make_readout(name: str, beta: float = 1.0, floor: float | None = None) -> Readout:
    """Make the readout of this name.

    Args:
        name: ``softplus``, ``floored_relu``, ``exp`` or ``square``.
        beta: sharpness, for softplus only.
        floor: smallest weight; None for the readout's own default.

    Raises:
        ValueError: unknown name, beta not positive or given to another readout, negative floor.
    """
    if not (beta > 0.0 and math.isfinite(beta)):
        raise ValueError(f"beta={beta}: the softplus readout needs a finite positive sharpness.")
    if beta != 1.0 and name != "softplus":
        raise ValueError(f"beta={beta} belongs to readout='softplus', not to {name!r}; leave it at 1.")
    if floor is not None and not floor >= 0.0:
        raise ValueError(f"floor={floor}: a floor of nonnegative weights cannot be below 0.")
    if floor == 0.0 and name != "floored_relu":
        raise ValueError(f"floor=0 has no finite latent under readout={name!r}; give a positive floor.")
    kinds: dict[str, Callable[..., Readout]] = {
        "exp": Exp,
        "floored_relu": FlooredReLU,
        "softplus": partial(Softplus, beta),
        "square": Square,
    }
    if name not in kinds:
        raise ValueError(f"readout={name!r} is not known; choose one of {sorted(kinds)}.")
    return kinds[name](**({} if floor is None else {"floor": floor}))
