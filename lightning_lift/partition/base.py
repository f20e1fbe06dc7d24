"""The contract of a log-partition estimator: log Z of exp(-E) for a convex energy E."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

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
    """Estimates log Z of p(x) = exp(-E(x)) / Z.

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
        """Tells the estimator where the density lives.

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
    def sample(self, potential: Potential, num_samples: int, seed: int) -> Tensor:
        """Independent draws from exp(-E) / Z.

        Args:
            potential: the energy.
            num_samples: how many, n.
            seed: of the draws' own generator.

        Returns:
            Shape (n, D).
        """
