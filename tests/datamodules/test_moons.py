import math

import pytest
import torch
from scipy import integrate, stats
from sklearn.datasets import make_moons

from lightning_lift.datamodules import MoonsDataModule
from lightning_lift.testing import DataModuleContract


class TestMoons(DataModuleContract):
    integral_points = 151

    def make(self) -> MoonsDataModule:
        return MoonsDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


def test_log_density_is_the_reference() -> None:
    points = torch.tensor([[-1.0, 1.8], [0.0, 0.3], [1.0, -1.0], [-3.3, -0.6], [3.0, 2.0]], dtype=torch.float64)

    def density(x: float, y: float) -> float:
        def integrand(a: float) -> float:
            upper = stats.norm.pdf(x, 2 * math.cos(a) - 1, 0.2) * stats.norm.pdf(y, 2 * math.sin(a) - 0.2, 0.2)
            lower = stats.norm.pdf(x, 1 - 2 * math.cos(a), 0.2) * stats.norm.pdf(y, 0.8 - 2 * math.sin(a), 0.2)
            return 0.5 * (upper + lower) / math.pi

        return integrate.quad(integrand, 0.0, math.pi, epsabs=1e-14, epsrel=1e-11, limit=200)[0]

    value = MoonsDataModule().log_prob(points).exp().tolist()
    assert value == pytest.approx([density(*point) for point in points.tolist()], rel=1e-9)


def test_the_half_circles_are_those_of_scikit_learn() -> None:
    rows = torch.from_numpy(make_moons(400, noise=None)[0]) * 2.0 + torch.tensor([-1.0, -0.2], dtype=torch.float64)
    data = MoonsDataModule(noise=0.01)
    on, off = data.log_prob(rows), data.log_prob(rows + torch.tensor([0.0, 0.07]))
    length = 4.0 * math.pi  # of both half circles: on them, the density is the noise's divided by it, halved at an end
    along = math.exp(float(on.median())) * length * math.sqrt(2.0 * math.pi) * 0.01
    assert along == pytest.approx(1.0, rel=0.01)
    assert float(on.min()) > float(off.median())


@pytest.mark.parametrize("noise", [0.0, math.inf, 1e-4])
def test_bad_noise(noise) -> None:
    with pytest.raises(ValueError, match=f"noise.* {noise}"):
        MoonsDataModule(noise=noise)
