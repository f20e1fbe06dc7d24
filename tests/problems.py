"""Convex problems with closed forms, and small files of others'."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_lift.networks import ConvexNetwork
from lightning_lift.networks.base import Derivatives
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


class Separable(Quadratic):
    """E(x) = s sum e(z), z standardised, with e and its derivatives in closed form."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e, e' and e'', elementwise."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.stiffness * self.energy(self._standard(x))[0].sum(1)

    def derivatives(self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2) -> Derivatives:
        stiffness = weights.get("stiffness", self.stiffness)
        value, first, second = self.energy(self._standard(x))
        hessian = torch.diag_embed(stiffness * second / self.sd**2) if order == 2 else None
        return Derivatives(stiffness * value.sum(1), stiffness * first / self.sd, hessian)

    @property
    def log_partition(self) -> float:
        """Of exp(-E) for s = 1 where exp(-e) integrates to 1."""
        return self.dim * math.log(self.sd)


class SeparableGumbel(Separable):
    """e(z) = z + e^-z: a product of Gumbels when s = 1."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay = torch.exp(-z)
        return z + decay, 1.0 - decay, decay


class LogisticEnergy(Separable):
    """e(z) = z + 2 log(1 + e^-z): a product of logistics when s = 1."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = torch.sigmoid(z)
        return z - 2.0 * torch.nn.functional.logsigmoid(z), 2.0 * share - 1.0, 2.0 * share * (1.0 - share)


class LaplaceEnergy(Separable):
    """e(z) = |z|: a product of Laplaces when s = 1, with a kink at the mode and a Hessian of zero elsewhere."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return z.abs(), z.sign(), torch.zeros_like(z)

    @property
    def log_partition(self) -> float:
        return self.dim * math.log(2.0 * self.sd)


class GammaEnergy(Separable):
    """e(z) = z - log z for z > 0: a product of Gamma(2) when s = 1, on the support x > mean."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return z - z.log(), 1.0 - 1.0 / z, 1.0 / z.square()


class ExponentialEnergy(Separable):
    """e(z) = z for z > 0: a product of exponentials when s = 1, largest at the end of its support x > mean."""

    def energy(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return z, torch.ones_like(z), torch.zeros_like(z)


class CorrelatedQuadratic(Quadratic):
    """E(x) = s (x - mean)^T P (x - mean) / 2 with P's eigenvalues spread over a condition number, in random axes."""

    def __init__(self, dim: int, condition: float = 10.0, mean: float = 0.0) -> None:
        super().__init__(dim, mean)
        axes = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(dim)))[0]
        eigenvalues = torch.logspace(0.0, math.log10(condition), dim)
        self.register_buffer("precision", (axes * eigenvalues) @ axes.T)
        self.log_determinant = float(eigenvalues.log().sum())

    def forward(self, x: Tensor) -> Tensor:
        z = x - self.mean
        return 0.5 * self.stiffness * ((z @ self.precision) * z).sum(1)

    def derivatives(self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2) -> Derivatives:
        stiffness = weights.get("stiffness", self.stiffness)
        z = x - self.mean
        slope = stiffness * (z @ self.precision)
        hessian = (stiffness * self.precision).expand(len(x), -1, -1) if order == 2 else None
        return Derivatives(0.5 * (slope * z).sum(1), slope, hessian)

    @property
    def log_partition(self) -> float:
        return 0.5 * (self.dim * math.log(2.0 * math.pi) - self.log_determinant)


class Shifted(ConvexNetwork):
    """E + c of another energy E: the same density, log Z less by c."""

    def __init__(self, inner: Quadratic, constant: float) -> None:
        super().__init__()
        self.dim, self.inner, self.constant = inner.dim, inner, constant

    def nonnegative_names(self) -> tuple[str, ...]:
        return tuple(f"inner.{name}" for name in self.inner.nonnegative_names())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.constant

    def derivatives(self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2) -> Derivatives:
        own = {name.removeprefix("inner."): weight for name, weight in weights.items()}
        value, gradient, hessian = self.inner.derivatives(x, own, order)
        return Derivatives(value + self.constant, gradient, hessian)

    @property
    def log_partition(self) -> float:
        return self.inner.log_partition - self.constant


def potential_of(network: ConvexNetwork) -> Potential:
    """The network under its own weights."""
    parameters = dict(network.named_parameters())
    return Potential(network, {name: parameters[name] for name in network.nonnegative_names()})


def benchmark_pair(dim: int) -> dict[str, Any]:
    """Arrays of two small random networks, named as the Wasserstein-2 benchmark's files have them."""
    normals = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    arrays = {}
    for which in ("v1", "v2"):
        for layer, width in enumerate((6, 5)):
            name = f"{which}.quadratic_layers.{layer}."
            arrays[f"{name}quadratic_decomposed"] = normals(dim, 1, width).numpy()
            arrays[f"{name}weight"], arrays[f"{name}bias"] = normals(width, dim).numpy(), normals(width).numpy()
        arrays[f"{which}.convex_layers.0.weight"] = normals(5, 6).abs().numpy()
        arrays[f"{which}.final_layer.weight"] = normals(1, 5).abs().numpy()
    return arrays
