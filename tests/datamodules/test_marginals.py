"""Margins: closed forms against SciPy, and against numerical integration."""

import math

import pytest
import torch
from scipy import integrate, stats

from lightning_lift.datamodules.marginals import Marginal, ShiftedLogNormal, TruncatedNormal, Uniform

CASES: list[tuple[Marginal, object]] = [
    (Uniform(-1.0, 2.5), stats.uniform(-1.0, 3.5)),
    (TruncatedNormal(0.3, 1.2), stats.norm(0.3, 1.2)),
    (TruncatedNormal(0.3, 1.2, low=-1.0), stats.truncnorm(-1.3 / 1.2, math.inf, 0.3, 1.2)),
    (TruncatedNormal(0.0, 1.1, low=-2.0, high=2.0), stats.truncnorm(-2 / 1.1, 2 / 1.1, 0.0, 1.1)),
    (TruncatedNormal(-0.2, 0.5, high=0.4), stats.truncnorm(-math.inf, 1.2, -0.2, 0.5)),
    (ShiftedLogNormal(-1.0, 0.9, 0.54), stats.lognorm(0.54, -1.0, 0.9)),
]


@pytest.mark.parametrize(("marginal", "reference"), CASES)
def test_moments_entropy_and_ends(marginal: Marginal, reference) -> None:
    assert marginal.mean == pytest.approx(reference.mean(), rel=1e-9)
    assert marginal.variance == pytest.approx(reference.var(), rel=1e-9)
    assert marginal.ends == pytest.approx(reference.support())

    def integrand(point: float) -> float:
        log_density = float(marginal.log_density(torch.tensor(point, dtype=torch.float64)))
        return -log_density * math.exp(log_density) if log_density > -700 else 0.0

    low, high = reference.ppf(1e-15), reference.ppf(1.0 - 1e-15)
    entropy = integrate.quad(integrand, low, high, limit=400, epsabs=1e-11, points=[reference.median()])[0]
    assert marginal.entropy == pytest.approx(entropy, abs=1e-9)


@pytest.mark.parametrize(("marginal", "reference"), CASES)
def test_density_quantile_and_score(marginal: Marginal, reference) -> None:
    z = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64)
    x = marginal.quantile(z)
    left = torch.tensor(reference.ppf(stats.norm.cdf(z[z <= 0])))
    right = torch.tensor(reference.isf(stats.norm.sf(z[z > 0])))
    torch.testing.assert_close(x, torch.cat([left, right]), rtol=1e-8, atol=1e-9)
    inner = z.abs() <= 5.0  # beyond, the distance to an end of the support is lost to rounding of x
    torch.testing.assert_close(marginal.score(x)[inner], z[inner], rtol=0, atol=1e-8)
    torch.testing.assert_close(marginal.log_density(x), torch.tensor(reference.logpdf(x)), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("marginal", "reference"), CASES)
def test_scores_stay_finite_at_ends_and_far_out(marginal: Marginal, reference) -> None:
    low, high = (max(min(end, 300.0), -300.0) for end in marginal.ends)
    points = torch.tensor([low, 0.5 * (low + high), high], dtype=torch.float64)
    scores = marginal.score(points)
    assert scores.isfinite().all() and (scores.diff() >= 0).all()
