"""The contract of a log-partition estimator: log Z of exp(-E) for a convex energy E."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_lift.potential import Potential


@dataclass(frozen=True)
class PartitionEstimate:
    """log Z for evaluation, with what is known of its error.

    Attributes:
        log_partition: log Z in nats, a 0-d tensor.
        diagnostics: named figures on its accuracy, logged beside it (for quadrature: ``tail_bound``, a fraction of
            the mass, and ``quadrature_error``, in nats).
    """

    log_partition: Tensor
    diagnostics: dict[str, float]


class Partition(nn.Module, ABC):
    """Estimate log Z of p(x) = exp(-E(x)) / Z.

    Subclass requirements: ``prepare`` checks the problem, ``forward`` gives a scalar whose gradient in the weights is
    that of log Z, ``evaluate`` the best log Z that can be had, with its error, and ``sample`` draws from the density.
    State that must survive a checkpoint goes into ``get_extra_state`` (weight averaging blends buffers). Optional:
    ``evaluate_quickly`` for validation, and ``diagnostics`` on the state of training.

    Attributes:
        sampling_diagnostics: figures on the last draws of ``sample``; empty where they are exact.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sampling_diagnostics: dict[str, float] = {}

    @abstractmethod
    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Tell the estimator where the density lives.

        Args:
            support: low and high row, shape (2, D), infinite where the support is open.
            window: a finite box, shape (2, D), that holds most of the mass of the data, or None.

        Raises:
            ValueError: a problem that this estimator cannot treat.
        """

    @abstractmethod
    def forward(self, potential: Potential) -> Tensor:
        """A scalar whose gradient is that of log Z; log Z itself where the estimator can."""

    @abstractmethod
    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z for evaluation, without gradient."""

    def evaluate_quickly(self, potential: Potential) -> PartitionEstimate:
        """log Z for validation, without gradient: by default what ``evaluate`` gives."""
        return self.evaluate(potential)

    def diagnostics(self) -> dict[str, float]:
        """Figures on the estimator's state in training, logged in validation: by default none."""
        return {}

    @abstractmethod
    def sample(self, potential: Potential, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws from exp(-E) / Z.

        Args:
            potential: the energy.
            num_samples: how many, n.
            generator: of all random numbers, on the CPU.

        Returns:
            Shape (n, D).
        """


def in_double(potential: Potential) -> Potential:
    """The potential in float64, of its own weights; as it is where the device has no float64."""
    like = next(iter(potential.weights.values()))
    return potential if like.device.type == "mps" else potential.to(torch.float64)


def stored(value: float, potential: Potential) -> Tensor:
    """log Z as a 0-d tensor in the weights' precision, or in float64 where float32 could not hold it to 1e-4 nats."""
    like = next(iter(potential.weights.values()))
    large = abs(value) > 1000.0 and like.device.type != "mps"
    return torch.tensor(value, dtype=torch.float64 if large else like.dtype, device=like.device)


class EstimateMemory:
    """One estimate for each key, forgotten when the potential's tensors have changed.

    An evaluation that is the same each time is made once: a figure that asks for the log-density at each of its points
    gets it at once.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[Tensor], PartitionEstimate]] = {}

    def recall(self, key: Hashable, potential: Potential) -> PartitionEstimate | None:
        """The estimate of this key, or None where there is none of this very potential."""
        known = self._known.get(key)
        return known[1] if known is not None and _equal(known[0], _tensors(potential)) else None

    def keep(self, key: Hashable, potential: Potential, estimate: PartitionEstimate) -> PartitionEstimate:
        """Keep an estimate in the place of the one before, and return it."""
        self._known[key] = ([tensor.detach().clone() for tensor in _tensors(potential)], estimate)
        return estimate

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


def _tensors(potential: Potential) -> list[Tensor]:
    return [*potential.weights.values(), *potential.network.parameters(), *potential.network.buffers()]


def _equal(known: list[Tensor], tensors: list[Tensor]) -> bool:
    return len(known) == len(tensors) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
        for a, b in zip(known, tensors, strict=True)
    )
