"""Statistics of paired runs: numbers by arm and seed in, differences, intervals and tests out. Pure functions.

Two arms are compared on the seeds that both have finished. A run that diverged or failed has no number: its seed is
left out of the differences, and counts as a loss of its arm in the win rate (a tie where both arms have none).
"""

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]

LEVEL = 0.05
RESAMPLES = 9999
_SEED = 20260500  # of the bootstrap: the same records give the same report
_EXACT = 200  # differences up to which the null distribution is counted out; beyond it the normal one is as good


@dataclass(frozen=True)
class Description:
    """One arm's numbers on one metric.

    Attributes:
        count: runs with a finite number.
        mean: of them.
        standard_error: of the mean, s / sqrt(n); NaN below two runs.
        median: of them.
        low_quartile: 25 %.
        high_quartile: 75 %.
    """

    count: int
    mean: float
    standard_error: float
    median: float
    low_quartile: float
    high_quartile: float


@dataclass(frozen=True)
class PairedDifference:
    """Two arms on one metric, seed by seed; every difference is first minus second.

    Attributes:
        first: label of an arm.
        second: label of the other.
        pairs: seeds in which both have a number.
        unfinished: seeds left out of the differences because a run of either diverged or failed.
        mean: of the differences.
        low: end of the 95 % bootstrap interval of the mean; NaN below two pairs.
        high: its other end.
        shift: Hodges-Lehmann estimate, the median of all pairwise means of the differences.
        rank_biserial: (W+ - W-) / (W+ + W-) of the signed ranks, in [-1, 1]: positive where the first is higher.
        zeros: differences of exactly zero, which the test leaves out.
        p_value: two-sided Wilcoxon signed-rank test.
        p_holm: the same after Holm's correction over all pairs of arms.
        smallest_p: the least ``p_holm`` that this many pairs can give at all (all differences on one side).
        wins: seeds in which the first is better.
        ties: seeds in which neither is.
        losses: seeds in which the second is better.
    """

    first: str
    second: str
    pairs: int
    unfinished: int
    mean: float
    low: float
    high: float
    shift: float
    rank_biserial: float
    zeros: int
    p_value: float
    p_holm: float
    smallest_p: float
    wins: int
    ties: int
    losses: int

    @property
    def win_rate(self) -> float:
        """Share of seeds in which the first is better, ties counting half; NaN without seeds."""
        total = self.wins + self.ties + self.losses
        return (self.wins + 0.5 * self.ties) / total if total else math.nan

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is at most 5 %."""
        return self.p_holm <= LEVEL

    def swapped(self) -> "PairedDifference":
        """The same comparison read from the other arm."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            mean=-self.mean,
            low=-self.high,
            high=-self.low,
            shift=-self.shift,
            rank_biserial=-self.rank_biserial,
            wins=self.losses,
            losses=self.wins,
        )


def describe(values: Sequence[float]) -> Description:
    """Mean with its standard error, median and quartiles of the finite values.

    Args:
        values: one a run.
    """
    finite = np.asarray([value for value in values if math.isfinite(value)], dtype=np.float64)
    if not len(finite):
        return Description(0, *[math.nan] * 5)
    low, median, high = (float(quantile) for quantile in np.quantile(finite, [0.25, 0.5, 0.75]))
    error = float(finite.std(ddof=1)) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan
    return Description(len(finite), float(finite.mean()), error, median, low, high)


def signed_rank_test(differences: Sequence[float] | Array) -> tuple[float, float]:
    """Two-sided Wilcoxon signed-rank test and the matched-pairs rank-biserial correlation.

    Zero differences are left out (Wilcoxon, 1945); equal sizes share their mean rank. Up to 200 differences the null
    distribution of the rank sum is counted out over all signs for the ranks as they are: exact with ties too.

    Args:
        differences: paired differences, finite.

    Returns:
        p-value and correlation (Kerby, 2014); 1 and 0 where every difference is zero or there is none.
    """
    nonzero = np.asarray(differences, dtype=np.float64)
    nonzero = nonzero[nonzero != 0.0]
    if not len(nonzero):
        return 1.0, 0.0
    ranks = stats.rankdata(np.abs(nonzero))
    total = float(ranks.sum())
    positive = float(ranks[nonzero > 0.0].sum())
    correlation = (2.0 * positive - total) / total
    if len(nonzero) > _EXACT:
        return float(stats.wilcoxon(nonzero, method="approx", correction=True).pvalue), correlation
    # Mean ranks are multiples of 1/2: twice them are whole, and each is in or out of the sum with probability 1/2.
    doubled = np.rint(2.0 * ranks).astype(np.int64)
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled:  # the sums that would come round the end cannot be reached yet: their chance is zero
        chance = 0.5 * (chance + np.roll(chance, rank))
    smaller = round(2.0 * min(positive, total - positive))
    return min(1.0, 2.0 * float(chance[: smaller + 1].sum())), correlation


def smallest_p_value(pairs: int) -> float:
    """The least two-sided p-value of the signed-rank test with this many differences: 2 / 2^n.

    Args:
        pairs: number of differences.
    """
    return min(1.0, 2.0 ** (1 - pairs))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the family-wise error stays below the level whatever the dependence.

    Holm (1979): in ascending order the i-th of m is multiplied by m - i + 1, then made monotone and cut at 1.

    Args:
        p_values: of one family; NaN (no test) stays NaN and does not count.

    Returns:
        The corrected ones, in the order given.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # NaN comes last
    corrected = np.full(len(values), math.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in corrected]


def mean_interval(differences: Sequence[float] | Array, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % bootstrap interval of the mean: bias-corrected and accelerated (Efron, 1987), with a fixed seed.

    Args:
        differences: finite numbers.
        resamples: bootstrap samples.

    Returns:
        Both ends; NaN below two numbers; the number itself where all are equal.
    """
    sample = np.asarray(differences, dtype=np.float64)
    if len(sample) < 2 or resamples < 1:
        return math.nan, math.nan
    if np.ptp(sample) == 0.0:
        return float(sample[0]), float(sample[0])
    for method in ("BCa", "percentile"):
        result = stats.bootstrap(
            (sample,),
            np.mean,
            n_resamples=resamples,
            batch=max(1, 2_000_000 // len(sample)),
            confidence_level=1.0 - LEVEL,
            method=method,
            random_state=np.random.default_rng(_SEED),
        )
        low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
        # The acceleration is undefined for some samples of two or three: percentiles always exist.
        if math.isfinite(low) and math.isfinite(high):
            break
    return low, high


def hodges_lehmann(differences: Sequence[float] | Array) -> float:
    """Median of the means of all pairs of differences, each with itself included: what the signed-rank test locates.

    Hodges and Lehmann (1963).

    Args:
        differences: finite numbers; NaN without any.
    """
    sample = np.asarray(differences, dtype=np.float64)
    if not len(sample):
        return math.nan
    first, second = np.triu_indices(len(sample))
    return float(np.median(0.5 * (sample[first] + sample[second])))


def compare_arms(
    values: Values,
    unfinished: Mapping[str, Set[int]] | None = None,
    lower_is_better: bool = True,
    resamples: int = RESAMPLES,
) -> list[PairedDifference]:
    """Every pair of arms, in their order, with Holm's correction over all of them.

    Args:
        values: arm to seed to number. Infinite and NaN numbers count as unfinished.
        unfinished: arm to the seeds whose run diverged or failed: no difference, but a loss in the win rate.
        lower_is_better: decides who wins a seed.
        resamples: of the bootstrap; 0 for no interval.

    Returns:
        One comparison a pair; without any common seed its numbers are NaN and it does not enter the correction.
    """
    bad = {arm: set((unfinished or {}).get(arm, ())) for arm in values}
    good: dict[str, dict[int, float]] = {}
    for arm, numbers in values.items():
        good[arm] = {s: float(v) for s, v in numbers.items() if math.isfinite(v) and s not in bad[arm]}
        bad[arm] |= {seed for seed, value in numbers.items() if not math.isfinite(value)}
    found = [
        _compare(pair, [good[arm] for arm in pair], [bad[arm] for arm in pair], lower_is_better, resamples)
        for pair in itertools.combinations(values, 2)
    ]
    corrected = holm([one.p_value for one in found])
    # Holm's correction grows with each p-value, so the smallest p-values give the smallest corrected ones.
    smallest = holm([smallest_p_value(one.pairs) if one.pairs else math.nan for one in found])
    return [replace(one, p_holm=p, smallest_p=least) for one, p, least in zip(found, corrected, smallest, strict=True)]


def _compare(
    arms: tuple[str, str],
    numbers: Sequence[Mapping[int, float]],
    unfinished: Sequence[Set[int]],
    lower_is_better: bool,
    resamples: int,
) -> PairedDifference:
    one, two = numbers
    bad, other = unfinished
    seeds = sorted(one.keys() & two.keys())
    differences = np.asarray([one[seed] - two[seed] for seed in seeds], dtype=np.float64)
    p_value, correlation = signed_rank_test(differences) if seeds else (math.nan, math.nan)
    low, high = mean_interval(differences, resamples)
    lower, zeros, higher = (int((np.sign(differences) == sign).sum()) for sign in (-1, 0, 1))
    wins, losses = (lower, higher) if lower_is_better else (higher, lower)
    lost, won, both = len(bad & two.keys()), len(other & one.keys()), len(bad & other)
    return PairedDifference(
        first=arms[0],
        second=arms[1],
        pairs=len(seeds),
        unfinished=lost + won + both,
        mean=float(differences.mean()) if seeds else math.nan,
        low=low,
        high=high,
        shift=hodges_lehmann(differences),
        rank_biserial=correlation,
        zeros=zeros,
        p_value=p_value,
        p_holm=math.nan,
        smallest_p=1.0,
        wins=wins + won,
        ties=zeros + both,
        losses=losses + lost,
    )
