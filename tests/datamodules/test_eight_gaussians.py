import math

import pytest
import torch

from lightning_lift.datamodules import EightGaussiansDataModule
from lightning_lift.testing import DataModuleContract


class TestEightGaussians(DataModuleContract):
    integral_points = 201

    def make(self) -> EightGaussiansDataModule:
        return EightGaussiansDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


def test_entropy_is_the_known_number() -> None:
    data = EightGaussiansDataModule()
    assert data.entropy == pytest.approx(0.312, abs=1e-3)
    # the modes lie 15 standard deviations apart: log 8 and the entropy of one
    assert data.entropy == pytest.approx(math.log(8.0) + math.log(2.0 * math.pi * math.e * 0.01), abs=1e-11)


@pytest.mark.parametrize(
    ("arguments", "radius", "std", "modes"),
    [
        ({}, 2.0, 0.1, 8),
        ({"convention": "cp_flow"}, 4.0 / 1.414, 0.5 / 1.414, 8),
        ({"radius": 3.0, "std": 0.05, "num_modes": 5}, 3.0, 0.05, 5),
        ({"convention": "cp_flow", "std": 0.2}, 4.0 / 1.414, 0.2, 8),
    ],
)
def test_draws(arguments, radius, std, modes) -> None:
    rows = EightGaussiansDataModule(**arguments).draw(20000, torch.Generator().manual_seed(2)).double()
    angles = 2.0 * math.pi * torch.arange(modes, dtype=torch.float64) / modes
    offsets = rows[:, None] - radius * torch.stack([angles.cos(), angles.sin()], dim=1)
    nearest = offsets.square().sum(dim=2).argmin(dim=1)
    shares = torch.bincount(nearest, minlength=modes) / len(rows)
    assert float((shares - 1.0 / modes).abs().max()) < 4.5 * math.sqrt(1.0 / modes / len(rows))
    noise = offsets[torch.arange(len(rows)), nearest]
    if modes * std < radius:  # else a row may lie nearest to another mode than its own
        assert float(noise.std()) == pytest.approx(std, rel=0.025)
        assert float(noise.mean().abs()) < 4.5 * std / math.sqrt(2 * len(rows))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"convention": "ffjord"}, r"convention must be one of \['cp_flow', 'lift'\], got 'ffjord'"),
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"std": -0.1}, "std must be positive and finite, got -0.1"),
        ({"std": 1e-4}, "std 0.0001 is too narrow"),
        ({"num_modes": 0}, "num_modes must be an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        EightGaussiansDataModule(**arguments)
