import itertools
import math
import warnings

import numpy as np
import pytest
from scipy import stats

from lightning_lift.compare.statistics import (
    compare_arms,
    describe,
    hodges_lehmann,
    holm,
    mean_interval,
    signed_rank_test,
    smallest_p_value,
)


def test_a_description_by_hand() -> None:
    found = describe([1.0, 2.0, 3.0, 6.0, math.nan, math.inf])
    assert (found.count, found.mean, found.median) == (4, 3.0, 2.5)
    assert found.standard_error == pytest.approx(math.sqrt(14.0 / 3.0) / 2.0)  # squares 4, 1, 0, 9 over n - 1
    assert (found.low_quartile, found.high_quartile) == (1.75, 3.75)
    assert describe([]).count == 0 and math.isnan(describe([]).mean)
    assert describe([5.0]).mean == 5.0 and math.isnan(describe([5.0]).standard_error)


@pytest.mark.parametrize("size", [1, 2, 5, 11, 30])
def test_the_signed_rank_test_is_scipys_exact_one(size: int) -> None:
    for seed in range(5):
        differences = np.random.default_rng([size, seed]).normal(0.4, 1.0, size)
        expected = stats.wilcoxon(differences, method="exact")
        p_value, correlation = signed_rank_test(differences)
        assert p_value == pytest.approx(float(expected.pvalue), rel=1e-12)
        total = size * (size + 1) / 2
        assert abs(correlation) == pytest.approx(1.0 - 2.0 * float(expected.statistic) / total, abs=1e-12)


def test_ties_are_counted_out_over_all_signs() -> None:
    differences = np.array([1.0, -1.0, 1.0, 2.0, 2.0, -3.0, 0.0, 4.0, 1.0])
    nonzero = differences[differences != 0.0]
    ranks = stats.rankdata(np.abs(nonzero))
    signs = np.array(list(itertools.product([0.0, 1.0], repeat=len(ranks))))
    sums = signs @ ranks
    observed = ranks[nonzero > 0].sum()
    away = abs(observed - ranks.sum() / 2.0)
    expected = float(np.mean(np.abs(sums - ranks.sum() / 2.0) >= away - 1e-9))
    p_value, correlation = signed_rank_test(differences)
    assert p_value == pytest.approx(expected, rel=1e-12)
    assert correlation == pytest.approx((2 * observed - ranks.sum()) / ranks.sum())


def test_the_textbook_example_of_the_signed_rank_test() -> None:
    # Ranks of the sizes are 1 to 8 in this order; the negative ones are 1 and 3: W- = 4, and 7 of 256 sign patterns
    # (sums 0, 1, 2, 3 twice, 4 twice) are as small.
    p_value, correlation = signed_rank_test([-1.0, 2.0, -3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert p_value == pytest.approx(2 * 7 / 256)
    assert correlation == pytest.approx((32 - 4) / 36)


def test_many_differences_take_the_normal_approximation() -> None:
    differences = np.random.default_rng(3).normal(0.05, 1.0, 201)
    exact = float(stats.wilcoxon(differences, method="exact").pvalue)
    assert signed_rank_test(differences)[0] == pytest.approx(exact, rel=0.01)


def test_equal_arms_have_p_one_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = compare_arms({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}})
    assert (found.p_value, found.p_holm, found.rank_biserial, found.zeros) == (1.0, 1.0, 0.0, 2)
    assert (found.mean, found.low, found.high, found.shift, found.win_rate) == (0.0, 0.0, 0.0, 0.0, 0.5)
    assert not found.significant


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04, the last raised to 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    corrected = holm([0.01, math.nan, 0.02])
    assert corrected[0] == pytest.approx(0.02) and math.isnan(corrected[1]) and corrected[2] == pytest.approx(0.02)
    assert holm([]) == []


def test_the_interval_is_scipys_and_repeats() -> None:
    sample = np.random.default_rng(1).exponential(size=25)
    low, high = mean_interval(sample)
    other = stats.bootstrap((sample,), np.mean, n_resamples=20000, rng=np.random.default_rng(5)).confidence_interval
    # Two bootstraps of 10,000 and 20,000 samples: the ends differ by about 2 % of the width.
    assert low == pytest.approx(float(other.low), abs=0.05 * (high - low))
    assert high == pytest.approx(float(other.high), abs=0.05 * (high - low))
    assert (low, high) == mean_interval(sample)


def test_the_interval_covers_the_truth() -> None:
    hits = 0
    for seed in range(200):
        low, high = mean_interval(np.random.default_rng([7, seed]).normal(0.3, 1.0, 30), resamples=999)
        hits += low <= 0.3 <= high
    assert 177 <= hits <= 197  # 93.5 % are expected at n = 30, 187: three standard errors are 10


def test_the_interval_of_few_or_equal_numbers() -> None:
    assert all(math.isnan(end) for end in mean_interval([1.0]))
    assert mean_interval([3.0, 3.0, 3.0]) == (3.0, 3.0)
    assert mean_interval([1.0, 2.0]) == (1.0, 2.0)


def test_hodges_lehmann_by_hand() -> None:
    # Means of pairs with repetition of 1, 2, 6: 1, 1.5, 3.5, 2, 4, 6.
    assert hodges_lehmann([1.0, 2.0, 6.0]) == pytest.approx(2.75)
    assert math.isnan(hodges_lehmann([]))


def test_a_comparison_by_hand() -> None:
    values = {"a": {0: 1.0, 1: 2.0, 2: 5.0, 3: 7.0}, "b": {0: 2.0, 1: 4.0, 2: 4.0, 3: 7.0, 9: 1.0}}
    (found,) = compare_arms(values)
    assert (found.first, found.second, found.pairs, found.unfinished) == ("a", "b", 4, 0)
    assert found.mean == pytest.approx((-1 - 2 + 1 + 0) / 4)
    assert (found.wins, found.ties, found.losses, found.win_rate) == (2, 1, 1, 0.625)
    # Ranks of |-1|, |-2|, |1|: 1.5, 3, 1.5; the positive sum 1.5 is reached by sums 0, 1.5, 1.5 of eight.
    assert found.p_value == pytest.approx(2 * 3 / 8)
    assert found.rank_biserial == pytest.approx((1.5 - 4.5) / 6)
    other = found.swapped()
    assert (other.mean, other.low, other.high) == (-found.mean, -found.high, -found.low)
    assert other.win_rate == pytest.approx(1.0 - found.win_rate)
    (higher,) = compare_arms(values, lower_is_better=False)
    assert (higher.wins, higher.losses) == (1, 2)


def test_unfinished_runs_lose_their_seed_and_have_no_difference() -> None:
    values = {"a": {0: 1.0, 1: 1.0, 2: math.inf}, "b": {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0}}
    (found,) = compare_arms(values, {"a": {3, 4}, "b": {4, 5}})
    # Seeds 2 (infinite) and 3 are lost by a, 4 by both, 5 has no run of a.
    assert (found.pairs, found.mean, found.unfinished) == (2, -1.0, 3)
    assert (found.wins, found.ties, found.losses) == (2, 1, 2)


def test_arms_without_common_seeds_do_not_enter_the_correction() -> None:
    rising = {seed: float(seed) for seed in range(8)}
    lower = {seed: seed - 1.0 - 0.01 * seed for seed in range(8)}
    found = {(one.first, one.second): one for one in compare_arms({"a": rising, "b": lower, "c": {}})}
    assert found["a", "b"].p_holm == found["a", "b"].p_value == pytest.approx(2 / 2**8)
    assert math.isnan(found["a", "c"].p_holm) and not found["a", "c"].significant
    assert math.isnan(found["a", "c"].win_rate)


def test_the_smallest_p_of_few_seeds() -> None:
    for pairs in (1, 3, 6):
        assert smallest_p_value(pairs) == pytest.approx(signed_rank_test(np.arange(1.0, pairs + 1.0))[0])
    values = {arm: {seed: place + 0.1 * seed * place for seed in range(5)} for place, arm in enumerate("abc")}
    for one in compare_arms(values, resamples=0):
        assert one.p_holm == pytest.approx(one.smallest_p) == pytest.approx(3 * 2 / 2**5)


def test_identical_arms_are_rarely_found_to_differ() -> None:
    found = 0
    for experiment in range(200):
        generator = np.random.default_rng([2026, experiment])
        shared = generator.normal(size=30)
        values = {arm: dict(enumerate(shared + generator.gumbel(size=30))) for arm in ("pgd", "direct", "gain", "lift")}
        found += any(one.significant for one in compare_arms(values, resamples=0))
    # At most 5 % are expected with Holm's correction over the six pairs: 10, and 21 is more than three errors above.
    assert found <= 21


def test_a_real_difference_is_found() -> None:
    generator = np.random.default_rng(4)
    values = {
        "a": dict(enumerate(generator.normal(0.0, 1.0, 30))),
        "b": dict(enumerate(generator.normal(1.5, 1.0, 30))),
    }
    (found,) = compare_arms(values)
    assert found.significant and found.high < 0.0 and found.win_rate > 0.7
