import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from lightning_lift.datamodules import (
    BetaDataModule,
    GammaDataModule,
    GumbelDataModule,
    HalfNormalDataModule,
    LaplaceDataModule,
    SkewNormalDataModule,
)

TARGETS = {
    GumbelDataModule: stats.gumbel_r,
    LaplaceDataModule: stats.laplace,
    GammaDataModule: lambda loc, scale: stats.gamma(2, loc, scale),
    BetaDataModule: lambda loc, scale: stats.beta(2, 5, loc, scale),
    HalfNormalDataModule: stats.halfnorm,
    SkewNormalDataModule: lambda loc, scale: stats.skewnorm(4, loc, scale),
}
PLACES = [(0.0, 1.0), (0.75, 2.5)]


@pytest.fixture(
    params=[(target, place) for target in TARGETS for place in PLACES], ids=lambda p: f"{p[0].__name__}{p[1]}"
)
def case(request):
    target, (loc, scale) = request.param
    return target(loc=loc, scale=scale, num_test=20000), TARGETS[target](loc, scale)


def test_samples_have_the_distribution(case) -> None:
    data, truth = case
    data.setup()
    sample = data.split("test").double().numpy()[:, 0]
    assert stats.kstest(sample, truth.cdf).pvalue > 1e-3
    fresh = data.draw(20000, torch.Generator().manual_seed(1)).double().numpy()[:, 0]
    assert stats.kstest(fresh, truth.cdf).pvalue > 1e-3


def test_log_density_is_the_reference(case) -> None:
    data, truth = case
    low, high = data.support[:, 0].tolist()
    points = np.concatenate([truth.ppf(np.linspace(1e-6, 1 - 1e-6, 200)), truth.ppf([1e-12, 1 - 1e-12])])
    value = data.log_prob(torch.from_numpy(points)[:, None])
    assert value.dtype == torch.float64 and value.shape == (202,)
    np.testing.assert_allclose(value.numpy(), truth.logpdf(points), rtol=1e-8, atol=1e-8)
    single = data.log_prob(torch.from_numpy(points).float()[:, None])
    assert single.dtype == torch.float32 and bool(torch.isfinite(single).all())
    assert low == truth.support()[0] and high == truth.support()[1]


def test_log_density_integrates_to_one(case) -> None:
    data, _ = case

    def density(point: float) -> float:
        return float(data.log_prob(torch.tensor([[point]], dtype=torch.float64)).exp())

    low, high = data.support[:, 0].tolist()
    left, right = data.window[:, 0].tolist()
    pieces = [(a, b) for a, b in ((low, left), (left, right), (right, high)) if a < b]
    mass = [integrate.quad(density, a, b, epsabs=1e-11, limit=200)[0] for a, b in pieces]
    assert sum(mass) == pytest.approx(1.0, abs=1e-8)
    inside = integrate.quad(density, left, right, epsabs=1e-11, limit=200)[0]
    assert inside > 1 - 7e-4  # the window of the comparison holds nearly everything


def test_entropy(case) -> None:
    data, truth = case
    assert data.entropy == pytest.approx(float(truth.entropy()), abs=1e-7)
    assert 0 <= data.entropy_error < 1e-9
    data.setup()
    log_density = data.log_prob(data.split("test").double())
    error = float(log_density.std()) / math.sqrt(len(log_density))
    assert abs(float(-log_density.mean()) - data.entropy) < 4 * error


def test_far_out_and_outside(case) -> None:
    data, _ = case
    low, high = data.support[:, 0].tolist()
    far = torch.tensor([-torch.inf, -3e38, -1e4, -100.0, 100.0, 1e4, 3e38, torch.inf])[:, None]
    value = data.log_prob(far)
    assert not value.isnan().any()
    outside = ((far < low) | (far > high) | far.isinf())[:, 0]
    assert bool(torch.isneginf(value[outside]).all())
    assert data.log_prob(torch.tensor([[torch.nan]])).isnan().all()
    inside = torch.tensor([[0.8]], requires_grad=True)
    data.log_prob(inside).sum().backward()
    assert bool(torch.isfinite(inside.grad).all())


def test_no_sample_lies_outside_the_support_at_an_unrepresentable_place() -> None:
    for target in TARGETS:
        data = target(loc=0.1, scale=0.3)
        rows = data.split("test")
        for dtype in (torch.float32, torch.float64):
            assert bool(torch.isfinite(data.log_prob(rows.to(dtype))).all()), target


def test_gumbel_entropy_is_the_known_number() -> None:
    assert GumbelDataModule().entropy == pytest.approx(1.5772156649, abs=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0}, "scale must be positive and finite, got 0.0"),
        ({"loc": math.inf}, "loc must be finite"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batches_per_epoch": 0}, "batches_per_epoch"),
        ({"num_val": -1}, "num_val must be an integer of at least 1, got -1"),
        ({"num_test": 0}, "num_test"),
        ({"num_calibration": 0}, "num_calibration"),
        ({"num_train": 100}, "num_train 100 is less than batch_size 256"),
        ({"data_seed": -1}, "data_seed must be a nonnegative integer, got -1"),
        ({"eval_batch_size": 0}, "eval_batch_size"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        GumbelDataModule(**arguments)
