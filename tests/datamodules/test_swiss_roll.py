import itertools
import math

import pytest
import torch
from scipy import integrate, stats
from sklearn.datasets import make_swiss_roll

from lightning_lift.datamodules import SwissRollDataModule
from lightning_lift.testing import DataModuleContract


class TestSwissRoll(DataModuleContract):
    integral_points = 151

    def make(self) -> SwissRollDataModule:
        return SwissRollDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


@pytest.mark.parametrize("noise", [0.2, 0.1])
def test_log_density_is_the_reference(noise) -> None:
    points = torch.tensor([[0.0, -0.94], [0.1, 2.8], [1.5, 0.0], [0.0, 0.0], [-3.0, 2.0]], dtype=torch.float64)

    def density(x: float, y: float) -> float:
        def integrand(t: float) -> float:
            return stats.norm.pdf(x, t * math.cos(t) / 5, noise) * stats.norm.pdf(y, t * math.sin(t) / 5, noise)

        parts = [(1.5 + 0.1 * k) * math.pi for k in range(31)]
        pieces = itertools.pairwise(parts)
        return sum(integrate.quad(integrand, *ends, epsabs=1e-14, epsrel=1e-10)[0] for ends in pieces) / (3.0 * math.pi)

    value = SwissRollDataModule(noise=noise).log_prob(points).exp().tolist()
    assert value == pytest.approx([density(*point) for point in points.tolist()], rel=1e-8, abs=1e-13)


def test_rows_are_distributed_as_those_of_scikit_learn() -> None:
    theirs = torch.from_numpy(make_swiss_roll(20000, noise=1.0, random_state=0)[0][:, [0, 2]]) / 5.0
    surprise = -SwissRollDataModule().log_prob(theirs)
    error = float(surprise.std()) / math.sqrt(len(surprise))
    assert abs(float(surprise.mean()) - SwissRollDataModule().entropy) < 4.0 * error


@pytest.mark.parametrize("noise", [-1.0, math.nan, 1e-4])
def test_bad_noise(noise) -> None:
    with pytest.raises(ValueError, match=f"noise.* {noise}"):
        SwissRollDataModule(noise=noise)
