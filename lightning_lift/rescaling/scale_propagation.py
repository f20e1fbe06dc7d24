"""Scale propagation: one pass over a traced network gives each entry of each value its class (see ``unit_graph``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from lightning_lift.rescaling.operators import Operation, describe, label, reduced_dims, result_shape
from lightning_lift.rescaling.tracing import Trace, is_piece, operator_name
from lightning_lift.rescaling.union_find import ANY, FIXED, UnionFind

OUTPUT = "network output"


@dataclass(frozen=True)
class ParameterView:
    """A parameter, or a rearranged and multiplied form of one.

    Attributes:
        name: the parameter.
        shape: of the view.
        moves: what rearranges a tensor of the parameter's shape to the view's.
    """

    name: str
    shape: torch.Size
    moves: tuple[Callable[[Tensor], Tensor], ...] = ()

    def transposed(self) -> ParameterView:
        """The view (n, m) of a view (m, n)."""
        moves = self.moves[:-1] if self.moves and self.moves[-1] is _transpose else (*self.moves, _transpose)
        return ParameterView(self.name, torch.Size(reversed(self.shape)), moves)


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the input and carries no scale.

    Attributes:
        value: the tensor.
        sources: parameters that it was computed from.
    """

    value: Tensor
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RawUse:
    """Classes of the values that a parameter's entries feed and read; both broadcast to its shape."""

    incoming: Tensor
    outgoing: Tensor


class ScalePropagation:
    """One pass over one trace.

    Args:
        trace: the operations.
        ties: where fresh classes, ties and reasons are kept; shared by the walks of one network.
        approximate: let smooth activations hand classes on.
    """

    def __init__(self, trace: Trace, ties: UnionFind, approximate: bool) -> None:
        self.trace = trace
        self.uses: list[tuple[str, RawUse]] = []
        self.blocked: dict[str, str] = {}
        self.smooth: set[str] = set()
        self._ties = ties
        self._approximate = approximate
        self._env: dict[fx.Node, Any] = {}

    def run(self) -> None:
        """Visit every operation once."""
        for node in self.trace.nodes:
            self._env[node] = self._visit(node)

    def _visit(self, node: fx.Node) -> Any:
        value = node.meta["value"]
        if node.op == "output":
            for classes in self._classes_of(node):
                self._ties.fix(classes, OUTPUT)
            for name in self._views_of(node):
                self.blocked[name] = f"parameter {name!r} is returned by the network"
            return None
        if node.op in {"placeholder", "get_attr"}:
            if "parameter" in node.meta:
                return ParameterView(node.meta["parameter"], value.shape)
            return _fixed(value) if node.meta["data"] else Constant(value)
        if is_piece(node):
            return self._get(node.args[0])[node.args[1]]
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value
        operation = describe(node, self.trace)
        if not node.meta["data"]:
            return self._constant(node, operation)
        handled = getattr(self, f"_on_{operation.kind}")(node, operation)
        if handled is None:
            return self._opaque(node, operation.note)
        several = isinstance(value, tuple | list) and isinstance(handled, Tensor)
        return (handled, *_fixed(list(value[1:]))) if several else handled

    # Values.

    def _get(self, operand: Any) -> Any:
        return self._env[operand] if isinstance(operand, fx.Node) else operand

    def _classes_of(self, node: fx.Node) -> list[Tensor]:
        found = [leaf for n in node.all_input_nodes for leaf in tree_leaves(self._env[n])]
        return [leaf for leaf in found if isinstance(leaf, Tensor)]

    def _views_of(self, node: fx.Node) -> list[str]:
        return [name for n in node.all_input_nodes for name in _names(self._env[n])]

    def _constant(self, node: fx.Node, operation: Operation) -> ParameterView | Constant | Any:
        """An operation on constants: views and multiples of one parameter still carry its scale."""
        value = node.meta["value"]
        view = self._get(node.args[0]) if node.args else None
        if isinstance(view, ParameterView) and len(node.all_input_nodes) == 1 and isinstance(value, Tensor):
            by_number = len(node.args) == 2 and isinstance(node.args[1], int | float)
            if operation.kind == "homogeneous" or (operation.kind == "scale" and by_number):
                return view
            if operation.kind == "shape":
                if operator_name(node) == "t" and value.ndim == 2:
                    return view.transposed()
                return ParameterView(view.name, value.shape, (*view.moves, partial(_moved, node)))
        sources = frozenset(self._views_of(node))
        for name in sources:
            self.blocked[name] = f"parameter {name!r} enters operation {node.name!r} before it is used"
        return tree_map(lambda v: Constant(v, sources) if isinstance(v, Tensor) else v, value)

    def _opaque(self, node: fx.Node, note: str = "") -> Any:
        reason = note or f"operation {node.name!r} is not known to be rescalable"
        for classes in self._classes_of(node):
            self._ties.fix(classes, reason)
        names = self._views_of(node)
        for name in names:
            self.blocked[name] = f"parameter {name!r} enters operation {node.name!r}, {reason}"
        value = node.meta["value"]
        made = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
        if names and made is not None:  # a layer with weights: say why it has no units
            self._ties.fix(self._ties.fresh(made.shape[1], label(node, self.trace)), reason)
        return _fixed(value)

    def _record(self, view: Any, incoming: Tensor | None, outgoing: Tensor | None = None) -> None:
        """Note what a parameter's entries feed and read; both broadcast to the view's shape."""
        if not isinstance(view, ParameterView):
            return
        blank = torch.full((1,) * len(view.shape), ANY)
        use = RawUse(blank if incoming is None else incoming, blank if outgoing is None else outgoing)
        if view.moves:
            use = RawUse(self._scatter(view, use.incoming), self._scatter(view, use.outgoing))
        self.uses.append((view.name, use))

    def _scatter(self, view: ParameterView, classes: Tensor) -> Tensor:
        shape = self.trace.parameters[view.name].shape
        entries = torch.arange(math.prod(shape)).reshape(shape)
        for move in view.moves:
            entries = move(entries)
        entries, spread = entries.reshape(-1), classes.expand(view.shape).reshape(-1)
        flat = torch.full((math.prod(shape),), ANY)
        flat[entries] = spread
        self._ties.tie(flat[entries], spread, view.name)  # an entry that the view repeats
        return flat.reshape(shape)

    # Operations. Each returns the classes of the result, or None where it is opaque after all.

    def _on_opaque(self, node: fx.Node, operation: Operation) -> Any:
        return None

    def _on_linear(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x, weight, bias = (self._get(o) for o in operation.operands)
        if not isinstance(x, Tensor) or not isinstance(weight, ParameterView):
            return None
        read = self._ties.column(x, (x.ndim - 1,), node.name)
        if len(weight.shape) == 1:
            made = self._ties.fresh(1, operation.name)
            self._record(weight, made, read)
        else:
            weight = weight.transposed()
            made = self._ties.fresh(weight.shape[0], operation.name)
            self._record(weight, made.unsqueeze(1), read.unsqueeze(0))
        product = made.expand(result_shape(node))
        return product if bias is None else self._add(product, bias, node)

    def _on_conv(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x, weight, bias = (self._get(o) for o in operation.operands)
        if not isinstance(x, Tensor) or not isinstance(weight, ParameterView):
            return None
        read = self._ties.column(x, (1,), node.name)
        groups, (rows, per_group) = operation.options["groups"], weight.shape[:2]
        # The weight has a row an output channel; of a transposed convolution, a row an input channel.
        group = torch.arange(rows) // (rows // groups) if groups > 1 else torch.zeros(1, dtype=torch.int64)
        channel = group.unsqueeze(1) * per_group + torch.arange(per_group)
        tail = (1,) * (len(weight.shape) - 2)
        if operation.options["transposed"]:
            made = self._ties.fresh(per_group * groups, operation.name)
            self._record(weight, made[channel].reshape(*channel.shape, *tail), read.reshape(-1, 1, *tail))
        else:
            made = self._ties.fresh(rows, operation.name)
            self._record(weight, made.reshape(-1, 1, *tail), read[channel].reshape(*channel.shape, *tail))
        if isinstance(bias, ParameterView):
            self._record(bias, made)
        elif bias is not None:
            return None
        return _along_channels(made, node)

    def _on_norm(self, node: fx.Node, operation: Operation) -> Any:
        # Its epsilon and running statistics make any scale in front of it inexact; its own affine takes the scale.
        x, weight, bias = (self._get(o) for o in operation.operands)
        if not isinstance(x, Tensor):
            return None
        if not isinstance(weight, ParameterView) or not (bias is None or isinstance(bias, ParameterView)):
            return self._opaque(node, f"normalised by {operation.name!r}, which has no affine parameters to scale")
        self._ties.fix(x, f"normalised by {operation.name!r}, whose own affine is scaled instead")
        made = self._ties.fresh(weight.shape[0], operation.name)
        self._record(weight, made)
        self._record(bias, made)
        return _along_channels(made, node)

    def _on_homogeneous(self, node: fx.Node, operation: Operation) -> Any:
        x = self._get(operation.operands[0])
        return x if isinstance(x, Tensor) else None

    def _on_smooth(self, node: fx.Node, operation: Operation) -> Any:
        if not self._approximate:
            return self._opaque(
                node, f"{operation.name} is not positively homogeneous (approximate=True rescales it, inexactly)"
            )
        self.smooth.add(operation.name)
        return self._on_homogeneous(node, operation)

    def _on_pool(self, node: fx.Node, operation: Operation) -> Any:
        x = self._get(operation.operands[0])
        return _along_channels(self._ties.column(x, (1,), node.name), node) if isinstance(x, Tensor) else None

    def _on_nearest(self, node: fx.Node, operation: Operation) -> Any:
        return self._on_pool(node, operation)

    def _on_pad(self, node: fx.Node, operation: Operation) -> Any:
        x = self._get(operation.operands[0])
        if not isinstance(x, Tensor):
            return None
        if operator_name(node) == "constant_pad_nd":
            return F.pad(x, tuple(operation.options["pad"]), value=ANY)
        return node.target(x.double(), **operation.options).long()  # type: ignore[operator]

    def _on_shape(self, node: fx.Node, operation: Operation) -> Any:
        first, indexing = node.all_input_nodes[0], operator_name(node) in {"index", "index_select"}

        def classes(n: fx.Node) -> Any:
            value = self._env[n]
            if not isinstance(value, ParameterView | Constant):
                return tree_map(contiguous, value)
            for name in _names(value):
                self.blocked[name] = f"parameter {name!r} enters operation {node.name!r} before it is used"
            if indexing and n is not first:
                return n.meta["value"]
            if isinstance(value, Constant):
                return torch.where(value.value.detach().cpu() == 0, ANY, FIXED)
            return _fixed(self.trace.parameters[value.name])

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), classes)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _on_add(self, node: fx.Node, operation: Operation) -> Tensor | None:
        left, right = (self._get(o) for o in operation.operands)
        if not isinstance(left, Tensor):
            left, right = right, left
        return self._add(left, right, node) if isinstance(left, Tensor) else None

    def _add(self, x: Tensor, other: Any, node: fx.Node) -> Tensor:
        shape = result_shape(node)
        if isinstance(other, ParameterView):
            spread = x.expand(shape)
            padded = (1,) * (len(shape) - len(other.shape)) + tuple(other.shape)
            kept = tuple(d for d, size in enumerate(padded) if size > 1)
            read = self._ties.column(spread, kept, node.name)
            self._record(other, read.reshape(other.shape))
            return spread
        if isinstance(other, Tensor):
            self._ties.tie(x, other, node.name)
            return torch.maximum(x, other)
        zero = bool((other.value == 0).all()) if isinstance(other, Constant) else other == 0
        if not zero:
            self._ties.fix(x, f"operation {node.name!r} adds a constant")
            x = torch.zeros_like(x)
        return x.expand(shape)

    def _on_extremum(self, node: fx.Node, operation: Operation) -> Tensor | None:
        left, right = (self._get(o) for o in operation.operands)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            return None
        return self._add(left, right, node)

    def _on_scale(self, node: fx.Node, operation: Operation) -> Tensor | None:
        left, right = (self._get(o) for o in operation.operands)
        shape = result_shape(node)
        divides = operator_name(node) == "div"
        if divides and not isinstance(left, Tensor):
            return None
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            # A gate whose own scale is fixed multiplies without changing classes.
            if not divides and bool((left == FIXED).all()):
                left, right = right, left
            return left.expand(shape) if bool((right == FIXED).all()) else None
        for factor in (left, right):
            if isinstance(factor, ParameterView):
                self.blocked[factor.name] = f"parameter {factor.name!r} multiplies a value in {node.name!r}"
        return (left if isinstance(left, Tensor) else right).expand(shape)

    def _on_reduce(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x = self._get(operation.operands[0])
        if not isinstance(x, Tensor):
            return None
        gone = reduced_dims(operation, x.ndim)
        kept = tuple(d for d in range(x.ndim) if d not in gone)
        return self._ties.column(x, kept, node.name).reshape(result_shape(node))


def _fixed(value: Any) -> Any:
    return tree_map(
        lambda v: torch.full(tuple(v.shape), FIXED, dtype=torch.int64) if isinstance(v, Tensor) else v, value
    )


def contiguous(value: Any) -> Any:
    """A tensor laid out so that ``view`` works where it did in the network; anything else as it is."""
    return value.contiguous() if isinstance(value, Tensor) else value


def _moved(node: fx.Node, entries: Tensor) -> Tensor:
    moved: Tensor = node.target(entries.contiguous(), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return moved


def _transpose(entries: Tensor) -> Tensor:
    return entries.T


def _names(value: Any) -> list[str]:
    """Parameters that a value is, or was computed from."""
    if isinstance(value, ParameterView):
        return [value.name]
    return sorted(value.sources) if isinstance(value, Constant) else []


def _along_channels(classes: Tensor, node: fx.Node) -> Tensor:
    shape = result_shape(node)
    return classes.reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape)
