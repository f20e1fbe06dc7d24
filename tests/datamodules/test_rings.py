import math

import pytest
import torch
from scipy import stats

from lightning_lift.datamodules import RingsDataModule
from lightning_lift.datamodules.mixtures import PlanarMixture
from lightning_lift.testing import DataModuleContract


class TestRings(DataModuleContract):
    integral_points = 201

    def make(self) -> RingsDataModule:
        return RingsDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


@pytest.mark.parametrize("arguments", [{}, {"num_rings": 2, "radius": 1.0, "noise": 0.3}])
def test_log_density_and_entropy_are_those_of_many_gaussians(arguments) -> None:
    data = RingsDataModule(**arguments)
    angles = 2.0 * math.pi * torch.arange(1000, dtype=torch.float64) / 1000.0
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)
    centres = (data._radii[:, None, None] * circle).reshape(-1, 2)
    many = PlanarMixture(centres, torch.full((len(centres),), 1.0 / len(centres), dtype=torch.float64), data._noise)
    points = 2.0 * torch.randn(300, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    points[0] = 0.0
    torch.testing.assert_close(data.log_prob(points), many.log_prob(points), rtol=1e-9, atol=1e-9)
    assert abs(data.entropy - many.entropy().value) <= data.entropy_error + many.entropy().error


def test_distances_have_the_rice_distribution() -> None:
    rows = RingsDataModule(num_rings=1, radius=1.5, noise=0.4).draw(20000, torch.Generator().manual_seed(6))
    radius = rows.double().norm(dim=1).numpy()
    assert stats.kstest(radius, stats.rice(1.5 / 0.4, scale=0.4).cdf).pvalue > 1e-3
    angle = torch.atan2(rows[:, 1], rows[:, 0]).double().numpy()
    assert stats.kstest(angle, stats.uniform(-math.pi, 2.0 * math.pi).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_rings": 0}, "num_rings must be an integer of at least 1, got 0"),
        ({"radius": math.inf}, "radius must be positive and finite, got inf"),
        ({"noise": 0.0}, "noise must be positive and finite, got 0.0"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        RingsDataModule(**arguments)
