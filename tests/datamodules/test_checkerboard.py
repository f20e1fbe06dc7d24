import math

import pytest
import torch

from lightning_lift.datamodules import CheckerboardDataModule
from lightning_lift.testing import DataModuleContract


class TestCheckerboard(DataModuleContract):
    integral_points = 401  # grid points on the ends of the squares, which hold one end each: an exact count

    def make(self) -> CheckerboardDataModule:
        return CheckerboardDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)

    def test_stated_entropy_against_monte_carlo(self) -> None:
        """The surprise of all rows is one number, without a standard error: that number is the entropy."""
        data = self._ready()
        surprise = -data.log_prob(self._rows(data.test_dataloader()))
        assert bool((surprise == surprise[0]).all())
        assert float(surprise[0]) == pytest.approx(data.entropy, abs=1e-6)


def test_the_eight_squares() -> None:
    data = CheckerboardDataModule()
    middles = torch.cartesian_prod(torch.arange(-3.0, 4.0, 2.0), torch.arange(-3.0, 4.0, 2.0))
    inside = torch.isfinite(data.log_prob(middles))
    assert int(inside.sum()) == 8
    # the lower left corner is on the board, as in the usual recipe; neighbours are not
    assert bool(inside[0]) and not bool(inside[1]) and not bool(inside[4]) and bool(inside[5])
    assert data.entropy == math.log(32.0) and data.entropy_error == 0.0
    assert data.support.tolist() == [[-4.0, -4.0], [4.0, 4.0]]


def test_ends_belong_to_one_square_each() -> None:
    points = torch.tensor([[-4.0, -4.0], [-2.0, -3.0], [-3.0, -2.0], [-2.0, -2.0], [4.0, 3.0], [3.0, 4.0]])
    finite = torch.isfinite(CheckerboardDataModule().log_prob(points)).tolist()
    assert finite == [True, False, False, True, False, False]


def test_squares_are_equally_likely_and_no_row_lies_outside() -> None:
    data = CheckerboardDataModule()
    rows = data.draw(200000, torch.Generator().manual_seed(9))
    assert bool(torch.isfinite(data.log_prob(rows)).all())
    cell = ((rows + 4.0) / 2.0).floor().long()
    shares = torch.bincount(cell[:, 0] * 4 + cell[:, 1], minlength=16) / len(rows)
    assert int((shares > 0).sum()) == 8
    assert float((shares[shares > 0] - 0.125).abs().max()) < 4.5 * math.sqrt(0.125 / len(rows))


def test_rounding_up_stays_in_the_square(monkeypatch) -> None:
    data = CheckerboardDataModule()
    highest = torch.tensor(1.0 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(
        "lightning_lift.datamodules.checkerboard.open_uniform", lambda shape, generator: highest.expand(shape)
    )
    rows = data.draw(100, torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(data.log_prob(rows)).all())
    whole = data.plane_draw(100, torch.Generator().manual_seed(0))
    assert whole.dtype == torch.float64 and float((whole - rows).abs().max()) < 1e-6
