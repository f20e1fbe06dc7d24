"""Sentences that follow from a test, and never say more than it does."""

import math
from collections.abc import Sequence

from lightning_lift.compare.statistics import LEVEL, PairedDifference
from lightning_lift.compare.wording import number, p_text


def conclude(what: str, unit: str, comparison: PairedDifference) -> str:
    """One sentence on one pair of arms.

    A difference is claimed only where the corrected test is significant, with the direction that the test has: that of
    the signed ranks. The mean is given as its size only where its own interval agrees.

    Args:
        what: the metric in words, such as "test NLL".
        unit: of the metric after a space, such as " nats", or empty.
        comparison: the pair.
    """
    pairs = comparison.pairs
    if not pairs:
        return f"No seed in which both {comparison.first} and {comparison.second} have a {what}: nothing to compare."
    over = f"Over {pairs} paired seed{'s' if pairs != 1 else ''}"
    if comparison.unfinished:  # what is said holds for the seeds that both came through
        over += f" ({comparison.unfinished} more did not finish)"
    if comparison.zeros == pairs:
        return f"{over}, {comparison.first} and {comparison.second} have exactly the same {what}."
    if comparison.significant:
        return f"{over}, {_difference(what, unit, comparison)}."
    if comparison.smallest_p > LEVEL:
        return (
            f"{over}, no difference in {what} between {comparison.first} and {comparison.second} could be shown at "
            f"the 5 % level whatever the numbers: the smallest possible Holm p is {p_text(comparison.smallest_p)}. "
            f"More seeds are needed."
        )
    return (
        f"{over}, no difference in {what} between {comparison.first} and {comparison.second} was found at the 5 % "
        f"level (mean difference {number(comparison.mean)}{unit}{_interval(comparison)}; Holm p = "
        f"{p_text(comparison.p_holm)})."
    )


def conclude_all(what: str, unit: str, comparisons: Sequence[PairedDifference]) -> list[str]:
    """A sentence a pair, those that claim a difference first.

    Args:
        what: the metric in words.
        unit: of it.
        comparisons: one family.
    """
    ordered = sorted(comparisons, key=lambda one: not one.significant)
    return [conclude(what, unit, one) for one in ordered]


def _difference(what: str, unit: str, comparison: PairedDifference) -> str:
    # The subject is the arm that the ranks find lower.
    one = comparison if comparison.rank_biserial < 0.0 else comparison.swapped()
    test = f"Holm p = {p_text(one.p_holm)}"
    if math.isfinite(one.high) and one.high < 0.0:
        return (
            f"{one.first}'s {what} was lower than {one.second}'s by {number(-one.mean)}{unit} on average "
            f"(95 % interval {number(-one.high)} to {number(-one.low)}; {test})"
        )
    return (
        f"{one.first}'s {what} tended to be lower than {one.second}'s (by {number(-one.shift)}{unit} in the median of "
        f"pairs; {test}), but the mean difference does not show it ({number(one.mean)}{unit}{_interval(one)})"
    )


def _interval(comparison: PairedDifference) -> str:
    if not math.isfinite(comparison.low):
        return ""
    return f", 95 % interval {number(comparison.low)} to {number(comparison.high)}"
