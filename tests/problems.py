"""Convex problems with closed forms."""

import math

import torch
from torch import Tensor, nn

from lightning_lift.networks import ConvexNetwork
from lightning_lift.potential import Potential


class Quadratic(ConvexNetwork):
    """E(x) = s |(x - mean) / sd|^2 / 2, one weight s: a Gaussian when s = 1. Derivatives by the generic fallback."""

    def __init__(self, dim: int, mean: float = 0.0, sd: float = 1.0) -> None:
        super().__init__()
        self.dim, self.mean, self.sd = dim, mean, sd
        self.stiffness = nn.Parameter(torch.ones(()))

    def nonnegative_names(self) -> tuple[str, ...]:
        return ("stiffness",)

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.sd

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.stiffness * self._standard(x).square().sum(1)

    @property
    def log_partition(self) -> float:
        return self.dim * (math.log(self.sd) + 0.5 * math.log(2.0 * math.pi))


class GumbelEnergy(Quadratic):
    """E(x) = s sum(z + e^-z), z standardised: a product of Gumbels when s = 1."""

    def forward(self, x: Tensor) -> Tensor:
        z = self._standard(x)
        return self.stiffness * (z + torch.exp(-z)).sum(1)

    @property
    def log_partition(self) -> float:
        return self.dim * math.log(self.sd)


def potential_of(network: ConvexNetwork) -> Potential:
    """The network under its own weights."""
    parameters = dict(network.named_parameters())
    return Potential(network, {name: parameters[name] for name in network.nonnegative_names()})
