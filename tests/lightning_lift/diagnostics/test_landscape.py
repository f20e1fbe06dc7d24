import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lift.diagnostics.landscape import (
    Plane,
    filter_normalized,
    grid_coordinates,
    plane_through,
    principal_plane,
    slice_axes,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_slice_of_a_quadratic_is_the_closed_form() -> None:
    """L(w) = (w - m)^T A (w - m) / 2 on origin + c D is (c - c0)^T (D A D^T) (c - c0) / 2 plus a constant."""
    half, minimum = normal(7, 7), normal(7, seed=1)
    matrix = half @ half.T + torch.eye(7)
    plane = Plane(normal(7, seed=2), normal(2, 7, seed=3))
    axes = slice_axes(torch.tensor([[-1.0, 0.0], [2.0, 1.0]]), 9)
    coordinates = grid_coordinates(axes)

    def loss(w: torch.Tensor) -> float:
        return float(0.5 * (w - minimum) @ matrix @ (w - minimum))

    found = torch.tensor([loss(plane.point(pair)) for pair in coordinates], dtype=torch.float64)
    inner = plane.directions @ matrix @ plane.directions.T
    gap = plane.origin - minimum
    linear = plane.directions @ matrix @ gap
    expected = 0.5 * ((coordinates @ inner) * coordinates).sum(1) + coordinates @ linear + 0.5 * gap @ matrix @ gap
    torch.testing.assert_close(found, expected)
    assert found.view(9, 9)[2, 5] == loss(plane.point(torch.stack([axes[0][2], axes[1][5]])))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(2, 40))
def test_projection_is_exact_in_the_plane_and_least_squares_off_it(seed: int, size: int) -> None:
    plane = Plane(normal(size, seed=seed), normal(2, size, seed=seed + 1))
    coordinates = normal(5, 2, seed=seed + 2)
    inside = torch.stack([plane.point(pair) for pair in coordinates])
    torch.testing.assert_close(plane.project(inside), coordinates, rtol=1e-6, atol=1e-6)
    points = normal(5, size, seed=seed + 3)
    residual = points - plane.origin - plane.project(points) @ plane.directions
    torch.testing.assert_close(residual @ plane.directions.T, torch.zeros(5, 2).double(), rtol=0.0, atol=1e-8)


def test_plane_through_two_ends_holds_both_and_the_leading_rest() -> None:
    first, second = normal(30), normal(30, seed=1)
    line = (second - first) / (second - first).norm()
    hidden = normal(30, seed=2)
    hidden = hidden - (hidden @ line) * line
    hidden = hidden / hidden.norm()
    # Far along the line, less far along a hidden direction, little in all others.
    points = first + 50.0 * normal(8, 1, seed=3) * line + 5.0 * normal(8, 1, seed=4) * hidden
    plane = plane_through(first, second, points + 1e-3 * normal(8, 30, seed=5))
    torch.testing.assert_close(plane.directions @ plane.directions.T, torch.eye(2).double())
    coordinates = plane.project(torch.stack([first, second]))
    torch.testing.assert_close(coordinates, torch.tensor([[0.0, 0.0], [float((second - first).norm()), 0.0]]).double())
    assert abs(float(plane.directions[1] @ hidden)) > 0.9999
    along, across, inside = plane.explained(points)
    assert along + across == pytest.approx(inside)
    assert inside > 0.9999 > along > 0.9


def test_principal_plane_is_that_of_the_singular_value_decomposition() -> None:
    trajectory = normal(12, 40)
    plane = principal_plane(trajectory)
    right = torch.linalg.svd(trajectory - trajectory.mean(0), full_matrices=False)[2][:2]
    torch.testing.assert_close((plane.directions @ right.T).abs(), torch.eye(2).double(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(plane.project(trajectory)[-1], torch.zeros(2).double())
    assert bool((plane.directions @ (trajectory[0] - trajectory[-1]) >= 0.0).all())
    singular = torch.linalg.svdvals(trajectory - trajectory.mean(0)).square()
    assert plane.explained(trajectory)[2] == pytest.approx(float(singular[:2].sum() / singular.sum()))


def test_filter_normalisation() -> None:
    sizes = [3, 1, 4, 2]
    direction, reference = normal(10), normal(10, seed=1)
    reference[3] = 0.0
    direction[8:] = 0.0
    found = filter_normalized(direction, reference, sizes).split(sizes)
    for part, own, at in zip(found, direction.split(sizes), reference.split(sizes), strict=True):
        expected = at.norm() if float(own.norm()) > 0.0 else torch.zeros(()).double()
        torch.testing.assert_close(part.norm(), expected)
        torch.testing.assert_close(part * own.norm(), own * part.norm())  # each filter keeps its direction
    # The scale that two layers can exchange drops out.
    scale = torch.tensor([5.0] * 3 + [1.0] + [0.2] * 4 + [1.0] * 2).double()
    scaled = filter_normalized(direction * scale, reference * scale, sizes)
    torch.testing.assert_close(scaled, torch.cat(found) * scale)
    with pytest.raises(ValueError, match="filters of 9 numbers"):
        filter_normalized(direction, reference, [3, 6])


def test_filter_normalised_plane_keeps_the_end_at_the_origin() -> None:
    trajectory = normal(6, 10)
    plane = principal_plane(trajectory, [5, 5])
    torch.testing.assert_close(plane.project(trajectory[-1:]), torch.zeros(1, 2).double())
    for direction in plane.directions:
        for part, at in zip(direction.split(5), trajectory[-1].split(5), strict=True):
            torch.testing.assert_close(part.norm(), at.norm())


def test_axes_show_all_points_with_room() -> None:
    first, second = slice_axes(torch.tensor([[0.0, 1.0], [8.0, 1.0]]), 5, margin=0.25)
    assert first.tolist() == [-2.0, 1.0, 4.0, 7.0, 10.0]
    assert second.tolist() == [-0.5, 0.25, 1.0, 1.75, 2.5]  # a quarter of the longer span, centred
    with pytest.raises(ValueError, match="num_points=1"):
        slice_axes(torch.zeros(2, 2), 1)


def test_degenerate_trajectories_are_refused() -> None:
    a, b = normal(9), normal(9, seed=1)
    with pytest.raises(ValueError, match="the same"):
        plane_through(a, a, torch.stack([a, b]))
    with pytest.raises(ValueError, match="lie on a line"):
        plane_through(a, b, torch.stack([a, b, 0.3 * a + 0.7 * b]))
    with pytest.raises(ValueError, match="at least 3"):
        principal_plane(torch.stack([a, b]))
    with pytest.raises(ValueError, match="lie on a line"):
        principal_plane(torch.stack([a, b, 0.3 * a + 0.7 * b]))
    assert all(math.isnan(part) for part in Plane(a, normal(2, 9)).explained(a.expand(3, 9)))
