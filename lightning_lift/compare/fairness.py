"""Whether the runs of a comparison may be compared: all there, from the same start, on the same data."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightning_lift.compare.readings import ArmRuns, Comparison


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
    """Compares the hashes of starts and first batches of the arms within each seed.

    An arm whose network has other settings (wider, say) cannot have the common start, which is a note and no fault.

    Args:
        comparison: of any arms.
    """
    found = Fairness()
    arms = [arm for arm in comparison.arms if arm.finals]
    if len(arms) < 2:
        return found
    networks = {arm.label: _network(arm) for arm in arms}
    usual = Counter(networks.values()).most_common(1)[0][0]
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
    seeds = sorted({seed for arm in arms for seed in arm.finals})
    differing: dict[str, list[int]] = {}
    checked = unknown = 0
    for seed in seeds:
        hashes = {arm.label: str(getattr(arm.finals[seed], attribute)) for arm in arms if seed in arm.finals}
        known = {label: value for label, value in hashes.items() if value}
        unknown += len(known) < len(hashes)
        checked += len(known) > 1
        usual = Counter(known.values()).most_common(1)[0][0] if known else ""
        for label, value in known.items():
            if value != usual:
                differing.setdefault(label, []).append(seed)
    for label, where in differing.items():
        others = [arm.label for arm in arms if arm.label not in differing]
        against = f" from {', '.join(others)}" if others else ""
        found.faults.append(
            f"{label} differs{against} in its {what} in {len(where)} of {len(seeds)} seeds: {fault}, so the pairs of "
            "these seeds are no pairs."
        )
    if checked and not differing:
        found.notes.append(
            f"Checked: the arms {_listed(arms)} have the same {what} in each of {checked} seeds, by hash."
        )
    if unknown:
        found.notes.append(
            f"The {what} could not be checked in {unknown} of {len(seeds)} seeds: a run has no hash of it."
        )


def _listed(arms: Sequence[ArmRuns]) -> str:
    return ", ".join(arm.label for arm in arms)


def _network(arm: ArmRuns) -> str:
    example = next(iter(arm.finals.values()))
    model = example.config.get("model") or {}
    return json.dumps((model.get("init_args") or {}).get("network"), sort_keys=True, default=str)
