"""How weights come onto the shoulder and leave it, counted while training runs, in O(d) memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_lift.diagnostics.survival import SurvivalCurve, kaplan_meier_of_counts

_OUTSIDE, _DROPPED = -1, -2  # in place of the step of entry


@dataclass(frozen=True)
class VisitSummary:
    """What the looks have seen.

    Attributes:
        num_looks: looks so far.
        num_weights: d.
        occupancy: fraction of weights inside at the last look.
        entries: how many times a weight came in, over all weights and looks.
        exits: how many times one left.
        entry_rate: entries over the weight-steps spent outside, per optimizer step; NaN where there were none.
        exit_rate: exits over the weight-steps spent inside, per optimizer step; NaN where there were none.
        ever_inside: fraction of weights seen inside at some look.
        ever_left: of these, the fraction that was seen to leave at least once; NaN where none was inside.
        absorbed: fraction of weights inside from some look to the last one, for at least the steps asked for.
        dropped: visits left out of the survival because the weight was inside at the first look already.
        survival: Kaplan-Meier estimate of the visits' lengths, in optimizer steps.
    """

    num_looks: int
    num_weights: int
    occupancy: float
    entries: int
    exits: int
    entry_rate: float
    exit_rate: float
    ever_inside: float
    ever_left: float
    absorbed: float
    dropped: int
    survival: SurvivalCurve

    def scalars(self) -> dict[str, float]:
        """The numbers by name, the survival by its median and its mean restricted to the longest visit."""
        names = ("occupancy", "entries", "exits", "entry_rate", "exit_rate", "ever_inside", "ever_left", "absorbed")
        numbers = {name: float(getattr(self, name)) for name in names}
        median, mean = self.survival.median, self.survival.restricted_mean
        return numbers | {"visit_median": median, "visit_restricted_mean": mean}


class VisitCounter:
    """Follow a mask of d weights from look to look: visits, their lengths, entries and exits.

    A visit starts at the first look inside and ends at the first look outside; its length is the difference of their
    steps, so it is known to within the steps between two looks, and an excursion between two looks is not seen.
    Weights that are inside at the first look have been there for an unknown time: their first visit is left-truncated
    and dropped. Visits that go on at the last look are right-censored, and kept.

    Memory: two numbers a weight, and a histogram of the lengths with as many entries as looks at most.
    """

    def __init__(self) -> None:
        self._since: Tensor | None = None  # step of entry of the visit that goes on, (d,) int64
        self._start: Tensor | None = None  # first look of the present stay inside, left-truncated or not, (d,) int64
        self._left = torch.zeros(0, dtype=torch.bool)
        self._inside = torch.zeros(0, dtype=torch.bool)
        self._ended: dict[int, int] = {}
        self._step = self._num_looks = self._dropped = self._entries = self._exits = 0
        self._steps_inside = self._steps_outside = 0

    @property
    def num_looks(self) -> int:
        """Looks so far."""
        return self._num_looks

    def update(self, mask: Tensor, step: int) -> None:
        """Take in one look.

        Args:
            mask: which weights are inside, shape (d,).
            step: optimizer steps made, more than at the look before.

        Raises:
            ValueError: another shape than before, or a step that is not later.
        """
        mask = mask.detach().cpu().bool()
        if self._since is None or self._start is None:
            if mask.ndim != 1 or not mask.numel():
                raise ValueError(f"mask of shape {tuple(mask.shape)}: give one flag a weight, (d,).")
            outside = torch.full(mask.shape, _OUTSIDE)
            self._since = torch.where(mask, _DROPPED, outside)
            self._start = torch.where(mask, step, outside)
            self._left, self._inside = torch.zeros_like(mask), mask.clone()
            self._dropped, self._step, self._num_looks = int(mask.sum()), step, 1
            return
        if mask.shape != self._since.shape:
            raise ValueError(f"mask of shape {tuple(mask.shape)}: the looks before had {tuple(self._since.shape)}.")
        if step <= self._step:
            raise ValueError(f"step={step} is not later than that of the look before, {self._step}.")
        before = self._since != _OUTSIDE
        entered, left = ~before & mask, before & ~mask
        known = left & (self._since >= 0)
        lengths, counts = torch.unique(step - self._since[known], return_counts=True)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            self._ended[length] = self._ended.get(length, 0) + count
        inside = int(before.sum())
        self._steps_inside += inside * (step - self._step)
        self._steps_outside += (before.numel() - inside) * (step - self._step)
        self._entries += int(entered.sum())
        self._exits += int(left.sum())
        for tensor in (self._since, self._start):
            tensor[entered] = step
            tensor[left] = _OUTSIDE
        self._left |= left
        self._inside |= mask
        self._step = step
        self._num_looks += 1

    def summary(self, absorbed_after: int = 1) -> VisitSummary:
        """What was seen so far.

        Args:
            absorbed_after: a weight counts as absorbed when it has been inside for at least so many optimizer steps up
                to the last look; with 0 that is the occupancy.

        Raises:
            RuntimeError: no look was taken in.
        """
        if self._since is None or self._start is None:
            raise RuntimeError("no look was taken in yet: call update(mask, step) first.")
        inside = self._since != _OUTSIDE
        absorbed = inside & (self._step - self._start >= absorbed_after)
        size, ever, nan = inside.numel(), int(self._inside.sum()), float("nan")
        return VisitSummary(
            num_looks=self._num_looks,
            num_weights=size,
            occupancy=int(inside.sum()) / size,
            entries=self._entries,
            exits=self._exits,
            entry_rate=self._entries / self._steps_outside if self._steps_outside else nan,
            exit_rate=self._exits / self._steps_inside if self._steps_inside else nan,
            ever_inside=ever / size,
            ever_left=int(self._left.sum()) / ever if ever else nan,
            absorbed=int(absorbed.sum()) / size,
            dropped=self._dropped,
            survival=self._survival(),
        )

    def _survival(self) -> SurvivalCurve:
        assert self._since is not None
        going_on = self._since[self._since >= 0]
        open_lengths, open_counts = torch.unique(self._step - going_on, return_counts=True)
        censored = dict(zip(open_lengths.tolist(), open_counts.tolist(), strict=True))
        # A visit that began at the last look has been seen for no time: censored at 0, it says nothing.
        censored.pop(0, None)
        lengths = sorted(self._ended.keys() | censored.keys())
        columns = ([self._ended.get(k, 0) for k in lengths], [censored.get(k, 0) for k in lengths])
        return kaplan_meier_of_counts(torch.tensor(lengths, dtype=torch.float64), *map(torch.tensor, columns))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers from which ``load_state_dict`` goes on exactly."""
        numbers = {name: getattr(self, f"_{name}") for name in _NUMBERS}
        tensors = {"since": self._since, "start": self._start, "left": self._left, "inside": self._inside}
        return numbers | tensors | {"ended": dict(self._ended)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        for name in _NUMBERS:
            setattr(self, f"_{name}", state[name])
        for name in ("since", "start", "left", "inside"):
            tensor = state[name]
            setattr(self, f"_{name}", None if tensor is None else tensor.cpu().clone())
        self._ended = dict(state["ended"])


_NUMBERS = ("step", "num_looks", "dropped", "entries", "exits", "steps_inside", "steps_outside")
