import math

import pytest
import torch

from lightning_lift.partition.region import Grid, Region
from lightning_lift.partition.tails import log_tail_in_plane

WHOLE = {dim: torch.tensor([[-math.inf] * dim, [math.inf] * dim], dtype=torch.float64) for dim in (1, 2)}


def window(*ends: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.float64).T.contiguous()


@pytest.mark.parametrize(("centre", "shear"), [((0.0, 0.0), 0.0), ((-2.0, 1.9), 0.0), ((1.0, 5.0), 3.0)])
def test_the_area_of_a_clipped_region(centre: tuple[float, float], shear: float) -> None:
    """The window [-2, 2] x [-1, 2] in sheared coordinates, cut at x_1 <= 1: the shear keeps areas."""
    support = torch.tensor([[-math.inf, -math.inf], [1.0, math.inf]], dtype=torch.float64)
    region = Region(window((-2.0, 2.0), (-1.0, 2.0)), support, torch.tensor(centre, dtype=torch.float64), shear)
    grid = Grid(region, 129)
    assert float(grid.log_weights.logsumexp(0).exp()) == pytest.approx(9.0, rel=2e-3)
    y = region.straightened(grid.points)
    assert bool(((y >= region.window[0] - 1e-9) & (y <= region.window[1] + 1e-9)).all())
    assert float(grid.points[:, 0].max()) == 1.0


def test_an_oblique_region_is_cut_at_both_walls_of_a_box() -> None:
    """|x_2 - x_1| <= 0.5 in the unit square: 1 - 0.5^2 of it."""
    square = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    region = Region(window((-1.0, 2.0), (-0.5, 0.5)), square, torch.tensor([0.5, 0.0], dtype=torch.float64), 1.0)
    grid = Grid(region, 257)
    assert float(grid.log_weights.logsumexp(0).exp()) == pytest.approx(0.75, rel=2e-3)
    assert bool(((grid.points >= 0.0) & (grid.points <= 1.0)).all())


@pytest.mark.parametrize("dim", [1, 2])
def test_place_is_what_its_jacobian_says(dim: int) -> None:
    region = Region(window(*[(-3.0, 5.0)] * dim), WHOLE[dim], torch.full((dim,), 2.0, dtype=torch.float64), 0.7)
    unit = torch.rand(5, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda u: region.place(u.unsqueeze(0))[0][0]))(unit)
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], region.place(unit)[1])


def followed(energy: object, region: Region, size: int = 65, level: float = 18.0) -> tuple[Region, int]:
    for moves in range(60):
        grid = Grid(region, size)
        energies, edges = energy(grid.points), energy(region.free_edges(size).view(-1, 2))  # type: ignore[operator]
        log_area = float((region.window[1] - region.window[0]).log().sum())
        tail = log_tail_in_plane(edges.view(-1, size), float(energies.min()), log_area)
        mass = float(torch.logsumexp(grid.log_weights - energies, 0))
        found = region.followed(grid, energies, level, covered=tail <= mass + math.log(1e-6))
        if found is None:
            return region, moves
        region = found
    raise AssertionError(f"still moving: {region}")


@pytest.mark.parametrize("slope", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("width", [1.0, 1e-4])
def test_it_finds_a_ridge_and_lies_along_it(slope: float, width: float) -> None:
    """E = (x_1 - 3)^2 / 2 + (x_2 - slope x_1)^2 / (2 width^2): its own shear is the slope."""

    def energy(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (x[:, 0] - 3.0).square() + 0.5 * ((x[:, 1] - slope * x[:, 0]) / width).square()

    region, moves = followed(energy, Region(window((-9.0, 9.0), (-9.0, 9.0)), WHOLE[2], torch.zeros(2).double()))
    assert region.shear == pytest.approx(slope, abs=0.6 * width)  # a correlation of a half at most is left
    reach = 6.0 * torch.tensor([1.0, width], dtype=torch.float64)  # the level set's
    middle = torch.tensor([3.0, 3.0 * (slope - region.shear)], dtype=torch.float64)
    assert bool((region.window[0] <= middle - reach).all() and (region.window[1] >= middle + reach).all())
    assert bool((region.window[1] - region.window[0] <= 4.5 * reach).all())
    assert moves < 40
