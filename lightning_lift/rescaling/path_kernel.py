r"""The diagonal of the path kernel, by one backward pass.

Phi(theta) is the path lifting: one entry a path through the network, the product of the weights along it. The
diagonal of G = (d Phi / d theta)^T (d Phi / d theta) is
``G_ii = sum over the paths through i of the product of the other squared weights``,
which is the derivative, with respect to theta_i^2, of the sum of the outputs of the network with every parameter
squared, activations removed, fed with ones (Lebeurrier, Vayer & Gribonval, "Path-conditioned training", 2026).

What the layers that are not in that formula become:

- pooling: see ``pooling.squared_pool``; multiplication by a constant c: an edge of weight c, hence c^2;
- batch norm: its evaluation form x w / s + (b - w m / s) with s = sqrt(running variance + epsilon): an edge of weight
  1 / s and a constant source m / s in front of the weight w, and a bias b. Without running statistics m = 0 and s = 1;
- a gate (a product of two values): the product of the flows;
- an opaque operation: the paths that reach it end there, and it is a new source of ones.

A parameter used at several places is differentiated as if each use were apart, and added up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from lightning_lift.rescaling.operators import Operation, describe, reduced_dims
from lightning_lift.rescaling.pooling import squared_pool
from lightning_lift.rescaling.scale_propagation import contiguous
from lightning_lift.rescaling.tracing import Trace, is_piece, operator_name


def path_kernel_diagonal(trace: Trace) -> dict[str, Tensor]:
    """The diagonal of the path kernel at the network's present parameters.

    Args:
        trace: the network's operations (``UnitGraph.trace``).

    Returns:
        For each parameter on a path from input or bias to output, a float64 tensor of its shape on the CPU; nothing
        where no path runs through a parameter.

    Raises:
        ValueError: the squared path weights overflow float64.
    """
    walk = _SquaredWalk(trace)
    with torch.enable_grad():
        total = walk.run()
        if not torch.isfinite(total):
            raise ValueError(
                f"The sum of squared path weights is {float(total)}: weights that are not finite, or so large that "
                "float64 overflows; look at the parameters."
            )
        if not total.requires_grad:
            return {}
        names = list(walk.squared)
        gradients = torch.autograd.grad(total, [walk.squared[n] for n in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, gradients, strict=True) if g is not None}


class _SquaredWalk:
    """The network on squared parameters."""

    def __init__(self, trace: Trace) -> None:
        self.squared: dict[str, Tensor] = {}
        self._trace = trace
        self._env: dict[fx.Node, Any] = {}
        self._total = torch.zeros((), dtype=torch.float64)

    def run(self) -> Tensor:
        for node in self._trace.nodes:
            self._env[node] = self._visit(node)
        return self._total

    def _visit(self, node: fx.Node) -> Any:
        value = node.meta["value"]
        if node.op == "output":
            self._end(node)
            return None
        if node.op in {"placeholder", "get_attr"}:
            if "parameter" in node.meta:
                return self._parameter(node.meta["parameter"])
            return _ones(value) if node.meta["data"] else _square(value)
        if is_piece(node):
            return self._env[node.args[0]][node.args[1]]  # type: ignore[index]
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value
        operation = describe(node, self._trace)
        if operation.kind in {"opaque", "smooth"} and not node.meta["data"]:
            return _square(value)  # a constant, whatever it was made from
        handled = getattr(self, f"_on_{operation.kind}")(node, operation)
        if handled is None:
            self._end(node)
            return _ones(value)
        several = isinstance(value, tuple | list) and isinstance(handled, Tensor)
        return (handled, *_ones(list(value[1:]))) if several else handled

    def _parameter(self, name: str) -> Tensor:
        if name not in self.squared:
            values = self._trace.parameters[name].detach().to("cpu", torch.float64)
            self.squared[name] = values.square().requires_grad_()
        return self.squared[name]

    def _get(self, operand: Any) -> Any:
        if isinstance(operand, fx.Node):
            return self._env[operand]
        return _square(operand) if isinstance(operand, Tensor | int | float) else operand

    def _end(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source.meta["data"]:
                for leaf in tree_leaves(self._env[source]):
                    if isinstance(leaf, Tensor):
                        self._total = self._total + leaf.sum()

    def _on_opaque(self, node: fx.Node, operation: Operation) -> Any:
        return None

    def _on_linear(self, node: fx.Node, operation: Operation) -> Any:
        x, weight, bias = (self._get(o) for o in operation.operands)
        alpha, beta = (float(operation.options.get(name, 1)) ** 2 for name in ("alpha", "beta"))  # of addmm
        return x @ weight if bias is None else alpha * (x @ weight) + beta * bias

    def _on_conv(self, node: fx.Node, operation: Operation) -> Any:
        return node.target(*(self._get(o) for o in operation.operands), **operation.options)  # type: ignore[operator]

    def _on_norm(self, node: fx.Node, operation: Operation) -> Any:
        x, weight, bias = (self._get(o) for o in operation.operands)
        mean, variance = (self._statistic(operation.options.get(f"running_{k}")) for k in ("mean", "var"))
        shape = (1, -1, *(1,) * (x.ndim - 2))
        if variance is not None and mean is not None:
            scale = (variance + operation.options["eps"]).reciprocal().reshape(shape)
            x = (x + mean.square().reshape(shape)) * scale
        if weight is not None:
            x = x * weight.reshape(shape)
        return x if bias is None else x + bias.reshape(shape)

    @staticmethod
    def _statistic(value: Any) -> Tensor | None:
        if isinstance(value, fx.Node):
            value = value.meta["value"]
        return None if value is None else value.detach().to("cpu", torch.float64)

    def _on_homogeneous(self, node: fx.Node, operation: Operation) -> Any:
        return self._get(operation.operands[0])

    def _on_smooth(self, node: fx.Node, operation: Operation) -> Any:
        return self._get(operation.operands[0])

    def _on_pool(self, node: fx.Node, operation: Operation) -> Any:
        return squared_pool(self._get(operation.operands[0]), node, operation)

    def _on_nearest(self, node: fx.Node, operation: Operation) -> Any:
        return self._on_conv(node, operation)

    def _on_pad(self, node: fx.Node, operation: Operation) -> Any:
        return self._on_conv(node, operation)

    def _on_shape(self, node: fx.Node, operation: Operation) -> Any:
        first, indexing = node.all_input_nodes[0], operator_name(node) in {"index", "index_select"}
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs),
            lambda n: n.meta["value"] if indexing and n is not first else tree_map(contiguous, self._env[n]),
        )
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _on_add(self, node: fx.Node, operation: Operation) -> Any:
        left, right = (self._get(o) for o in operation.operands)
        return left + operation.options.get("alpha", 1) ** 2 * right

    def _on_extremum(self, node: fx.Node, operation: Operation) -> Any:
        left, right = (self._get(o) for o in operation.operands)
        return left + right

    def _on_scale(self, node: fx.Node, operation: Operation) -> Any:
        left, right = (self._get(o) for o in operation.operands)
        if operator_name(node) == "div":
            denominator = operation.operands[1]
            return None if isinstance(denominator, fx.Node) and denominator.meta["data"] else left / right
        return left * right

    def _on_reduce(self, node: fx.Node, operation: Operation) -> Any:
        x = self._get(operation.operands[0])
        dims = reduced_dims(operation, x.ndim)
        total = x.sum(dims, keepdim=bool(operation.options.get("keepdim")))
        return total / math.prod(x.shape[d] for d in dims) ** 2 if operator_name(node) == "mean" else total


def _ones(value: Any) -> Any:
    return tree_map(lambda v: torch.ones(tuple(v.shape), dtype=torch.float64) if isinstance(v, Tensor) else v, value)


def _square(value: Any) -> Any:
    def one(v: Any) -> Any:
        if isinstance(v, Tensor):
            return v.detach().to("cpu", torch.float64).square()
        return float(v) ** 2 if isinstance(v, int | float) else v

    return tree_map(one, value)
