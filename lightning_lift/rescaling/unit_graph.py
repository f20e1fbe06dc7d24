"""The units of a network whose scale is free, and the parameter entries that carry it.

Every value in the network gets, entry by entry, a *class*: the entries of one class are all multiplied by the same
positive number when the network is rescaled. Layers with parameters make fresh classes, positively homogeneous
operations hand them on, additions tie them, and everything else fixes them to 1. Operations that only move entries
(flatten, concatenation, slicing, ...) are executed on the classes themselves, so that no layout needs a rule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_lift.rescaling.scale_propagation import RawUse, ScalePropagation
from lightning_lift.rescaling.tracing import ExampleInput, Trace, trace_model
from lightning_lift.rescaling.union_find import FIXED, UnionFind

NO_UNIT = -1


@dataclass(frozen=True)
class ParameterUse:
    """The units that a parameter's entries belong to.

    Attributes:
        incoming: unit that each entry feeds, or -1; broadcasts to the parameter's shape.
        outgoing: unit that each entry reads, or -1; broadcasts to the parameter's shape.
    """

    incoming: Tensor
    outgoing: Tensor


@dataclass(frozen=True)
class UnitBlock:
    """The units that one layer makes.

    Attributes:
        label: the layers that make them, joined by "+" where they share an addition.
        units: their numbers, shape (n,).
    """

    label: str
    units: Tensor


@dataclass(frozen=True)
class LeftAlone:
    """Channels that keep their scale.

    Attributes:
        label: the layer that makes them.
        count: how many.
        reason: why.
    """

    label: str
    count: int
    reason: str


@dataclass(frozen=True)
class UnitGraph:
    """What can be rescaled without changing the function.

    Attributes:
        num_units: number H of free scales.
        uses: for each parameter that carries one, the units of its entries.
        blocks: the units by layer, in execution order.
        left_alone: the hidden channels that cannot be rescaled, with the reasons.
        trace: the operations in evaluation mode.
        smooth: activations that are only approximately homogeneous and were let through.
    """

    num_units: int
    uses: dict[str, ParameterUse]
    blocks: list[UnitBlock]
    left_alone: list[LeftAlone]
    trace: Trace
    smooth: tuple[str, ...]


def build_unit_graph(model: nn.Module, example_input: ExampleInput, approximate: bool = False) -> UnitGraph:
    """Find the units of a network.

    Args:
        model: any network whose operations do not depend on the values of the data; it is not changed.
        example_input: input(s) of its forward, batch first.
        approximate: let scales through smooth activations that are homogeneous only far from zero (GELU, SiLU,
            Softplus, ...). The function then changes.

    Raises:
        UntraceableModelError: the network cannot be traced.
    """
    traces = trace_model(model, example_input)
    ties = UnionFind()
    walks = [ScalePropagation(trace, ties, approximate) for trace in traces]
    for walk in walks:
        walk.run()
    uses = _merge(walks, ties)
    representative = ties.resolve()
    roots = _scalable(uses, representative, ties)
    unit_of = torch.full_like(representative, NO_UNIT)
    unit_of[roots] = torch.arange(len(roots))
    number = unit_of[representative]
    number[representative == FIXED] = NO_UNIT
    final: dict[str, ParameterUse] = {}
    for name, use in uses.items():
        incoming, outgoing = _numbers(use.incoming, number), _numbers(use.outgoing, number)
        if bool((incoming != NO_UNIT).any() or (outgoing != NO_UNIT).any()):
            final[name] = ParameterUse(incoming, outgoing)
    smooth = tuple(sorted({name for walk in walks for name in walk.smooth}))
    return UnitGraph(len(roots), final, _blocks(ties, number), _left_alone(ties), traces[0], smooth)


def _merge(walks: list[ScalePropagation], ties: UnionFind) -> dict[str, RawUse]:
    """One use a parameter: those of the two modes tied together; shared and frozen parameters fixed."""
    merged: dict[str, RawUse] = {}
    for walk in walks:
        counts = Counter(name for name, _ in walk.uses)
        for name, use in walk.uses:
            reason = walk.blocked.get(name)
            if counts[name] > 1:
                reason = f"parameter {name!r} is used {counts[name]} times"
            elif not walk.trace.parameters[name].requires_grad:
                reason = f"parameter {name!r} is frozen (requires_grad is False)"
            if reason is not None:
                ties.fix(use.incoming, reason)
                ties.fix(use.outgoing, reason)
            known = merged.setdefault(name, use)
            if known is not use:
                for one, other in ((known.incoming, use.incoming), (known.outgoing, use.outgoing)):
                    try:
                        ties.tie(one, other, name)
                    except RuntimeError:  # used in two layouts
                        ties.fix(one, f"parameter {name!r} is used differently in training and evaluation")
                        ties.fix(other, f"parameter {name!r} is used differently in training and evaluation")
    for walk in walks:
        for name, reason in walk.blocked.items():
            if name in merged:
                ties.fix(merged[name].incoming, reason)
                ties.fix(merged[name].outgoing, reason)
    return merged


def _scalable(uses: dict[str, RawUse], representative: Tensor, ties: UnionFind) -> Tensor:
    """Representatives of the free classes with incoming and with outgoing entries."""
    present = torch.zeros(2, len(representative), dtype=torch.bool)
    for use in uses.values():
        for row, classes in ((0, use.incoming), (1, use.outgoing)):
            present[row, representative[classes[classes > FIXED]]] = True
    representatives = torch.unique(representative)
    free = representatives[representatives != FIXED]
    ties.fix(free[~present[1, free]], "feeds no parameter")
    ties.fix(free[~present[0, free]], "no parameter makes it")
    representative.copy_(ties.resolve())
    kept: Tensor = free[present.all(0)[free]]
    return kept


def _numbers(classes: Tensor, number: Tensor) -> Tensor:
    numbers: Tensor = torch.where(classes > FIXED, number[classes.clamp(min=FIXED)], NO_UNIT)
    return numbers


def _blocks(ties: UnionFind, number: Tensor) -> list[UnitBlock]:
    labels: dict[int, list[str]] = {}
    first: dict[int, int] = {}
    for position, origin in enumerate(ties.origins):
        for unit in number[origin.start : origin.stop].tolist():
            if unit != NO_UNIT:
                first.setdefault(unit, position)
                if origin.label not in labels.setdefault(unit, []):
                    labels[unit].append(origin.label)
    members: dict[int, list[int]] = {}
    for unit, position in first.items():
        members.setdefault(position, []).append(unit)
    return [
        UnitBlock("+".join(dict.fromkeys(label for unit in units for label in labels[unit])), torch.tensor(units))
        for _, units in sorted(members.items())
    ]


def _left_alone(ties: UnionFind) -> list[LeftAlone]:
    reasons = ties.reasons()
    counts: Counter[tuple[str, str]] = Counter()
    for origin in ties.origins:
        for index in range(origin.start, origin.stop):
            if index in reasons:
                counts[origin.label, reasons[index]] += 1
    return [LeftAlone(label, count, reason) for (label, reason), count in counts.items()]
