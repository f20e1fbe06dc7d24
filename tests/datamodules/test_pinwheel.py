import math

import pytest
import torch

from lightning_lift.datamodules import PinwheelDataModule
from lightning_lift.testing import DataModuleContract


class TestPinwheel(DataModuleContract):
    integral_points = 401

    def make(self) -> PinwheelDataModule:
        return PinwheelDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


def test_without_a_twist_one_arm_is_a_gaussian() -> None:
    data = PinwheelDataModule(num_arms=1, rate=0.0)
    assert data.entropy == pytest.approx(math.log(2.0 * math.pi * math.e * 0.6 * 0.2), abs=1e-10)
    mean = torch.tensor([2.0, 0.0], dtype=torch.float64)
    truth = torch.distributions.MultivariateNormal(mean, torch.diag(torch.tensor([0.36, 0.04], dtype=torch.float64)))
    points = mean + torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(data.log_prob(points), truth.log_prob(points))


def test_the_twist_keeps_the_entropy_and_turns_clockwise() -> None:
    straight, twisted = PinwheelDataModule(rate=0.0), PinwheelDataModule()
    assert twisted.entropy == straight.entropy
    # a point on the axis of an arm, at distance 1 before doubling, turned by rate * e
    angle = 0.25 * math.e
    point = torch.tensor([[2.0 * math.cos(angle), -2.0 * math.sin(angle)]], dtype=torch.float64)
    on_axis = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(twisted.log_prob(point), straight.log_prob(on_axis))


def test_arms_are_alike() -> None:
    data = PinwheelDataModule(num_arms=3)
    points = 2.0 * torch.randn(40, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cos, sin = math.cos(2.0 * math.pi / 3.0), math.sin(2.0 * math.pi / 3.0)
    turned = points @ torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    torch.testing.assert_close(data.log_prob(turned), data.log_prob(points))


def test_close_to_the_usual_recipe() -> None:
    """Rows turned by their first coordinate instead of their distance are hardly less likely."""
    generator = torch.Generator().manual_seed(3)
    points = torch.randn(20000, 2, generator=generator, dtype=torch.float64) * torch.tensor([0.3, 0.1])
    points[:, 0] += 1.0
    arm = torch.randint(5, (20000,), generator=generator)
    angle = 2.0 * math.pi * arm / 5.0 + 0.25 * points[:, 0].exp()
    cos, sin = angle.cos(), angle.sin()
    turned = [points[:, 0] * cos + points[:, 1] * sin, points[:, 1] * cos - points[:, 0] * sin]
    data = PinwheelDataModule()
    usual = -data.log_prob(2.0 * torch.stack(turned, dim=1))
    error = float(usual.std()) / math.sqrt(len(usual))
    assert float(usual.mean()) - data.entropy < 0.01 + 4.0 * error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_arms": 0}, "num_arms must be an integer of at least 1, got 0"),
        ({"radial_std": 0.0}, "radial_std must be positive and finite, got 0.0"),
        ({"tangential_std": -1.0}, "tangential_std must be positive and finite, got -1.0"),
        ({"rate": math.nan}, "rate must be finite, got nan"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        PinwheelDataModule(**arguments)
