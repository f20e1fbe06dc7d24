"""Sentences that follow from a test and never say more than it does, and whether the runs may be compared at all."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from lightning_lift.compare.report.formatting import model_setting, number, p_text
from lightning_lift.compare.report.results import ArmRuns, Comparison
from lightning_lift.compare.statistics import LEVEL, PairedDifference


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


@dataclass(frozen=True)
class Fairness:
    """What was found.

    Attributes:
        faults: things that make the comparison unfair: to be said loudly.
        notes: things that a reader should know.
    """

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def fairness(comparison: Comparison) -> Fairness:
    """Compare the hashes of starts and first batches of the arms within each seed.

    An arm whose network has other settings (wider, say) cannot have the common start, which is a note and no fault.

    Args:
        comparison: of any arms.
    """
    found = Fairness()
    arms = [arm for arm in comparison.arms if arm.finals]
    if len(arms) < 2:
        return found
    networks = {arm.label: _network(arm) for arm in arms}
    usual = _most_common(networks.values())
    other = [arm for arm in arms if networks[arm.label] != usual]
    if other:
        found.notes.append(
            f"{_listed(other)}: the network has other settings, so it cannot have the start of the other arms; what is "
            "paired is the data and the seed."
        )
    common = [arm for arm in arms if networks[arm.label] == usual]
    _compare(found, common, "start_hash", "network start", "they do not start from the same weights")
    _compare(found, arms, "data_hash", "stream of data", "they do not see the same data")
    return found


def missing_runs(comparison: Comparison) -> list[str]:
    """A sentence on final runs that are not there yet, by arm.

    Args:
        comparison: ``seeds`` of its settings, a number or a list, says what is to be there; else the other arms do.
    """
    asked = comparison.settings.get("seeds")
    seeds = set(comparison.seeds)
    if isinstance(asked, int):
        seeds |= set(range(asked))
    elif isinstance(asked, Sequence) and not isinstance(asked, str):
        seeds |= {int(seed) for seed in asked}
    lacking = {arm.label: len(seeds - arm.finals.keys()) for arm in comparison.arms}
    told = [f"{label}: {count} of {len(seeds)}" for label, count in lacking.items() if count]
    return [f"This comparison is not complete. Runs not done yet: {'; '.join(told)}."] if told else []


def _compare(found: Fairness, arms: Sequence[ArmRuns], attribute: str, what: str, fault: str) -> None:
    # A column an arm, a row a seed; what is missing is a run that is not there, what is empty one without a hash.
    hashes = pd.DataFrame({arm.label: {s: getattr(r, attribute) for s, r in arm.finals.items()} for arm in arms})
    known = hashes[hashes != ""]
    usual = known.apply(lambda row: _most_common(row.dropna()), axis="columns")
    other = known.notna() & known.ne(usual, axis="index")
    differing = other.sum()[other.any()]
    others = [arm.label for arm in arms if arm.label not in differing]
    against = f" from {', '.join(others)}" if others else ""
    for label, count in differing.items():
        found.faults.append(
            f"{label} differs{against} in its {what} in {count} of {len(hashes)} seeds: {fault}, so the pairs of "
            "these seeds are no pairs."
        )
    checked = int((known.count(axis="columns") > 1).sum())
    if checked and differing.empty:
        found.notes.append(
            f"Checked: the arms {_listed(arms)} have the same {what} in each of {checked} seeds, by hash."
        )
    if unknown := int((hashes == "").any(axis="columns").sum()):
        found.notes.append(
            f"The {what} could not be checked in {unknown} of {len(hashes)} seeds: a run has no hash of it."
        )


def _most_common(texts: Iterable[str]) -> str:
    """The first of those that occur most often; empty without any."""
    return next((text for text, _ in Counter(texts).most_common(1)), "")


def _listed(arms: Sequence[ArmRuns]) -> str:
    return ", ".join(arm.label for arm in arms)


def _network(arm: ArmRuns) -> str:
    return json.dumps(model_setting(arm.example.config, "network"), sort_keys=True, default=str)
