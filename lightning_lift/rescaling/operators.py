"""What each recorded operation means for rescaling: the one table of supported operations.

Both walks over a traced network, the one that finds the units (``unit_graph``) and the one that computes the path
kernel (``path_kernel``), read the same descriptions. An operation that is not listed is ``opaque``: its inputs are
left alone, and it ends the paths that reach it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from lightning_lift.rescaling.tracing import Trace, mutates, operator_name

Kind = Literal[
    "linear", "conv", "norm", "homogeneous", "smooth", "pool", "nearest", "shape", "pad", "add", "extremum", "scale",
    "reduce", "opaque",
]  # fmt: skip

# Operators of ``aten`` by kind, and the names of the arguments that are values; the others are options.
_TABLE: dict[Kind, tuple[str, str]] = {
    "linear": ("mm mv addmm", ""),
    "conv": ("convolution", "input weight bias"),
    "norm": ("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional", "input weight bias"),
    "homogeneous": ("relu leaky_relu prelu _prelu_kernel rrelu_with_noise abs neg clone alias detach _to_copy "
                    "native_dropout clamp clamp_min lift_fresh_copy", "self input"),
    "smooth": ("gelu silu mish softplus elu celu selu hardswish log_sigmoid log_sigmoid_forward", "self"),
    "pool": ("avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d "
             "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d", "self"),
    "nearest": ("upsample_nearest1d upsample_nearest2d upsample_nearest3d", "self input"),
    "shape": ("view _unsafe_view permute transpose t squeeze unsqueeze expand select slice split split_with_sizes "
              "unbind copy slice_scatter select_scatter cat stack flip roll repeat index index_select pixel_shuffle "
              "pixel_unshuffle channel_shuffle", ""),
    "pad": ("constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
            "replication_pad3d", "self"),
    "add": ("add sub", "self other"),
    "extremum": ("maximum minimum", "self other"),
    "scale": ("mul div", "self other"),
    "reduce": ("sum mean amax amin", "self"),
}  # fmt: skip
_KINDS: dict[str, Kind] = {name: kind for kind, (names, _) in _TABLE.items() for name in names.split()}


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        kind: its meaning.
        name: how messages call it.
        operands: nodes or plain values, in the order of the table.
        options: its other arguments by name.
        note: why it is opaque.
    """

    kind: Kind
    name: str
    operands: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def describe(node: fx.Node, trace: Trace) -> Operation:
    """Look one operation up.

    Args:
        node: a ``call_function`` node of the trace.
        trace: the trace it belongs to.
    """
    modules = [trace.modules[name] for name in _path(node, trace)]
    if any(m._forward_hooks or m._forward_pre_hooks or parametrize.is_parametrized(m) for m in modules):
        name = _path(node, trace)[-1]
        return Operation("opaque", name, note=f"{name!r} has forward hooks or parametrizations")
    operator = operator_name(node)
    kind = _KINDS.get(operator, "opaque")
    arguments = _arguments(node)
    values = [arguments.pop(name) for name in _TABLE.get(kind, ("", ""))[1].split() if name in arguments]
    if kind == "linear":
        values = [*node.args[-2:], node.args[0] if operator == "addmm" else None]
    if kind == "opaque" or mutates(node) or not _fits(operator, values, arguments):
        return Operation("opaque", label(node, trace), note=f"{_title(node, trace)} is not known to be rescalable")
    return Operation(
        kind, _smooth_name(node, trace) if kind == "smooth" else label(node, trace), tuple(values), arguments
    )


def label(node: fx.Node, trace: Trace) -> str:
    """The layer of ``torch.nn`` that an operation is, or the operation's own name."""
    path = _path(node, trace)
    return path[-1] if path and _is_layer(trace.modules[path[-1]]) else node.name


def _arguments(node: fx.Node) -> dict[str, Any]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    named = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return named | dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | dict(node.kwargs)


def _fits(operator: str, values: list[Any], options: dict[str, Any]) -> bool:
    if operator.startswith("clamp"):
        return options.get("min") == 0 and options.get("max") is None
    if operator == "constant_pad_nd":
        return not options.get("value")
    if operator in {"add", "sub"}:
        return isinstance(options.get("alpha", 1), int | float)
    if operator in {"index", "index_select"}:
        indices = options.get("indices", options.get("index"))
        found = indices if isinstance(indices, list | tuple) else [indices]
        return not any(isinstance(index, fx.Node) and index.meta["data"] for index in found)
    return options.get("rounding_mode") is None


def _path(node: fx.Node, trace: Trace) -> list[str]:
    """Qualified names of the modules in which the operation happens, the network itself left out."""
    return [name for name in node.meta.get("custom", {}).get("path", ()) if name in trace.modules and name]


def _is_layer(module: nn.Module) -> bool:
    kind = type(module).__module__
    return kind.startswith("torch.nn.modules") and not kind.endswith("container")


def _title(node: fx.Node, trace: Trace) -> str:
    layers = [name for name in _path(node, trace) if _is_layer(trace.modules[name])]
    return (
        f"{type(trace.modules[layers[0]]).__name__} {layers[0]!r}" if layers else f"operation {operator_name(node)!r}"
    )


def _smooth_name(node: fx.Node, trace: Trace) -> str:
    name = label(node, trace)
    return operator_name(node) if name == node.name else type(trace.modules[name]).__name__


def result_shape(node: fx.Node) -> torch.Size:
    """Shape of what an operation returned; of several results the first, which is the one that counts."""
    value = node.meta["value"]
    shape: torch.Size = (value if isinstance(value, Tensor) else value[0]).shape
    return shape


def reduced_dims(operation: Operation, rank: int) -> tuple[int, ...]:
    """The dimensions that a ``reduce`` operation sums, averages or maximises over."""
    dims = operation.options.get("dim")
    dims = list(range(rank)) if dims is None or dims == [] else dims
    return tuple(int(d) % rank for d in (dims if isinstance(dims, list | tuple) else [dims]))
