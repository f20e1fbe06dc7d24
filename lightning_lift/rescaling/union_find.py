"""Which channels must share one scale, and which must keep theirs, with the reasons (a union-find with memory)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIXED = 0  # the class of everything whose scale cannot change: the input, constants, the output
ANY = -1  # zeros, which any scale leaves as they are


@dataclass(frozen=True)
class Origin:
    """Where a run of classes came from.

    Attributes:
        label: the layer that makes these channels.
        start: first class.
        stop: one past the last.
    """

    label: str
    start: int
    stop: int


class UnionFind:
    """Classes of channels that scale together.

    A class is an integer; ``FIXED`` is the class whose scale is 1. ``ANY`` (zeros) is never tied to anything.
    """

    def __init__(self) -> None:
        self._parent = [FIXED]
        self._reasons: dict[int, str] = {}
        self._tied_at: dict[int, str] = {}
        self.origins: list[Origin] = []

    def fresh(self, count: int, label: str) -> Tensor:
        """New classes, each free to scale.

        Args:
            count: how many.
            label: the layer that makes them.

        Returns:
            Shape (count,), int64.
        """
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        self.origins.append(Origin(label, start, start + count))
        return torch.arange(start, start + count)

    def find(self, index: int) -> int:
        """The representative of a class: the smallest one tied to it."""
        root = index
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[index] != root:
            self._parent[index], index = root, self._parent[index]
        return root

    def tie(self, left: Tensor, right: Tensor, where: str) -> None:
        """Make classes equal, entry by entry.

        Args:
            left: classes of any shape.
            right: classes of a shape that broadcasts with it.
            where: the operation that ties them, for the reports.
        """
        shape = (left + right).shape
        left, right = left.expand(shape), right.expand(shape)
        different = (left != right) & (left != ANY) & (right != ANY)
        if not different.any():
            return
        pairs = torch.stack([left[different], right[different]])
        for pair in torch.unique(pairs, dim=1).T.tolist():
            low, high = min(pair), max(pair)
            if low == FIXED:
                self._reasons.setdefault(high, f"shares its scale, at {where!r}, with the input or a constant")
                continue
            self._tied_at.setdefault(low, where)
            self._tied_at.setdefault(high, where)
            root_low, root_high = sorted((self.find(low), self.find(high)))
            self._parent[root_high] = root_low

    def fix(self, classes: Tensor, reason: str) -> None:
        """Make classes, and all that are tied to them now or later, keep their scale.

        Args:
            classes: of any shape.
            reason: why; the first one given for a class is the one reported.
        """
        for index in torch.unique(classes[classes > FIXED]).tolist():
            self._reasons.setdefault(index, reason)

    def column(self, classes: Tensor, dims: tuple[int, ...], where: str) -> Tensor:
        """Tie classes along all dimensions but some.

        Args:
            classes: of any shape.
            dims: the dimensions along which classes may differ.
            where: the operation that needs it.

        Returns:
            One class for each position along ``dims``, of that shape.
        """
        order = [d for d in range(classes.ndim) if d not in dims] + list(dims)
        kept = tuple(classes.shape[d] for d in dims)
        rows = classes.permute(order).reshape(-1, *kept)
        top = rows.amax(0)
        self.tie(rows, top, where)
        return top

    def resolve(self) -> Tensor:
        """The representative of every class, ``FIXED`` for those that keep their scale; shape (number of classes,)."""
        fixed = {self.find(index) for index in self._reasons}
        roots = (self.find(index) for index in range(len(self._parent)))
        return torch.tensor([FIXED if root in fixed else root for root in roots])

    def reasons(self) -> dict[int, str]:
        """For each class that keeps its scale, why."""
        by_group: dict[int, str] = {}
        for index, reason in self._reasons.items():
            by_group.setdefault(self.find(index), reason)
        result: dict[int, str] = {}
        for index in range(1, len(self._parent)):
            group = by_group.get(self.find(index))
            if index in self._reasons:
                result[index] = self._reasons[index]
            elif group is not None:
                result[index] = f"tied at {self._tied_at[index]!r} to channels that keep theirs ({group})"
        return result
