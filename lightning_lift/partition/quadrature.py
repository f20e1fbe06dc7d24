"""log Z by trapezoidal quadrature in one or two dimensions, on a window with a certified tail."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_lift.partition.base import Partition, PartitionEstimate
from lightning_lift.partition.grids import grid_points, halved, log_integral
from lightning_lift.partition.sampling import sample_line, sample_plane
from lightning_lift.partition.tails import log_tail_outside_ellipse, log_tails_from_grid
from lightning_lift.potential import Potential

MAX_MOVES = 40  # each can double the window
LEVEL_MARGIN = 6.0  # nats beyond -log(tolerance) at which the window's sides are put


class Quadrature(Partition):
    """Trapezoidal rule on a window that follows the density.

    Where the support is open, the window grows until the mass outside, bounded from above by convexity, is below
    ``tail_tolerance`` of the mass inside, and shrinks when it has become far too wide for the grid. Where the support
    ends, the window ends there too. The error inside is estimated by halving the step and reported apart.

    Args:
        num_points: grid points along each dimension in training, odd; None for 601 (D = 1) or 65 (D = 2).
        evaluation_points: likewise in evaluation; None for 4801 (D = 1) or 257 (D = 2).
        tail_tolerance: largest certified fraction of the mass outside the window.

    Raises:
        ValueError: even or too few points, or a tolerance outside (0, 1e-2].
    """

    def __init__(
        self,
        num_points: int | None = None,
        evaluation_points: int | None = None,
        tail_tolerance: float = 1e-6,
    ) -> None:
        super().__init__()
        for name, number in (("num_points", num_points), ("evaluation_points", evaluation_points)):
            if number is not None and (number < 5 or number % 2 == 0):
                raise ValueError(f"{name}={number}: give an odd number of at least 5, so that the step can be halved.")
        if not 0.0 < tail_tolerance <= 1e-2:
            raise ValueError(f"tail_tolerance={tail_tolerance}: give a fraction of the mass in (0, 0.01].")
        self.num_points = num_points
        self.evaluation_points = evaluation_points
        self.tail_tolerance = tail_tolerance
        self._support: Tensor | None = None
        self._window: Tensor | None = None

    @property
    def window(self) -> Tensor:
        """The present window, shape (2, D).

        Raises:
            RuntimeError: before ``prepare``.
        """
        if self._window is None:
            raise RuntimeError(
                "Quadrature knows no window yet: call prepare(support, window), or fit with a data module."
            )
        return self._window

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Sets the support, and the first window where none was restored from a checkpoint.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box for the start, or None for +-10 where the support is open.

        Raises:
            ValueError: D above 2, an empty support, or in the plane a support that is neither open nor a box.
        """
        dim = support.shape[1]
        if dim > 2:
            raise ValueError(
                f"Quadrature covers 1 or 2 dimensions and the data have {dim}; choose another partition estimator "
                "(Langevin) or fewer columns."
            )
        if not bool((support[0] < support[1]).all()):
            raise ValueError(f"support {support.tolist()}: each lower end must lie below the upper one.")
        finite = torch.isfinite(support)
        if dim == 2 and bool(finite.any()) and not bool(finite.all()):
            raise ValueError(f"support {support.tolist()}: in the plane it must be open on all sides or a finite box.")
        self._support = support.detach().cpu().float()
        if self._window is None or not bool((self._window[finite] == self._support[finite]).all()):
            start = torch.tensor([[-10.0], [10.0]]).expand(2, dim) if window is None else window.detach().cpu().float()
            self._window = torch.where(finite.cpu(), self._support, start)

    def forward(self, potential: Potential) -> Tensor:
        """log Z with gradient, on the training grid, after moving the window if its tail bound asks for it."""
        return self._log_partition(potential, self._size(potential, training=True))[0]

    @torch.no_grad()
    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z on the evaluation grid, with ``tail_bound`` (fraction) and ``quadrature_error`` (nats)."""
        size = self._size(potential, training=False)
        with self._training_window_kept():
            log_partition, energies, log_tail = self._log_partition(potential, size)
            coarse = log_integral(-halved(energies, size, potential.dim), self._on(energies), size // 2 + 1)
        return PartitionEstimate(
            log_partition,
            {
                "tail_bound": math.exp(min(log_tail - float(log_partition), 0.0)),
                "quadrature_error": abs(float(log_partition - coarse)),
            },
        )

    @torch.no_grad()
    def sample(self, potential: Potential, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws: inverse distribution function on the line, corrected grid draws in the plane."""
        size = self._size(potential, training=False)
        with self._training_window_kept():
            _, energies, _ = self._log_partition(potential, size)
            window = self._on(energies)
        if potential.dim == 1:
            return sample_line(-energies, window, num_samples, generator)
        return sample_plane(-energies, lambda x: -potential.value(x), window, size, num_samples, generator)

    @contextmanager
    def _training_window_kept(self) -> Iterator[None]:
        # An evaluation (of averaged weights, or not at all after a resume) must not change where training goes on.
        window = self._window
        try:
            yield
        finally:
            self._window = window

    def grid_size(self, dim: int, training: bool) -> int:
        """Grid points along each dimension.

        Args:
            dim: D.
            training: of the training grid; False for that of evaluation.
        """
        if training:
            return self.num_points or (601 if dim == 1 else 65)
        return self.evaluation_points or (4801 if dim == 1 else 257)

    def _size(self, potential: Potential, training: bool) -> int:
        return self.grid_size(potential.dim, training)

    def _on(self, energies: Tensor) -> Tensor:
        return self.window.to(energies)

    def _log_partition(self, potential: Potential, size: int) -> tuple[Tensor, Tensor, float]:
        """log Z, the energies on the grid and the log of the bound on the mass outside."""
        weight = next(iter(potential.weights.values()))
        for _ in range(MAX_MOVES):
            window = self.window.to(weight)
            energies = potential.value(grid_points(window, size))
            log_partition = log_integral(-energies, window, size)
            log_tail = self._log_tail(potential, energies.detach(), window, size)
            if not self.follow(energies.detach(), float(log_partition.detach()), log_tail, size):
                return log_partition, energies, log_tail
        raise RuntimeError(self.never_ends())

    def follow(self, energies: Tensor, log_mass: float, log_tail: float, size: int) -> bool:
        """Moves the window where it does not hold the density; everything must then be computed again.

        Args:
            energies: E on the grid of the present window, shape (size^D,), without gradient.
            log_mass: log Z on it, nats.
            log_tail: log of the bound on the mass outside.
            size: grid points along each dimension.

        Returns:
            Whether it has moved.
        """
        if not math.isfinite(log_mass):  # a diverged model: nothing to follow
            return False
        proposal = self._propose(energies, log_tail - log_mass, size)
        if proposal is None:
            return False
        self._window = proposal
        return True

    def never_ends(self) -> str:
        """What to say when the window has moved ``MAX_MOVES`` times in one step."""
        return (
            f"the window grew to {self.window.tolist()} and the mass outside is not yet below "
            f"{self.tail_tolerance:g}: the energy hardly grows, exp(-E) has no finite mass; raise strong_convexity."
        )

    def _log_tail(self, potential: Potential, energies: Tensor, window: Tensor, size: int) -> float:
        if not bool(self.open_sides.any()):
            return -math.inf
        if potential.dim == 2:
            return log_tail_outside_ellipse(potential, window)
        return self.log_tail_on_line(energies, size)

    def log_tail_on_line(self, energies: Tensor, size: int) -> float:
        """log of the bound on the mass outside the present window, in one dimension.

        Args:
            energies: E on its grid, shape (size,).
            size: grid points.
        """
        window = self.window.to(energies)
        step = float(window[1, 0] - window[0, 0]) / (size - 1)
        tails = log_tails_from_grid(energies, step)
        largest = max((t for t, is_open in zip(tails, self.open_sides[:, 0].tolist(), strict=True) if is_open))
        return largest + math.log(2.0)

    @property
    def level(self) -> float:
        """Nats above the energy's minimum at which the window's sides are put."""
        return LEVEL_MARGIN - math.log(self.tail_tolerance)

    @property
    def open_sides(self) -> Tensor:
        """Which ends of the support are infinite, boolean, shape (2, D)."""
        assert self._support is not None
        return torch.isinf(self._support)

    def _propose(self, energies: Tensor, log_tail_fraction: float, size: int) -> Tensor | None:
        """Another window, or None if the present one will do.

        The sides are put where the energy has risen by a level above its minimum; a side that the level set touches
        moves outwards by half the width.
        """
        open_sides = self.open_sides
        if not bool(open_sides.any()):
            return None
        window = self.window
        dim = window.shape[1]
        covered = log_tail_fraction <= math.log(self.tail_tolerance)
        inside = (energies - energies.min() < self.level).view([size] * dim).cpu()
        proposal = window.clone()
        for axis in range(dim):
            occupied = inside if dim == 1 else inside.any(1 - axis)
            indices = occupied.nonzero().flatten()
            first, last = int(indices[0]), int(indices[-1])
            width = float(window[1, axis] - window[0, axis])
            step = width / (size - 1)
            margin = (0.1 if dim == 1 else 0.35) * max(last - first, 4) * step
            for side, (index, edge, outwards) in enumerate(((first, 0, -1.0), (last, size - 1, 1.0))):
                if not bool(open_sides[side, axis]):
                    continue
                if index == edge:
                    proposal[side, axis] = window[side, axis] + outwards * 0.5 * width
                else:
                    proposal[side, axis] = window[0, axis] + index * step + outwards * margin
        if not covered and bool(torch.isinf(energies).any()):
            return proposal  # energies overflow at the window's edge: it reaches too far for any bound
        if not covered:
            # Outwards only, or the window could swing; where the level set fits already, the bound needs the room.
            outer = torch.stack([torch.minimum(proposal[0], window[0]), torch.maximum(proposal[1], window[1])])
            return self._widened(window, open_sides) if torch.equal(outer, window) else outer
        much_too_wide = bool((proposal[1] - proposal[0] < 0.6 * (window[1] - window[0])).any())
        return proposal if much_too_wide else None

    @staticmethod
    def _widened(window: Tensor, open_sides: Tensor) -> Tensor:
        quarter = 0.25 * (window[1] - window[0])
        return torch.where(open_sides, window + torch.stack([-quarter, quarter]), window)

    def get_extra_state(self) -> dict[str, Any]:
        """Window and support, for checkpoints."""
        return {"window": self._window, "support": self._support}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores what ``get_extra_state`` gave."""
        self._window, self._support = state["window"], state["support"]
