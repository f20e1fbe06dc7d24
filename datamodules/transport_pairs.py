"""Pairs of distributions between which the optimal map is known: what a transport is judged on."""

import math
import os
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.gaussian_maps import gaussian_distance, gaussian_map, symmetric_root
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.transport import TransportDataModule

_SPREAD = 0.4  # of a component of the mixture along each of its directions
_TEMPERATURE, _PLANES = 0.5, 10  # of the log-sum-exp
_MAP_DRAWS, _VALUE_DRAWS, _AT_ONCE = 2**14, 2**17, 4096


class KnownTransportDataModule(TransportDataModule):
    """Base of pairs with a known optimal map, the gradient of a convex function: Q is where it takes P.

    Subclass requirements: ``draw``, ``map``; what they read is set before ``super().__init__``, and
    ``save_hyperparameters()`` is called behind it.

    Args:
        dim: Dimension D.
        **settings: Of :class:`TransportDataModule` from ``batch_size`` on.
    """

    def __init__(self, dim: int, **settings: Any) -> None:
        check_counts(dim=dim)
        self._known: tuple[float, float] | None = None
        super().__init__(self.draw, lambda count, generator: self.map(self.draw(count, generator)), **settings)

    @abstractmethod
    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Rows of P, (num_rows, D), from the generator alone."""

    @abstractmethod
    def map(self, x: Tensor) -> Tensor:
        """The optimal map at rows of P, (N, D)."""

    @property
    def w2_half(self) -> float:
        """W2^2 / 2 between P and Q: E |T(x) - x|^2 / 2, by default over 2^17 draws."""
        return self._value()[0]

    @property
    def w2_half_error(self) -> float:
        """Its standard error; 0 for a closed form."""
        return self._value()[1]

    def _value(self) -> tuple[float, float]:
        if self._known is None:
            x = self.draw(_VALUE_DRAWS, generator_at(stream_seed(self.data_seed, "probe", 7), 0))
            cost = torch.cat([0.5 * (self.map(part) - part).double().square().sum(1) for part in x.split(_AT_ONCE)])
            self._known = float(cost.mean()), float(cost.std() / math.sqrt(len(cost)))
        return self._known


class GaussianPairDataModule(KnownTransportDataModule):
    """Two Gaussians with random means and covariances; the map is linear and W2 is known in closed form.

    Covariances are A A^T / D + I / 10 with A ~ N(0, 1) of shape (D, D), means N(0, I).

    Args:
        dim: Dimension D.
        pair_seed: Seed of means and covariances.
        **settings: Of :class:`TransportDataModule` from ``batch_size`` on.
    """

    def __init__(self, dim: int = 2, pair_seed: int = 0, **settings: Any) -> None:
        check_counts(dim=dim)
        generator = torch.Generator().manual_seed(pair_seed)
        sides = []
        for _ in range(2):
            a = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
            mean = torch.randn(dim, generator=generator, dtype=torch.float64)
            sides.append((mean, a @ a.T / dim + 0.1 * torch.eye(dim, dtype=torch.float64)))
        (self.source_mean, self.source_covariance), (self.target_mean, self.target_covariance) = sides
        self._root = symmetric_root(self.source_covariance).float()
        self._linear = gaussian_map(self.source_covariance, self.target_covariance)
        super().__init__(dim, **settings)
        self.name = "gaussian_pair"
        self.save_hyperparameters()

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Rows of P, (num_rows, D)."""
        noise = torch.randn(num_rows, len(self._root), generator=generator)
        return noise @ self._root + self.source_mean.float()

    def map(self, x: Tensor) -> Tensor:
        """The optimal map at rows of P, (N, D)."""
        return ((x.double() - self.source_mean) @ self._linear + self.target_mean).to(x)

    def _value(self) -> tuple[float, float]:
        covariances = self.source_covariance, self.target_covariance
        return 0.5 * gaussian_distance((self.source_mean, self.target_mean), covariances), 0.0


class _Mixture:
    """The source of the Wasserstein-2 benchmark: three Gaussians around the points of a Latin square in {-1, 0, 1}^D.

    Args:
        dim: Dimension D.
    """

    def __init__(self, dim: int) -> None:
        state = np.random.RandomState(0)
        centres = np.stack([state.choice(3, 3, replace=False) for _ in range(dim)], axis=1) - 1.0
        maps = state.normal(size=(3, dim, dim)).astype(np.float32)
        maps /= np.linalg.norm(maps, axis=2, keepdims=True)
        size = math.sqrt(((centres**2).sum(1).mean() + dim * _SPREAD**2) / dim)
        self.centres = torch.from_numpy(centres / size).float()
        self.maps = torch.from_numpy(_SPREAD * maps / size).float()

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        component = torch.randint(3, (num_rows,), generator=generator)
        noise = torch.randn(num_rows, self.centres.shape[1], generator=generator)
        parts = torch.stack([noise @ matrix.T for matrix in self.maps], dim=1)
        return parts[torch.arange(num_rows), component] + self.centres[component]


class LogSumExpPairDataModule(KnownTransportDataModule):
    """The benchmark's mixture of three Gaussians, moved by the gradient of a random log-sum-exp.

    T(x) = softmax((A x + b) / 0.5) A + 0.1 x, ten rows a of A ~ N(0, 1), b = -0.15 |a|^2 + 0.1 N(0, 1). How far from
    linear it is depends on the seed.

    Args:
        dim: Dimension D.
        pair_seed: Seed of A and b.
        **settings: Of :class:`TransportDataModule` from ``batch_size`` on.
    """

    def __init__(self, dim: int = 2, pair_seed: int = 0, **settings: Any) -> None:
        check_counts(dim=dim)
        generator = torch.Generator().manual_seed(pair_seed)
        self._planes = torch.randn(_PLANES, dim, generator=generator)
        noise = torch.randn(_PLANES, generator=generator)
        self._offsets = -0.15 * self._planes.square().sum(1) + 0.1 * noise
        self._mixture = _Mixture(dim)
        super().__init__(dim, **settings)
        self.name = "log_sum_exp_pair"
        self.save_hyperparameters()

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Rows of P, (num_rows, D)."""
        return self._mixture.draw(num_rows, generator)

    def map(self, x: Tensor) -> Tensor:
        """The optimal map at rows of P, (N, D)."""
        planes, offsets = self._planes.to(x), self._offsets.to(x)
        weights = torch.softmax((x @ planes.T + offsets) / _TEMPERATURE, dim=1)
        return weights @ planes + 0.1 * x


class W2BenchmarkDataModule(KnownTransportDataModule):
    """A Mix3ToMix10 pair of the Wasserstein-2 benchmark (Korotin et al., 2021), by the arrays of its potentials.

    The map is the sum of the gradients of two trained convex networks, shifted and divided so that its draws have mean
    0 and columns of mean variance 1.

    Args:
        path: A .npz file with the arrays ``v1.NAME`` and ``v2.NAME`` of both networks' state dictionaries.
        **settings: Of :class:`TransportDataModule` from ``batch_size`` on.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it does not hold these arrays.
    """

    def __init__(self, path: str, **settings: Any) -> None:
        path = os.fspath(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]).float() for name in file.files}
        self._networks = [
            {name.removeprefix(f"{which}."): array for name, array in arrays.items() if name.startswith(f"{which}.")}
            for which in ("v1", "v2")
        ]
        first = "quadratic_layers.0.quadratic_decomposed"
        if any(first not in network or "final_layer.weight" not in network for network in self._networks):
            raise ValueError(f"{path!r} has the arrays {sorted(arrays)[:4]}...: expected v1.{first} and so on, and v2.")
        dim = self._networks[0][first].shape[0]
        self._mixture = _Mixture(dim)
        moved = self._gradient(self._mixture.draw(_MAP_DRAWS, torch.Generator().manual_seed(7)))
        self._centre, self._size = moved.mean(0), moved.var(0).mean().sqrt()
        super().__init__(dim, **settings)
        self.name = "w2_benchmark"
        self.save_hyperparameters()

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Rows of P, (num_rows, D)."""
        return self._mixture.draw(num_rows, generator)

    def map(self, x: Tensor) -> Tensor:
        """The optimal map at rows of P, (N, D)."""
        return ((self._gradient(x.float()) - self._centre) / self._size).to(x)

    def _gradient(self, x: Tensor) -> Tensor:
        parts = []
        with torch.inference_mode(False), torch.enable_grad():
            for part in x.split(_AT_ONCE):
                rows = part.clone().requires_grad_()
                total = torch.stack([_benchmark_potential(network, rows).sum() for network in self._networks]).sum()
                parts.append(torch.autograd.grad(total, rows)[0])
        return torch.cat(parts)


def _benchmark_potential(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The benchmark's dense input-convex network with convex quadratic skips, (N, D) to (N,)."""

    def skip(layer: int) -> Tensor:
        name = f"quadratic_layers.{layer}."
        forms = torch.einsum("nd,drw->nrw", x, weights[f"{name}quadratic_decomposed"]).square().sum(1)
        return forms + x @ weights[f"{name}weight"].T + weights[f"{name}bias"]

    hidden = skip(0)
    for layer in range(sum(name.startswith("convex_layers.") for name in weights)):
        hidden = torch.celu(hidden @ weights[f"convex_layers.{layer}.weight"].T + skip(layer + 1))
    return (hidden @ weights["final_layer.weight"].T).squeeze(1) + 0.005 * x.square().sum(1)
