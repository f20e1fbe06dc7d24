"""Two-dimensional slices of a loss: the plane, what is projected on it, and the loss on a grid of its points."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NO_DIRECTION = 1e-6  # of the trajectory's size: below it a direction is round-off


@dataclass(frozen=True)
class Plane:
    """origin + c_1 direction_1 + c_2 direction_2 in a space of P numbers.

    Attributes:
        origin: shape (P,).
        directions: shape (2, P), linearly independent; orthonormal unless filter-normalised.
    """

    origin: Tensor
    directions: Tensor

    def point(self, coordinates: Tensor) -> Tensor:
        """The vector (P,) at coordinates (2,)."""
        return self.origin + coordinates.to(self.directions) @ self.directions

    def project(self, points: Tensor) -> Tensor:
        """Least-squares coordinates of points: argmin_c |origin + c D - point|, exact for points of the plane.

        Args:
            points: shape (T, P).

        Returns:
            Shape (T, 2), float64.
        """
        offsets = points.double() - self.origin.double()
        directions = self.directions.double()
        coordinates: Tensor = torch.linalg.solve(directions @ directions.T, directions @ offsets.T)
        return coordinates.T

    def explained(self, points: Tensor) -> tuple[float, float, float]:
        """Fractions of the points' variance about their mean along each direction alone, and in the plane.

        The first two add up to the third where the directions are orthogonal.

        Args:
            points: shape (T, P).

        Returns:
            Three numbers in [0, 1]; NaN where the points do not vary.
        """
        centred = points.double() - points.double().mean(0)
        total = float(centred.square().sum())
        if total <= (1e-14 * float(points.double().norm())) ** 2:  # round-off of the mean
            return (float("nan"),) * 3
        directions = self.directions.double()
        inner = directions @ centred.T
        alone = inner.square().sum(1) / directions.square().sum(1) / total
        inside = float((inner * torch.linalg.solve(directions @ directions.T, inner)).sum()) / total
        return float(alone[0]), float(alone[1]), inside


def plane_through(first: Tensor, second: Tensor, points: Tensor) -> Plane:
    """The plane through two points along the leading direction, orthogonal to their line, of a cloud.

    That direction maximises the sum of squares of the cloud's components about the line. Coordinates: ``first`` is at
    (0, 0), ``second`` at (their distance, 0).

    Args:
        first: shape (P,); the origin.
        second: shape (P,).
        points: the cloud, shape (T, P): all trajectories.

    Returns:
        A plane with orthonormal directions.

    Raises:
        ValueError: the two points are one, or the cloud lies on their line.
    """
    line = (second - first).double()
    distance = line.norm()
    if not float(distance) > 0.0:
        raise ValueError("both end points are the same, so no plane goes through them: give two different runs.")
    line = line / distance
    offsets = points.double() - first.double()
    rest = offsets - (offsets @ line)[:, None] * line
    size = float(offsets.square().sum().sqrt())
    (leading,) = _principal_directions(rest, 1, size)
    leading = leading - (leading @ line) * line
    return Plane(first, torch.stack([line, leading / leading.norm()]).to(first))


def principal_plane(trajectory: Tensor, filter_sizes: Sequence[int] | None = None) -> Plane:
    """The plane through a trajectory's last point along its two principal directions (PCA about its mean).

    Args:
        trajectory: shape (T, P), in the order of training; the origin is its last point.
        filter_sizes: sizes of the filters, which partition the P numbers; each direction is then normalised filter by
            filter to the norms at the last point. None for orthonormal directions.

    Returns:
        The plane; each direction points to where the trajectory began.

    Raises:
        ValueError: fewer than three points, or points on a line.
    """
    if len(trajectory) < 3:
        raise ValueError(f"a trajectory of {len(trajectory)} points has no two principal directions: keep at least 3.")
    centred = trajectory.double() - trajectory.double().mean(0)
    directions = _principal_directions(centred, 2, float(centred.square().sum().sqrt()))
    origin = trajectory[-1]
    start = trajectory[0].double() - origin.double()
    for direction in directions:
        if float(direction @ start) < 0.0:
            direction.neg_()
    if filter_sizes is not None:
        directions = torch.stack([filter_normalized(d, origin.double(), filter_sizes) for d in directions])
    return Plane(origin, directions.to(origin))


def filter_normalized(direction: Tensor, reference: Tensor, filter_sizes: Sequence[int]) -> Tensor:
    """Rescale each filter of a direction to the norm that the filter has at a reference point.

    Li et al., Visualizing the loss landscape of neural nets, NeurIPS 2018, section 4: d_i <- d_i / |d_i| |w_i|. It
    takes out the scale that two adjacent layers can exchange without changing the function. A filter that is zero in
    the direction or at the reference stays zero.

    Args:
        direction: shape (P,).
        reference: shape (P,).
        filter_sizes: sizes of the filters in order, together P.

    Raises:
        ValueError: the sizes do not add up to P.
    """
    if sum(filter_sizes) != direction.numel() or direction.shape != reference.shape:
        raise ValueError(
            f"filters of {sum(filter_sizes)} numbers do not partition a direction of {tuple(direction.shape)} at a "
            f"reference of {tuple(reference.shape)}."
        )
    sizes = torch.tensor(filter_sizes, device=direction.device)
    index = torch.arange(len(sizes), device=direction.device).repeat_interleave(sizes)

    def norms(vector: Tensor) -> Tensor:
        return vector.new_zeros(len(sizes)).index_add_(0, index, vector.square()).sqrt()

    own = norms(direction)
    factors = torch.where(own > 0.0, norms(reference) / own.clamp(min=torch.finfo(own.dtype).tiny), 0.0)
    return direction * factors[index]


def slice_axes(coordinates: Tensor, num_points: int, margin: float = 0.25) -> tuple[Tensor, Tensor]:
    """Axes of a grid that shows all projected points with room around them.

    The shorter axis spans at least a quarter of the longer, so that a trajectory along one direction still has
    surroundings.

    Args:
        coordinates: shape (T, 2).
        num_points: along each axis.
        margin: on each side, as a fraction of the span.

    Returns:
        Two float64 tensors of shape (num_points,).

    Raises:
        ValueError: fewer than two points an axis.
    """
    if num_points < 2:
        raise ValueError(f"num_points={num_points}: an axis needs at least 2.")
    low, high = coordinates.double().min(0).values, coordinates.double().max(0).values
    span = torch.maximum(high - low, 0.25 * (high - low).max())
    middle, half = (low + high) / 2.0, (0.5 + margin) * span
    first, second = (
        torch.linspace(float(m - h), float(m + h), num_points, dtype=torch.float64)
        for m, h in zip(middle, half, strict=True)
    )
    return first, second


def grid_coordinates(axes: tuple[Tensor, Tensor]) -> Tensor:
    """Coordinates of the grid's points, shape (n^2, 2): the second coordinate runs faster."""
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)


def _principal_directions(rows: Tensor, count: int, size: float) -> Tensor:
    """Leading right singular vectors (count, P) of rows (T, P) by their T x T Gram matrix: P may be millions."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    directions: list[Tensor] = []
    for index in range(1, count + 1):
        variance = float(values[-index]) if index <= len(values) else 0.0
        # The Gram matrix's round-off is 1e-16 of the size squared, and the directions' that of its root.
        if variance <= (_NO_DIRECTION * size) ** 2:
            raise ValueError(
                "the trajectories lie on a line (or in one point), so that they span no plane: give runs with more "
                "checkpoints, further apart in training."
            )
        direction = vectors[:, -index] @ rows
        for other in directions:
            direction = direction - (direction @ other) * other
        directions.append(direction / direction.norm())
    return torch.stack(directions)
