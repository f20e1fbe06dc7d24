"""The stand-in for HEPMASS: what is known of its density must hold of its samples."""

import math

import pytest
import torch

from lightning_lift.datamodules.hepmass_files import COLUMNS
from lightning_lift.datamodules.simulated_hepmass import MARGINALS, SimulatedHEPMASS


@pytest.fixture(scope="module")
def target() -> SimulatedHEPMASS:
    return SimulatedHEPMASS()


@pytest.fixture(scope="module")
def rows(target: SimulatedHEPMASS) -> torch.Tensor:
    return target.draw(40_000, torch.Generator().manual_seed(1))


def test_columns_are_those_of_the_files(target: SimulatedHEPMASS) -> None:
    assert target.columns == COLUMNS and target.dim == 21


def test_entropy_is_the_mean_of_minus_log_prob(target, rows) -> None:
    log_prob = target.log_prob(rows).double()
    assert log_prob.isfinite().all()
    error = float(log_prob.std()) / math.sqrt(len(rows))
    assert float(-log_prob.mean()) == pytest.approx(target.entropy, abs=4 * error)
    assert error < 0.02


def test_training_units_have_mean_0_and_variance_1(target, rows) -> None:
    x = rows.double()
    count = len(x)
    assert (x.mean(dim=0).abs() < 4.5 / math.sqrt(count)).all()
    kurtosis = x.pow(4).mean(dim=0)
    assert ((x.square().mean(dim=0) - 1.0).abs() < 4.5 * ((kurtosis - 1) / count).sqrt()).all()


def test_log_prob_is_that_of_normal_scores_by_the_change_of_variables(target, rows) -> None:
    """With x = T(z) and z ~ N(0, R): log p(x) = log N(z; 0, R) - log |det T'(z)|, the Jacobian by autograd."""
    x = rows[:50].double()
    original = target.location + target.scale * x
    z = torch.stack([m.score(c) for m, c in zip(MARGINALS.values(), original.unbind(1), strict=True)], dim=1)
    z.requires_grad_()
    back = torch.stack([m.quantile(c) for m, c in zip(MARGINALS.values(), z.unbind(1), strict=True)], dim=1)
    torch.testing.assert_close(back.detach(), original, rtol=1e-9, atol=1e-9)
    slopes = torch.autograd.grad(((back - target.location) / target.scale).sum(), z)[0]
    scores = torch.distributions.MultivariateNormal(torch.zeros(21, dtype=torch.float64), scale_tril=target._factor)
    expected = scores.log_prob(z.detach()) - slopes.log().sum(dim=1)
    torch.testing.assert_close(target.log_prob(x), expected, rtol=1e-9, atol=1e-8)


def test_outside_the_support_and_dtypes(target, rows) -> None:
    x = rows[:4].clone()
    assert target.log_prob(x).dtype == torch.float32 and target.log_prob(x.double()).dtype == torch.float64
    x[0, 2] = 1.74  # an angle beyond sqrt(3)
    x[1, 17] = -8.0  # a mass below its end
    x[2, 0] = math.inf
    assert target.log_prob(x).isinf().tolist() == [True, True, True, False]
    x[3, 5] = math.nan
    assert target.log_prob(x).isnan().tolist() == [False, False, False, True]


def test_no_row_is_rounded_out_of_the_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores far out put float32 rows onto the ends of the bounded columns."""
    independent = SimulatedHEPMASS()
    independent._factor = torch.eye(21, dtype=torch.float64)
    extreme = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 21) * 12.0
    monkeypatch.setattr(torch, "randn", lambda *size, **kwargs: extreme)
    rows = independent.draw(2, torch.Generator())
    assert (rows[:, 2].abs() > 1.73).all() and (rows[:, 1].abs() > 2.3).all()
    assert independent.log_prob(rows).isfinite().all() and independent.log_prob(rows.double()).isfinite().all()


def test_shape_of_the_columns(target, rows) -> None:
    assert (rows[:, [2, 4, 7, 10, 13, 16]].abs() <= math.sqrt(3.0)).all()
    skewness = rows.double().pow(3).mean(dim=0)
    assert (skewness[-4:] > 0.4).all()
    correlation = torch.corrcoef(rows.T)
    assert 0.65 < float(correlation[COLUMNS.index("jet1_pt"), COLUMNS.index("jet2_pt")]) < 0.85
