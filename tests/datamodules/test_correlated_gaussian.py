import math

import pytest
import torch
from scipy import stats

from lightning_lift.datamodules import CorrelatedGaussianDataModule
from lightning_lift.testing import DataModuleContract


class TestCorrelatedGaussian(DataModuleContract):
    def make(self) -> CorrelatedGaussianDataModule:
        return CorrelatedGaussianDataModule(dim=8, num_val=500, num_test=4000, num_calibration=600, batches_per_epoch=4)


class TestInThePlane(DataModuleContract):
    integral_points = 201

    def make(self) -> CorrelatedGaussianDataModule:
        return CorrelatedGaussianDataModule(dim=2, num_val=500, num_test=4000, num_calibration=600, num_train=1000)


@pytest.mark.parametrize(("dim", "condition_number"), [(2, 10.0), (8, 10.0), (32, 100.0), (3, 1.0)])
def test_density_entropy_and_condition_number(dim, condition_number) -> None:
    data = CorrelatedGaussianDataModule(dim=dim, condition_number=condition_number)
    covariance = data.covariance
    variances = torch.linalg.eigvalsh(covariance)
    assert float(variances[-1] / variances[0]) == pytest.approx(condition_number)
    truth = stats.multivariate_normal(cov=covariance.numpy())
    assert data.entropy == pytest.approx(float(truth.entropy()), abs=1e-10) and data.entropy_error == 0.0
    points = 3.0 * torch.randn(50, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(data.log_prob(points), torch.from_numpy(truth.logpdf(points.numpy())))
    single = data.log_prob(points.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), data.log_prob(points), rtol=1e-5, atol=1e-5)


def test_draws_have_the_covariance() -> None:
    data = CorrelatedGaussianDataModule(dim=6)
    rows = data.draw(50000, torch.Generator().manual_seed(1)).double()
    whitened = rows @ torch.linalg.inv(torch.linalg.cholesky(data.covariance)).T
    # each entry of the second moment has a standard error of at most sqrt(2 / N)
    assert float((whitened.T @ whitened / len(rows) - torch.eye(6)).abs().max()) < 4.5 * math.sqrt(2.0 / len(rows))
    assert float(whitened.mean(dim=0).abs().max()) < 4.5 / math.sqrt(len(rows))


def test_axes_are_of_the_seed_and_mixed() -> None:
    one, same, other = (CorrelatedGaussianDataModule(dim=5, data_seed=seed).covariance for seed in (0, 0, 1))
    assert torch.equal(one, same) and float((one - other).abs().max()) > 0.1
    assert float((one - one.diagonal().diag()).abs().max()) > 0.1


def test_basis_is_not_tilted() -> None:
    # uniformly distributed: the first entry of the first axis has mean 0 and variance 1 / dim
    entries = torch.stack([CorrelatedGaussianDataModule(dim=4, data_seed=seed)._axes[0, 0] for seed in range(400)])
    assert abs(float(entries.mean())) < 4.5 * 0.5 / 20.0
    assert float(entries.square().mean()) == pytest.approx(0.25, abs=4.5 * 0.25 / 20.0)


def test_far_out() -> None:
    data = CorrelatedGaussianDataModule(dim=3)
    value = data.log_prob(
        torch.tensor([[1e6, 0, 0], [math.inf, -math.inf, 0], [math.nan, 0, 0], [math.nan, math.inf, 0]])
    )
    assert math.isfinite(float(value[0])) and float(value[1]) == -math.inf and bool(value[2:].isnan().all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 1}, "dim must be at least 2, got 1"),
        ({"dim": 0}, "dim must be an integer of at least 1, got 0"),
        ({"condition_number": 0.5}, "condition_number must be at least 1, got 0.5"),
        ({"condition_number": math.inf}, "condition_number must be positive and finite, got inf"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        CorrelatedGaussianDataModule(**arguments)
