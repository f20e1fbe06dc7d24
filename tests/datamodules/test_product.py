import math

import pytest
import torch
from scipy import stats

from lightning_lift.datamodules import ProductDataModule
from lightning_lift.testing import DataModuleContract

TRUTHS = {
    "gumbel": stats.gumbel_r(),
    "laplace": stats.laplace(),
    "logistic": stats.logistic(),
    "gamma": stats.gamma(2),
    "beta": stats.beta(2, 5),
    "half_normal": stats.halfnorm(),
    "skew_normal": stats.skewnorm(4),
}


class TestGumbel(DataModuleContract):
    def make(self) -> ProductDataModule:
        return ProductDataModule(num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


class TestLogisticInThePlane(DataModuleContract):
    integral_points = 301

    def make(self) -> ProductDataModule:
        return ProductDataModule("logistic", 2, num_val=500, num_test=4000, num_calibration=600, num_train=1000)


@pytest.mark.parametrize("target", TRUTHS)
def test_every_target(target) -> None:
    data, truth = ProductDataModule(target, dim=3), TRUTHS[target]
    rows = data.draw(8000, torch.Generator().manual_seed(1))
    assert rows.shape == (8000, 3) and rows.dtype == torch.float32
    for column in rows.double().T.numpy():
        assert stats.kstest(column, truth.cdf).pvalue > 1e-3
    correlations = torch.corrcoef(rows.double().T) - torch.eye(3)
    assert float(correlations.abs().max()) < 4.5 / math.sqrt(8000)
    expected = torch.from_numpy(truth.logpdf(rows.double().numpy()).sum(axis=1))
    torch.testing.assert_close(data.log_prob(rows.double()), expected, rtol=1e-9, atol=1e-8)
    assert data.entropy == pytest.approx(3.0 * float(truth.entropy()), abs=1e-7) and data.entropy_error < 1e-9
    assert data.support.tolist() == [[float(end)] * 3 for end in truth.support()]


def test_one_column_outside_the_support_is_enough() -> None:
    data = ProductDataModule("gamma", dim=2)
    value = data.log_prob(torch.tensor([[1.0, 1.0], [1.0, -1.0], [math.inf, 1.0], [math.nan, -1.0]]))
    assert value[0] == -2.0 and torch.isneginf(value[1:3]).all() and torch.isnan(value[3])


def test_far_out() -> None:
    data = ProductDataModule("logistic", dim=4)
    value = data.log_prob(torch.tensor([[1e6] * 4, [-1e30] * 4]))
    assert value.tolist() == pytest.approx([-4e6, -4e30])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "cauchy"}, r"target must be one of \['beta', .*\], got 'cauchy'"),
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        ProductDataModule(**arguments)
