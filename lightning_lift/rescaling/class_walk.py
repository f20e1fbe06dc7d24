"""One pass over a traced network that gives every entry of every value its class (see ``unit_graph``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from lightning_lift.rescaling.operators import Operation, ParameterName, describe
from lightning_lift.rescaling.ties import ANY, FIXED, Ties
from lightning_lift.rescaling.tracing import Trace

OUTPUT = "network output"


@dataclass(frozen=True)
class ParameterView:
    """A parameter, or a rearranged and multiplied form of one.

    Attributes:
        name: the parameter.
        shape: of the view.
        entries: flat index into the parameter of each entry of the view; None for the parameter itself.
    """

    name: str
    shape: torch.Size
    entries: Tensor | None = None


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


class ClassWalk:
    """Walks one trace.

    Args:
        trace: the operations.
        ties: where fresh classes, ties and reasons are kept; shared by the walks of one network.
        approximate: let smooth activations hand classes on.
    """

    def __init__(self, trace: Trace, ties: Ties, approximate: bool) -> None:
        self.trace = trace
        self.uses: list[tuple[str, RawUse]] = []
        self.blocked: dict[str, str] = {}
        self.smooth: set[str] = set()
        self._ties = ties
        self._approximate = approximate
        self._env: dict[fx.Node, Any] = {}

    def run(self) -> None:
        """Visits every operation once."""
        for node in self.trace.nodes:
            self._env[node] = self._visit(node)

    def _visit(self, node: fx.Node) -> Any:
        value = node.meta["value"]
        if node.op == "output":
            for leaf in self._classes_of(node):
                self._ties.fix(leaf, OUTPUT)
            for name in self._views_of(node):
                self.blocked[name] = f"parameter {name!r} is returned by the network"
            return None
        if node.op == "placeholder":
            return _fixed(value)
        if node.op == "get_attr":
            if str(node.target) in self.trace.parameters:
                return ParameterView(str(node.target), value.shape)
            return Constant(value)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value
        operation = describe(node, self.trace)
        if not node.meta["data"]:
            return self._constant(node, operation)
        handled = getattr(self, f"_on_{operation.kind}")(node, operation)
        return self._opaque(node, operation.note) if handled is None else handled

    # Values.

    def _get(self, operand: Any) -> Any:
        if isinstance(operand, fx.Node):
            return self._env[operand]
        if isinstance(operand, ParameterName):
            return ParameterView(operand.name, self.trace.parameters[operand.name].shape)
        return operand

    def _classes_of(self, node: fx.Node) -> list[Tensor]:
        found = [leaf for n in node.all_input_nodes for leaf in tree_leaves(self._env[n])]
        return [leaf for leaf in found if isinstance(leaf, Tensor)]

    def _views_of(self, node: fx.Node) -> list[str]:
        values = [self._env[n] for n in node.all_input_nodes]
        names = [v.name for v in values if isinstance(v, ParameterView)]
        return names + [s for v in values if isinstance(v, Constant) for s in v.sources]

    def _constant(self, node: fx.Node, operation: Operation) -> ParameterView | Constant | Any:
        """An operation on constants: views and multiples of one parameter still carry its scale."""
        source = node.args[0] if node.args else None
        view = self._env[source] if isinstance(source, fx.Node) else None
        if isinstance(view, ParameterView) and len(node.all_input_nodes) == 1:
            by_number = len(node.args) == 2 and isinstance(node.args[1], int | float)
            if operation.kind == "homogeneous" or (operation.kind == "scale" and by_number):
                return ParameterView(view.name, view.shape, view.entries)
            elif operation.kind == "shape" and operation.run is not None:
                entries = view.entries
                if entries is None:
                    entries = torch.arange(math.prod(view.shape)).reshape(view.shape)
                moved = operation.run(entries, *node.args[1:], **node.kwargs)
                if isinstance(moved, Tensor):
                    return ParameterView(view.name, moved.shape, moved)
        for name in self._views_of(node):
            self.blocked[name] = f"parameter {name!r} enters operation {node.name!r} before it is used"
        value = node.meta["value"]
        sources = frozenset(self._views_of(node))
        return tree_map(lambda v: Constant(v, sources) if isinstance(v, Tensor) else v, value)

    def _opaque(self, node: fx.Node, note: str = "") -> Any:
        reason = note or f"operation {node.name!r} is not known to be rescalable"
        for classes in self._classes_of(node):
            self._ties.fix(classes, reason)
        names = self._views_of(node)
        if node.op == "call_module":
            module = self.trace.modules[str(node.target)]
            names += [self.trace.parameter_names[id(p)] for p in module.parameters()]
        for name in names:
            self.blocked[name] = f"parameter {name!r} enters operation {node.name!r}, {reason}"
        value = node.meta["value"]
        made = next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
        if names and made is not None:  # a layer with weights: say why it has no units
            label = str(node.target) if node.op == "call_module" else node.name
            self._ties.fix(self._ties.fresh(made.shape[1], label), reason)
        return _fixed(value)

    def _record(self, view: Any, incoming: Tensor | None, outgoing: Tensor | None = None) -> None:
        """Notes what a parameter's entries feed and read; both broadcast to the view's shape."""
        if not isinstance(view, ParameterView):
            return
        blank = torch.full((1,) * len(view.shape), ANY)
        use = RawUse(blank if incoming is None else incoming, blank if outgoing is None else outgoing)
        if view.entries is not None:
            use = RawUse(self._scatter(view, use.incoming), self._scatter(view, use.outgoing))
        self.uses.append((view.name, use))

    def _scatter(self, view: ParameterView, classes: Tensor) -> Tensor:
        assert view.entries is not None
        shape = self.trace.parameters[view.name].shape
        entries, spread = view.entries.reshape(-1), classes.expand(view.shape).reshape(-1)
        flat = torch.full((math.prod(shape),), ANY)
        flat[entries] = spread
        self._ties.tie(flat[entries], spread, view.name)  # an entry that the view repeats
        return flat.reshape(shape)

    # Operations. Each returns the classes of the result, or None where it is opaque after all.

    def _on_opaque(self, node: fx.Node, operation: Operation) -> Any:
        return None

    def _on_linear(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x, weight, bias = (self._get(o) for o in operation.operands)
        if operation.options.get("transposed") and isinstance(weight, ParameterView) and len(weight.shape) == 2:
            weight = _transpose(weight)
        if not isinstance(x, Tensor) or not isinstance(weight, ParameterView) or len(weight.shape) > 2:
            return None
        if bias is not None and not isinstance(bias, ParameterView):
            return None
        read = self._ties.column(x, (x.ndim - 1,), node.name)
        made = self._ties.fresh(weight.shape[0] if len(weight.shape) == 2 else 1, operation.name)
        if len(weight.shape) == 1:
            self._record(weight, made, read)
            return made.expand(node.meta["value"].shape)
        self._record(weight, made.unsqueeze(1), read.unsqueeze(0))
        self._record(bias, made)
        return made.expand(node.meta["value"].shape)

    def _on_addmm(self, node: fx.Node, operation: Operation) -> Tensor | None:
        bias, x, weight = operation.operands
        product = self._on_linear(node, Operation("linear", operation.name, (x, weight, None), None, {"transposed": 1}))
        return None if product is None else self._add(product, self._get(bias), node)

    def _on_conv(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x, weight, bias = (self._get(o) for o in operation.operands)
        if not isinstance(x, Tensor) or not isinstance(weight, ParameterView):
            return None
        if bias is not None and not isinstance(bias, ParameterView):
            return None
        read = self._ties.column(x, (1,), node.name)
        outputs, per_group = weight.shape[:2]
        made = self._ties.fresh(outputs, operation.name)
        group = torch.arange(outputs) // (outputs // operation.options["groups"])
        if operation.options["groups"] == 1:
            group = group[:1]
        channel = group.unsqueeze(1) * per_group + torch.arange(per_group)
        tail = (1,) * (len(weight.shape) - 2)
        self._record(weight, made.reshape(-1, 1, *tail), read[channel].reshape(*channel.shape, *tail))
        self._record(bias, made)
        return _along_channels(made, node)

    def _on_conv_transpose(self, node: fx.Node, operation: Operation) -> Tensor | None:
        x, weight, bias = (self._get(o) for o in operation.operands)
        if not isinstance(x, Tensor) or not isinstance(weight, ParameterView):
            return None
        if bias is not None and not isinstance(bias, ParameterView):
            return None
        groups = operation.options["groups"]
        read = self._ties.column(x, (1,), node.name)
        inputs, per_group = weight.shape[:2]
        made = self._ties.fresh(per_group * groups, operation.name)
        group = torch.arange(inputs) // (inputs // groups)
        channel = group.unsqueeze(1) * per_group + torch.arange(per_group)
        tail = (1,) * (len(weight.shape) - 2)
        self._record(weight, made[channel].reshape(*channel.shape, *tail), read.reshape(-1, 1, *tail))
        self._record(bias, made)
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
        return F.pad(x, tuple(operation.options["pad"]), value=ANY) if isinstance(x, Tensor) else None

    def _on_shape(self, node: fx.Node, operation: Operation) -> Any:
        assert operation.run is not None
        first = [True]

        def classes(n: fx.Node) -> Any:
            value = self._env[n]
            if isinstance(value, ParameterView | Constant):
                for name in [value.name] if isinstance(value, ParameterView) else value.sources:
                    self.blocked[name] = f"parameter {name!r} enters operation {node.name!r} before it is used"
                if not first[0] and operation.name in {"getitem", "index_select"}:
                    return n.meta["value"]  # indices
                real = self.trace.parameters[value.name] if isinstance(value, ParameterView) else value.value
                return (
                    torch.where(real.detach().cpu() == 0, ANY, FIXED) if isinstance(value, Constant) else _fixed(real)
                )
            first[0] = False
            return tree_map(contiguous, value)

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), classes)
        return operation.run(*args, **kwargs)

    def _on_add(self, node: fx.Node, operation: Operation) -> Tensor | None:
        left, right = (self._get(o) for o in operation.operands)
        if not isinstance(left, Tensor):
            left, right = right, left
        return self._add(left, right, node) if isinstance(left, Tensor) else None

    def _add(self, x: Tensor, other: Any, node: fx.Node) -> Tensor:
        shape = node.meta["value"].shape
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
        shape = node.meta["value"].shape
        if operation.options["divide"] and not isinstance(left, Tensor):
            return None
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            # A gate whose own scale is fixed multiplies without changing classes.
            if not operation.options["divide"] and bool((left == FIXED).all()):
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
        dims = operation.options["dims"]
        kept = tuple(d for d in range(x.ndim) if d not in dims)
        return self._ties.column(x, kept, node.name).reshape(node.meta["value"].shape)


def _fixed(value: Any) -> Any:
    return tree_map(
        lambda v: torch.full(tuple(v.shape), FIXED, dtype=torch.int64) if isinstance(v, Tensor) else v, value
    )


def contiguous(value: Any) -> Any:
    """A tensor laid out so that ``view`` works where it did in the network; anything else as it is."""
    return value.contiguous() if isinstance(value, Tensor) else value


def _transpose(view: ParameterView) -> ParameterView:
    entries = view.entries
    if entries is None:
        entries = torch.arange(math.prod(view.shape)).reshape(view.shape)
    return ParameterView(view.name, torch.Size(reversed(view.shape)), entries.T)


def _along_channels(classes: Tensor, node: fx.Node) -> Tensor:
    shape = node.meta["value"].shape
    return classes.reshape(1, -1, *(1,) * (len(shape) - 2)).expand(shape)
