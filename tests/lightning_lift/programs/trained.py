"""Potentials and frozen functions for the tests of programs."""

import torch

from lightning_lift.datamodules.units import Units
from lightning_lift.networks import ICNN
from lightning_lift.potential import Potential
from lightning_lift.programs import ConvexFunction


def potential_of(network: ICNN) -> Potential:
    own = dict(network.named_parameters())
    return Potential(network, {name: own[name].detach() for name in network.nonnegative_names()})


def potential(dim: int, *, seed: int = 0, **options: object) -> Potential:
    """An ICNN of two small layers with every kind of term, at a random place."""
    torch.manual_seed(seed)
    network = ICNN(dim, **{"widths": (12, 8), "strong_convexity": 0.0, **options})  # type: ignore[arg-type]
    for layer in network.layers:
        if layer.actnorm is not None:
            for own in (layer.actnorm.log_scale, layer.actnorm.shift, layer.actnorm.center):
                own.data.normal_(0.0, 0.3)
    return potential_of(network)


class Frozen:
    """What programs see of a frozen model: f(x) = offset + factor E, in units that mix the columns."""

    def __init__(self, potential: Potential, factor: float = 1.0, support: torch.Tensor | None = None) -> None:
        generator = torch.Generator().manual_seed(3)
        dim = potential.dim
        matrix = torch.eye(dim).double() + 0.3 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        location = torch.linspace(-1.0, 2.0, dim, dtype=torch.float64)
        self.function = ConvexFunction(potential, Units(location, matrix), factor, 0.7, support)

    def convex_function(self) -> ConvexFunction:
        return self.function

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """f by the network, shape (N, D) to (N,), in float64."""
        units, energy = self.function.units, self.function.potential.to(torch.float64)
        u = torch.linalg.solve(units.scale, (x - units.location).T).T
        return self.function.offset + self.function.factor * energy.value(u)
