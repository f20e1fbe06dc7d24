import math

import pytest
import torch

from lightning_lift.partition.grids import grid_points, halved, log_integral


@pytest.mark.parametrize("dim", [1, 2])
def test_integral_of_a_gaussian(dim: int) -> None:
    window = torch.tensor([[-9.0], [8.0]], dtype=torch.float64).expand(2, dim).contiguous()
    x = grid_points(window, 201)
    assert x.shape == (201**dim, dim)
    log_values = -0.5 * x.square().sum(1)
    assert float(log_integral(log_values, window, 201)) == pytest.approx(0.5 * dim * math.log(2 * math.pi), abs=1e-9)


@pytest.mark.parametrize("dim", [1, 2])
def test_halved_values_are_those_of_the_halved_grid(dim: int) -> None:
    window = torch.tensor([[0.0], [3.0]]).expand(2, dim).contiguous()
    fine, coarse = grid_points(window, 9), grid_points(window, 5)
    for axis in range(dim):
        torch.testing.assert_close(halved(fine[:, axis], 9, dim), coarse[:, axis])
