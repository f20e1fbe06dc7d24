import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from lightning_lift.datamodules import TwoSpiralsDataModule
from lightning_lift.testing import DataModuleContract


class TestLift(DataModuleContract):
    integral_points = 401

    def make(self) -> TwoSpiralsDataModule:
        return TwoSpiralsDataModule(num_val=500, num_test=2000, num_calibration=600, batches_per_epoch=4)


class TestCPFlow(DataModuleContract):
    integral_points = 121

    def make(self) -> TwoSpiralsDataModule:
        return TwoSpiralsDataModule(
            "cp_flow", num_val=500, num_test=2000, num_calibration=600, batches_per_epoch=4, num_train=1000
        )


def reference(convention: str, point: tuple[float, float]) -> float:
    """The density by adaptive quadrature over U, straight from the definition."""
    start, std, side = (math.pi, 0.1 / 3.0, 0.0) if convention == "lift" else (0.0, 0.1, 0.5 / 3.0)

    def blurred(offset: float) -> float:
        if side == 0.0:
            return math.exp(-0.5 * (offset / std) ** 2) / (math.sqrt(2.0 * math.pi) * std)
        scaled = math.sqrt(2.0) * std
        return 0.5 * (math.erf(offset / scaled) - math.erf((offset - side) / scaled)) / side

    def integrand(t: float) -> float:
        radius = (t + start) / 3.0
        arm = -radius * math.cos(t), radius * math.sin(t)
        value = 0.0
        for sign in (-1.0, 1.0):
            # the smear has the sign of the arm
            value += 0.5 * blurred(sign * point[0] - arm[0]) * blurred(sign * point[1] - arm[1])
        return value * 2.0 * t / (3.0 * math.pi) ** 2

    ends = np.linspace(0.0, 3.0 * math.pi, 61)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-13, epsrel=1e-11)[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("convention", ["lift", "cp_flow"])
def test_log_density_is_the_reference(convention) -> None:
    data = TwoSpiralsDataModule(convention)
    # on an arm, at both ends of one, between the arms, near the centre, and off the figure
    points = [(-1.047, 0.0), (4.19, 0.02), (1.8, 1.9), (0.1, -0.05), (-3.14, 0.1), (2.0, -2.2)]
    value = data.log_prob(torch.tensor(points, dtype=torch.float64)).exp().tolist()
    expected = [reference(convention, point) for point in points]
    assert max(expected) > 0.05
    assert value == pytest.approx(expected, rel=1e-8, abs=1e-13)


def test_noise_is_that_of_the_rows() -> None:
    assert TwoSpiralsDataModule()._mixture.std == pytest.approx(0.1 / 3.0)
    assert TwoSpiralsDataModule("cp_flow")._mixture.std == 0.1
    # noise much narrower than the gap between the turns: rows lie as far from the curve as the noise says
    rows = TwoSpiralsDataModule(noise=0.05).draw(4000, torch.Generator().manual_seed(1)).double()
    t = torch.linspace(0.0, 3.0 * math.pi, 8001, dtype=torch.float64)
    arm = torch.stack([-(t + math.pi) * t.cos(), (t + math.pi) * t.sin()], dim=1) / 3.0
    distance = torch.cdist(rows, torch.cat([arm, -arm])).amin(dim=1)
    assert float(distance.square().mean().sqrt()) == pytest.approx(0.05, rel=0.05)


def test_the_two_arms_are_alike() -> None:
    data = TwoSpiralsDataModule("cp_flow")
    points = 3.0 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(data.log_prob(points), data.log_prob(-points))


def test_log_density_does_not_depend_on_the_other_points() -> None:
    data = TwoSpiralsDataModule()
    rows = data.draw(3000, torch.Generator().manual_seed(3)).double()
    assert rows.shape[0] * data._mixture.centres.shape[0] > data._mixture._few  # sorted into cells
    torch.testing.assert_close(data.log_prob(rows)[:20], data.log_prob(rows[:20]), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"convention": "spiral"}, r"convention must be one of \['cp_flow', 'lift'\], got 'spiral'"),
        ({"noise": 0.0}, "noise must be positive and finite, got 0.0"),
        ({"noise": 1e-4}, "noise 0.0001 is too narrow"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        TwoSpiralsDataModule(**arguments)
