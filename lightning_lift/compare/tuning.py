"""The rule by which each arm gets its learning rate."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_lift.compare.records import MONITORED, RunRecord, monitored
from lightning_lift.compare.statistics import describe

FIRST_TUNING_SEED = 1000
RULE = (
    "Each arm is run at each learning rate of the grid on seeds of their own, none of which is used again. The rate "
    "with the lowest mean of the best validation metric is taken, among the rates at which every tuning run finished; "
    "where there is none, among the means over the runs that did. Ties go to the smaller rate."
)


@dataclass(frozen=True)
class Choice:
    """The learning rate of an arm and what it rests on.

    Attributes:
        arm: its label.
        learning_rate: the chosen one.
        metric: validation metric that was compared.
        means: by rate, of the best validation metric over the runs that finished; NaN where none did.
        finished: by rate, the number of runs that finished.
        runs: by rate, the number of runs.
        at_edge: whether it is the smallest or largest of several rates, so that a better one may lie outside.
        note: what a reader has to be told, or None.
    """

    arm: str
    learning_rate: float
    metric: str
    means: dict[float, float]
    finished: dict[float, int]
    runs: dict[float, int]
    at_edge: bool
    note: str | None = None

    def plain(self) -> dict[str, object]:
        """The choice as JSON can hold it, one row a rate."""
        rates = [
            {
                "learning_rate": rate,
                "mean": mean if math.isfinite(mean) else None,
                "finished": self.finished[rate],
                "runs": self.runs[rate],
            }
            for rate, mean in self.means.items()
        ]
        shown = ("arm", "learning_rate", "metric", "at_edge", "note")
        return {name: getattr(self, name) for name in shown} | {"rates": rates}


def choose(records: Sequence[RunRecord]) -> Choice:
    """Apply the rule to the tuning runs of one arm.

    Args:
        records: of one arm, at least one a rate.

    Raises:
        ValueError: there are no records, they are of several arms, or not of tuning runs at given rates.
    """
    labels = {record.arm for record in records}
    if len(labels) != 1 or any(record.purpose != "tune" or record.learning_rate is None for record in records):
        raise ValueError(
            f"a learning rate is chosen from the tuning runs of one arm, and these are of {sorted(labels)}."
        )
    arm = labels.pop()
    found_names = {name for record in records for name in record.metrics.get("best", {})}
    stated = next((record.metric for record in records if record.metric), None)
    metric = monitored(found_names, stated) or stated or MONITORED[-1]
    found = by_rate(records, metric)
    means = {rate: describe(values).mean for rate, values in found.items()}
    finished = {rate: describe(values).count for rate, values in found.items()}
    runs = {rate: len(values) for rate, values in found.items()}
    whole = [rate for rate in found if finished[rate] == runs[rate]]
    usable = whole or [rate for rate in found if finished[rate]]
    # In increasing order, so that min() gives ties to the smaller rate.
    chosen = min(usable, key=lambda rate: means[rate]) if usable else min(found)
    at_edge = len(found) > 1 and chosen in (min(found), max(found))
    notes = []
    if not usable:
        notes.append("no tuning run finished, so the smallest rate was taken")
    elif not whole:
        notes.append("at no rate did every tuning run finish: the means are over those that did")
    if at_edge:
        notes.append(f"the chosen rate {chosen:g} is at the edge of the grid: a better one may lie outside")
    return Choice(arm, chosen, metric, means, finished, runs, at_edge, "; ".join(notes) or None)


def by_rate(records: Iterable[RunRecord], metric: str) -> dict[float, list[float]]:
    """What the rule of choice reads off tuning runs.

    Args:
        records: of one arm; those at the configuration's own rate are passed over.
        metric: such as ``val/nll``.

    Returns:
        By learning rate, ascending: the best validation metric of each run; NaN unless the run finished and has it as
        a finite number.
    """
    found: dict[float, list[float]] = {}
    for record in sorted(records, key=lambda record: (record.learning_rate or 0.0, record.seed)):
        if record.learning_rate is not None:
            value = record.metrics.get("best", {}).get(metric, math.nan) if record.outcome == "finished" else math.nan
            found.setdefault(record.learning_rate, []).append(value if math.isfinite(value) else math.nan)
    return found
