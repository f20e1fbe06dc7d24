import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import CensoredData, ecdf

from lightning_lift.diagnostics import SurvivalCurve, kaplan_meier_of_counts


def kaplan_meier(lengths: torch.Tensor, ended: torch.Tensor) -> SurvivalCurve:
    """From one length a subject."""
    distinct, inverse = torch.unique(lengths, return_inverse=True)
    counts = [torch.bincount(inverse[which], minlength=len(distinct)) for which in (ended, ~ended)]
    return kaplan_meier_of_counts(distinct, *counts)


def test_a_hand_computed_censored_example() -> None:
    # Lengths 1, 2+, 3, 3, 5+, 6 (+ censored). At 1: 6 at risk, 5/6. At 3: 4 at risk, two end, 5/6 * 1/2 = 5/12. At 6:
    # the last one at risk ends, 0.
    lengths = torch.tensor([6.0, 1.0, 3.0, 2.0, 5.0, 3.0])
    ended = torch.tensor([True, True, True, False, False, True])
    curve = kaplan_meier(lengths, ended)
    assert curve.times.tolist() == [1.0, 2.0, 3.0, 5.0, 6.0]
    assert curve.at_risk.tolist() == [6, 5, 4, 2, 1]
    assert curve.ended.tolist() == [1, 0, 2, 0, 1]
    assert curve.survival.tolist() == pytest.approx([5 / 6, 5 / 6, 5 / 12, 5 / 12, 0.0])
    # Greenwood: S(3)^2 (1 / (6 * 5) + 2 / (4 * 2)).
    assert curve.error[2].item() == pytest.approx(5 / 12 * math.sqrt(1 / 30 + 1 / 4))
    assert curve.error[4].item() == 0.0
    assert curve.median == 3.0
    assert curve.restricted_mean == pytest.approx(1.0 + 2 * 5 / 6 + 3 * 5 / 12)


def test_ties_of_ends_and_censorings_count_the_censored_at_risk() -> None:
    curve = kaplan_meier(torch.tensor([2.0, 2.0, 2.0, 4.0]), torch.tensor([True, False, False, True]))
    assert curve.survival.tolist() == pytest.approx([0.75, 0.0])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10_000))
def test_scipy_agrees(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, size).astype(float)
    ended = rng.random(size) < 0.6
    curve = kaplan_meier(torch.tensor(lengths), torch.tensor(ended))
    reference = ecdf(CensoredData(uncensored=lengths[ended], right=lengths[~ended])).sf
    np.testing.assert_allclose(curve.survival.numpy(), reference.evaluate(curve.times.numpy()), atol=1e-12)


def test_without_censoring_it_is_the_empirical_distribution() -> None:
    lengths = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    curve = kaplan_meier(lengths, torch.ones(200, dtype=torch.bool))
    assert curve.restricted_mean == pytest.approx(lengths.mean().item(), rel=1e-12)
    assert curve.survival[99].item() == pytest.approx(0.5)
    binomial = (curve.survival * (1.0 - curve.survival) / 200).sqrt()
    assert torch.allclose(curve.error, binomial, atol=1e-12)


def test_censoring_at_random_does_not_bias() -> None:
    # Exponential lengths of mean 10, censored by independent exponentials of mean 10: half of them are cut short.
    generator = torch.Generator().manual_seed(0)
    length, cut = 10.0 * torch.empty(2, 20_000, dtype=torch.float64).exponential_(generator=generator)
    curve = kaplan_meier(torch.minimum(length, cut), length <= cut)
    for time in (2.0, 5.0, 10.0, 20.0):
        index = int(torch.searchsorted(curve.times, time)) - 1
        assert curve.survival[index].item() == pytest.approx(math.exp(-time / 10), abs=3.0 * curve.error[index].item())
    assert curve.median == pytest.approx(10.0 * math.log(2.0), rel=0.05)


def test_millions_of_visits_in_a_histogram() -> None:
    few = kaplan_meier_of_counts(torch.tensor([3.0, 1.0]), torch.tensor([2, 1]), torch.tensor([0, 1]))
    many = kaplan_meier_of_counts(torch.tensor([3.0, 1.0]), torch.tensor([2, 1]) * 10**9, torch.tensor([0, 1]) * 10**9)
    assert torch.equal(few.survival, many.survival)
    assert many.error[0].item() == pytest.approx(few.error[0].item() / math.sqrt(1e9))


def test_nothing_seen_and_nothing_ended() -> None:
    empty = kaplan_meier(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    assert math.isnan(empty.median)
    assert math.isnan(empty.restricted_mean)
    still = kaplan_meier(torch.tensor([4.0, 7.0]), torch.tensor([False, False]))
    assert still.median == math.inf
    assert still.restricted_mean == 7.0


def test_bad_use_is_refused() -> None:
    for lengths in ([1.0, 1.0], [-1.0, 1.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="distinct, finite and nonnegative"):
            kaplan_meier_of_counts(torch.tensor(lengths), torch.tensor([1, 1]), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="must not be negative"):
        kaplan_meier_of_counts(torch.tensor([1.0]), torch.tensor([-1]), torch.tensor([0]))
    with pytest.raises(ValueError, match="one shape"):
        kaplan_meier_of_counts(torch.tensor([1.0]), torch.tensor([1, 2]), torch.tensor([0]))
