"""log Z by trapezoidal quadrature in one or two dimensions, on a region with a certified tail."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_lift.partition.base import Partition, PartitionEstimate, in_double, stored
from lightning_lift.partition.grids import halved, log_integral
from lightning_lift.partition.region import Grid, Region
from lightning_lift.partition.sampling import sample_line, sample_plane
from lightning_lift.partition.tails import log_tail_in_plane, log_tail_on_line
from lightning_lift.potential import Potential

_MAX_MOVES = 80  # each can double the window
_LEVEL_MARGIN = 4.0  # nats beyond -log(tolerance) at which the window's sides are put
_ERRORS = {True: 1e-2, False: 2e-3}  # nats, in training and in evaluation: larger ones are refined
_REFINEMENTS = 2  # each doubles the points along each dimension
_LARGEST_ERROR = 0.05  # nats
_ROUND_OFF = 256.0  # grid points of a window must be so many units of round-off apart
_COARSE_ENERGY = 1e-2  # nats of round-off in the least energy from which float32 will not do
_CHUNK = 1 << 15  # points evaluated together where no gradient is wanted


@dataclass(frozen=True)
class _Integral:
    """log Z as a number and as a tensor with gradient, its grid, the energies there, log tail fraction and error."""

    value: float
    log_partition: Tensor
    grid: Grid
    energies: Tensor
    log_tail: float
    error: float


class Quadrature(Partition):
    """Trapezoidal rule on a region that follows the density.

    The region is a box in coordinates that follow the density's correlation (see ``Region``), and its grid is densest
    where the density is. It grows until the mass outside, bounded from above by convexity, is below ``tail_tolerance``
    of the mass inside, shrinks when it has become far too wide, and ends where the support does. The grid is refined,
    by up to two doublings, until its error, estimated by halving the step, is below 0.01 nats in training and 0.002 in
    evaluation. Evaluation is in float64 where the device has it; so is training where float32 cannot tell the
    grid's points or energies apart.

    Its figures: ``tail_bound`` (a fraction of the mass), ``quadrature_error`` (nats), ``training_quadrature_error``
    (nats, distance of the training grid's log Z to this one) and ``log_partition_trusted`` (1 or 0: whether the error
    is at most 0.05 nats; a warning says so where one of the two is larger).

    Args:
        num_points: grid points along each dimension in training, at least, odd; None for 601 (D = 1) or 65 (D = 2).
        evaluation_points: likewise in evaluation; None for 4801 (D = 1) or 257 (D = 2).
        tail_tolerance: largest certified fraction of the mass outside the region.

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
        self._region: Region | None = None
        self._refined = 0  # doublings of the training grid
        self._grid: Grid | None = None

    @property
    def region(self) -> Region:
        """Where the density has been found.

        Raises:
            RuntimeError: before ``prepare``.
        """
        if self._region is None:
            raise RuntimeError(
                "Quadrature knows no window yet: call prepare(support, window), or fit with a data module."
            )
        return self._region

    @property
    def window(self) -> Tensor:
        """The box of ``region`` in its own coordinates, shape (2, D), float64."""
        return self.region.window

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Set the support, and the first window where none was restored from a checkpoint.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box for the start, or None for +-10 where the support is open.

        Raises:
            ValueError: D above 2, or an empty support.
        """
        dim = support.shape[1]
        if dim > 2:
            raise ValueError(
                f"Quadrature covers 1 or 2 dimensions and the data have {dim}; choose another partition estimator "
                "(Langevin) or fewer columns."
            )
        if not bool((support[0] < support[1]).all()):
            raise ValueError(f"support {support.tolist()}: each lower end must lie below the upper one.")
        support = support.detach().cpu().double()
        if self._region is None or not torch.equal(self._region.support, support):
            start = torch.tensor([[-10.0], [10.0]]).expand(2, dim) if window is None else window.detach().cpu()
            start = torch.where(torch.isfinite(support), support, start.double())
            self._region = Region(start, support, start.mean(0))

    def forward(self, potential: Potential) -> Tensor:
        """log Z with gradient, on the training grid, after moving the region if its tail bound asks for it.

        In the weights' precision, or in float64 where float32 could not hold it to 1e-4 nats.
        """
        found = self._integrate(potential, training=True)
        return found.log_partition.to(stored(found.value, potential).dtype)

    @torch.no_grad()
    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z on the evaluation grid, with the figures that the class documents.

        It is float64 where float32 could not hold it to 1e-4 nats.
        """
        with self._training_kept():
            training = self._integrate(potential, training=True).value
        with self._training_kept():
            found = self._integrate(potential, training=False)
        value = found.value
        figures = {
            "tail_bound": math.exp(min(found.log_tail, 0.0)),
            "quadrature_error": found.error,
            "training_quadrature_error": abs(training - value),
            "log_partition_trusted": float(found.error <= _LARGEST_ERROR),
        }
        for name, points in (("quadrature_error", "evaluation_points"), ("training_quadrature_error", "num_points")):
            if figures[name] > _LARGEST_ERROR:
                warnings.warn(
                    f"log Z = {value:.3f} by quadrature is not to be trusted: {name} is {figures[name]:.3f} nats (at "
                    f"most {_LARGEST_ERROR}); raise {points} of Quadrature.",
                    stacklevel=2,
                )
        return PartitionEstimate(stored(value, potential), figures)

    @torch.no_grad()
    def sample(self, potential: Potential, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws: inverse distribution function on the line, corrected grid draws in the plane."""
        with self._training_kept():
            found = self._integrate(potential, training=False)
        region, log_density = found.grid.region, found.grid.log_jacobian - found.energies
        like = next(iter(potential.weights.values()))
        potential = in_double(potential)

        def density(unit: Tensor) -> Tensor:
            x, log_jacobian = region.place(unit)
            return log_jacobian - _energies(potential, x)

        if potential.dim == 1:
            unit = sample_line(log_density, num_samples, generator)
        else:
            unit = sample_plane(log_density, density, num_samples, generator)
        return region.place(unit)[0].to(like)

    @contextmanager
    def _training_kept(self) -> Iterator[None]:
        # An evaluation (of averaged weights, or not at all after a resume) must not change where training goes on.
        kept = self._region, self._refined, self._grid
        try:
            yield
        finally:
            self._region, self._refined, self._grid = kept

    def grid_size(self, dim: int, training: bool) -> int:
        """Grid points along each dimension before any refinement.

        Args:
            dim: D.
            training: of the training grid; False for that of evaluation.
        """
        if training:
            return self.num_points or (601 if dim == 1 else 65)
        return self.evaluation_points or (4801 if dim == 1 else 257)

    def _integrate(self, potential: Potential, training: bool) -> _Integral:
        """log Z on a grid that fits the density and is fine enough."""
        like = next(iter(potential.weights.values()))
        epsilon = torch.finfo(like.dtype).eps
        level = _LEVEL_MARGIN - math.log(self.tail_tolerance)
        doublings = self._refined if training else 0
        double = not training
        for _ in range(_MAX_MOVES):
            size = (self.grid_size(potential.dim, training) - 1) * 2**doublings + 1
            grid = self._grid
            if grid is None or grid.region is not self.region or grid.size != size:
                grid = self._grid = Grid(self.region, size)
            double = double or grid.relative_step < _ROUND_OFF * epsilon
            used = in_double(potential) if double else potential
            on_grid = _energies(used, grid.points)
            energies = on_grid.detach().cpu().double()
            value = float(torch.logsumexp(grid.log_weights - energies, 0))
            if not double and abs(float(energies.min())) * epsilon > _COARSE_ENERGY:
                double = True
                continue
            log_partition = torch.logsumexp(grid.log_weights.to(on_grid) - on_grid, 0)
            if not math.isfinite(value):  # a diverged model: nothing to follow
                return _Integral(value, log_partition, grid, energies, math.nan, math.nan)
            log_tail = self._log_tail(used, grid, energies) - value
            moved = self.region.followed(grid, energies, level, log_tail <= math.log(self.tail_tolerance))
            if moved is not None:
                self._region = moved
                continue
            error, coarser = _errors(grid.log_jacobian - energies, value, size, potential.dim)
            if error > _ERRORS[training] and doublings < _REFINEMENTS:
                doublings += 1
                continue
            if training:
                self._refined = doublings - (doublings > 0 and coarser < 0.1 * _ERRORS[training])
            return _Integral(value, log_partition, grid, energies, log_tail, error)
        raise RuntimeError(
            f"the window has moved {_MAX_MOVES} times, to {self.window.tolist()}, and the mass outside is not yet "
            f"below {self.tail_tolerance:g}: the energy hardly grows, exp(-E) has no finite mass; raise "
            "strong_convexity."
        )

    def _log_tail(self, potential: Potential, grid: Grid, energies: Tensor) -> float:
        if potential.dim == 1:
            return log_tail_on_line(grid.points[:, 0], energies, grid.region.support[:, 0])
        edges = grid.region.free_edges(grid.size)
        on_edges = _energies(potential, edges.view(-1, 2)).detach().cpu().double() if len(edges) else edges
        widths = grid.region.window[1] - grid.region.window[0]
        return log_tail_in_plane(on_edges.view(-1, grid.size), float(energies.min()), float(widths.log().sum()))

    def get_extra_state(self) -> dict[str, Any]:
        """Region and refinement, for checkpoints."""
        if self._region is None:
            return {"window": None}
        return {**vars(self._region), "refined": self._refined}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` returned, here or in a version whose windows were not sheared."""
        state = dict(state)
        self._region, self._refined, self._grid = None, state.pop("refined", 0), None
        if state["window"] is not None:
            window, support = state["window"].double(), state["support"].double()
            self._region = Region(window, support, state.get("centre", window.mean(0)), state.get("shear", 0.0))


def _energies(potential: Potential, points: Tensor) -> Tensor:
    """E at points of any device and precision, in the potential's own; in pieces where no gradient is wanted."""
    like = next(iter(potential.weights.values()))
    points = points.to(like)
    if torch.is_grad_enabled() or len(points) <= _CHUNK:
        return potential.value(points)
    return torch.cat([potential.value(chunk) for chunk in points.split(_CHUNK)])


def _errors(log_values: Tensor, value: float, size: int, dim: int) -> tuple[float, float]:
    """Errors of log Z on a grid of the unit box and on every second of its points, by halving each; nats."""
    unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dim)
    errors: list[float] = []
    while len(errors) < 2 and size % 2:
        log_values, size = halved(log_values, size, dim), size // 2 + 1
        coarse = float(log_integral(log_values, unit, size))
        errors.append(abs(value - coarse))
        value = coarse
    # A kink can lie such that one halving happens to change nothing: the error falls with the square of the step.
    return max(errors[0], 0.25 * errors[-1]), errors[-1]
