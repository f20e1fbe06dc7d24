"""The units that a user sees: a density fitted in training units is scored and sampled in original ones."""

from abc import abstractmethod

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import Batch
from lightning_lift.datamodules.units import Units
from lightning_lift.networks.base import check_points

_REDRAWS = 100  # of draws outside the support


class TrainingUnits:
    """Rows with original = location + scale * training (scale @ training with a matrix).

    What a name ends in ``_scaled`` for is in training units; everything else that is asked of a model is in original
    units.

    Subclass requirements: ``dim``, ``location`` of shape (D,), ``scale`` of shape (D,) or (D, D), ``_like_weights``.
    """

    dim: int
    location: Tensor
    scale: Tensor

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

    def _units(self, like: Tensor) -> Units:
        return Units(_beside(self.location, like), _beside(self.scale, like))


class OriginalUnits(TrainingUnits):
    """A density of rows.

    Subclass requirements: those of ``TrainingUnits``, ``log_prob_scaled`` and ``sample_scaled``.
    """

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

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density in original units under the weights of evaluation, -inf outside the support.

        Args:
            x: points in original units, shape (N, D); float64 where a column's mean is far above its spread.

        Returns:
            Shape (N,), nats, in the precision of the weights.
        """
        log_prob = self.log_prob_scaled(self.to_scaled(x))
        return log_prob - self._units(log_prob).log_det.to(log_prob.dtype)

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


class ConditionalUnits(TrainingUnits):
    """A density of rows at a context, for each context one.

    Rows that the density is no model of, outside the support, have the log-density -inf, and are not drawn.

    Subclass requirements: those of ``TrainingUnits``, ``context_units``, ``support``, ``log_prob_scaled`` and
    ``sample_scaled``.
    """

    support: Tensor

    @abstractmethod
    def context_units(self) -> Units | None:
        """Those of the context; None where training units are the original ones."""

    @abstractmethod
    def log_prob_scaled(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density in training units under the weights of evaluation, on the whole space.

        Args:
            x: points, shape (N, D).
            context: one a point, shape (N, ...), or one for all, (1, ...).

        Returns:
            Shape (N,), nats.
        """

    @abstractmethod
    def sample_scaled(self, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation, on the whole space.

        Args:
            num_samples: how many at each context, n.
            context: shape (B, ...).
            generator: of all random numbers, on the CPU.

        Returns:
            Shape (n, B, D), contiguous.
        """

    def to_batch(self, x: Tensor, context: Tensor) -> Batch:
        """Points and contexts in original units, brought into training ones and the precision of the weights.

        Args:
            x: points, shape (N, D).
            context: theirs, shape (N, ...).
        """
        return Batch(self.to_scaled(x), self._scaled_context(context))

    def _scaled_context(self, context: Tensor) -> Tensor:
        units = self.context_units()
        if units is not None:
            context = Units(*(_beside(part, context) for part in units)).apply(context)
        return self._like_weights(context) if context.is_floating_point() else context

    def log_prob(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density in original units under the weights of evaluation, -inf outside the support; differentiable.

        Args:
            x: points in original units, shape (N, D).
            context: in original units, one a point, shape (N, ...), or one for all, (1, ...).

        Returns:
            Shape (N,), nats, in the precision of the weights.
        """
        rows = self.to_scaled(x)
        log_prob = self.log_prob_scaled(rows, self._scaled_context(context))
        log_prob = log_prob - self._units(log_prob).log_det.to(log_prob.dtype)
        return torch.where(self._inside(rows), log_prob, -torch.inf)

    def _inside(self, rows: Tensor) -> Tensor:
        low, high = self.support.to(rows)
        outside: Tensor = ((rows < low) | (rows > high)).any(1)
        return ~outside  # NaN is not outside

    @torch.no_grad()
    def sample(
        self, num_samples: int, context: Tensor, seed: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Independent draws at each context, in original units, under the weights of evaluation.

        Draws outside the support are drawn again. Without a seed or a generator they come from torch's global state.

        Args:
            num_samples: how many at each context, n.
            context: in original units, shape (B, ...).
            seed: of a generator of the call's own, which leaves the global state alone.
            generator: to draw from.

        Returns:
            Shape (n, B, D), float64 where the device has it.

        Raises:
            ValueError: ``num_samples`` is below 1, or both a seed and a generator are given.
            RuntimeError: draws that are not found, or none of some context is within the support.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: ask for at least one draw.")
        source, entries = _cpu_generator(seed, generator), self._scaled_context(context)
        draws = self.sample_scaled(num_samples, entries, source)
        rows = draws.view(-1, self.dim)
        for _ in range(_REDRAWS):
            outside = (~self._inside(rows)).nonzero().squeeze(1)
            if not len(outside):
                return self.to_original(draws.flatten(0, 1)).view(draws.shape)
            rows[outside] = self.sample_scaled(1, entries[outside % len(entries)], source)[0]
        raise RuntimeError(
            f"{len(outside)} of {len(rows)} draws were outside the support {_REDRAWS} times in a row, in training "
            f"units {self.support.tolist()}: the density leaks out of it; train it further, or take the support away."
        )


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
