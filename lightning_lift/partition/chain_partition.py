"""What the estimators by Markov chains share: coordinates, the start, and draws."""

import torch
from torch import Tensor

from lightning_lift.partition.base import Partition
from lightning_lift.partition.coordinates import Coordinates, Target
from lightning_lift.partition.hmc import draw
from lightning_lift.potential import Potential


class ChainPartition(Partition):
    """Base of estimators that work in any number of dimensions, in unconstrained coordinates.

    Subclass requirements: ``forward`` and ``evaluate``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._coordinates: Coordinates | None = None
        self._guess: Tensor | None = None

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Set the support, and where the search of the mode starts.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box that holds most of the data, or None.

        Raises:
            ValueError: an empty support.
        """
        coordinates = Coordinates(support.detach().cpu().float())
        middle = torch.zeros(1, coordinates.dim)
        if window is not None:
            middle = coordinates.to_unconstrained(window.detach().cpu().float().mean(0, keepdim=True))
        self._coordinates, self._guess = coordinates, middle[0]

    def problem(self, potential: Potential) -> tuple[Target, Tensor]:
        """The energy in unconstrained coordinates, and a point, shape (D,), for the search of its mode.

        Args:
            potential: the energy.

        Raises:
            RuntimeError: before ``prepare``.
        """
        if self._coordinates is None or self._guess is None:
            raise RuntimeError(
                f"{type(self).__name__} knows no support yet: call prepare(support, window), or fit with a data module."
            )
        target = Target(potential, self._coordinates)
        return target, self._guess.to(target.like)

    @torch.no_grad()
    def sample(self, potential: Potential, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws by many Hamiltonian chains; ``sampling_diagnostics`` says how well they have mixed.

        Args:
            potential: the energy.
            num_samples: how many, n.
            generator: of all random numbers, on the CPU.

        Returns:
            Shape (n, D).
        """
        points, self.sampling_diagnostics = draw(*self.problem(potential), num_samples, generator)
        return points
