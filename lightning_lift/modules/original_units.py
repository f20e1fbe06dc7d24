"""The units that a user sees: a density fitted in training units is scored and sampled in original ones."""

from abc import abstractmethod

import torch
from torch import Tensor

from lightning_lift.datamodules.units import Units
from lightning_lift.networks.base import check_points


class OriginalUnits:
    """A density of rows with original = location + scale * training (scale @ training with a matrix).

    What a name ends in ``_scaled`` for is in training units; everything else that is asked of a model is in original
    units.

    Subclass requirements: ``dim``, ``location`` of shape (D,) and ``scale`` of shape (D,) or (D, D),
    ``log_prob_scaled``, ``sample_scaled`` and ``_like_weights``.
    """

    dim: int
    location: Tensor
    scale: Tensor

    @abstractmethod
    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """Log-density in training units under the weights of evaluation, -inf outside the support.

        Args:
            x: points in training units and in the precision of the weights, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        raise NotImplementedError(f"{type(self).__name__} must define log_prob_scaled(x), in training units.")

    @abstractmethod
    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation.

        Args:
            num_samples: how many, n, at least 1.
            generator: of all random numbers, on the CPU.

        Returns:
            Shape (n, D).
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample_scaled(n, generator), in training units.")

    @abstractmethod
    def _like_weights(self, x: Tensor) -> Tensor:
        """Points in the precision (and on the device) of the weights."""

    def to_scaled(self, x: Tensor) -> Tensor:
        """Points in original units to training ones, in the precision of the weights: shape (N, D).

        Args:
            x: points in original units, shape (N, D).
        """
        check_points(x, self.dim)
        return self._like_weights(self._units(x).apply(x))

    def to_original(self, x: Tensor) -> Tensor:
        """Points in training units, shape (N, D), to original ones."""
        return self._units(x).invert(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density in original units under the weights of evaluation, -inf outside the support.

        Args:
            x: points in original units, shape (N, D); float64 where a column's mean is far above its spread.

        Returns:
            Shape (N,), nats, in the precision of the weights.
        """
        log_prob = self.log_prob_scaled(self.to_scaled(x))
        return log_prob - self._units(log_prob).log_det.to(log_prob.dtype)

    def _units(self, like: Tensor) -> Units:
        return Units(_beside(self.location, like), _beside(self.scale, like))

    @torch.no_grad()
    def sample(self, num_samples: int, seed: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws in original units under the weights of evaluation.

        Without a seed or a generator they come from torch's global random state: other ones at each call, and the same
        ones again behind ``torch.manual_seed``.

        Args:
            num_samples: how many, n.
            seed: of a generator of the call's own, which leaves the global state alone.
            generator: to draw from; one on another device than the CPU only seeds the one that is used, so that all
                devices draw equal numbers.

        Returns:
            Shape (n, D), float64 where the device has it.

        Raises:
            ValueError: ``num_samples`` is below 1, or both a seed and a generator are given.
            RuntimeError: points that are not found, where the draws are noise through an inverse map.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: ask for at least one draw.")
        return self.to_original(self.sample_scaled(num_samples, _cpu_generator(seed, generator)))


def _beside(units: Tensor, x: Tensor) -> Tensor:
    if units.device == x.device:
        return units  # no operation: torch.export
    return units.to(x.device, torch.float32 if x.device.type == "mps" else units.dtype)


def _cpu_generator(seed: int | None, generator: torch.Generator | None) -> torch.Generator:
    if seed is not None and generator is not None:
        raise ValueError(f"seed={seed} and a generator: give one of them, or neither for torch's global random state.")
    if generator is None:
        return torch.default_generator if seed is None else torch.Generator().manual_seed(seed)
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(int(torch.randint(2**32, (), generator=generator, device=generator.device)))
