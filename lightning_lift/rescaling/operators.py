"""What each recorded operation means for rescaling: the one table of supported operations.

Both walks over a traced network, the one that finds the units (``unit_graph``) and the one that computes the path
kernel (``path_kernel``), read the same descriptions. An operation that is not listed is ``opaque``: its inputs are
left alone, and it ends the paths that reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from lightning_lift.rescaling.tracing import Trace

Kind = Literal[
    "linear", "conv", "conv_transpose", "norm", "homogeneous", "smooth", "pool", "nearest", "shape", "pad",
    "add", "extremum", "scale", "reduce", "addmm", "opaque",
]  # fmt: skip


@dataclass(frozen=True)
class ParameterName:
    """A parameter read inside a module of ``torch.nn``."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        kind: its meaning.
        name: how messages call it.
        operands: nodes, parameter names or plain values, in the order the kind prescribes.
        run: the operation on tensors, where a walk needs it.
        options: numbers that the kind needs.
        note: why it is opaque.
    """

    kind: Kind
    name: str
    operands: tuple[Any, ...] = ()
    run: Callable[..., Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""


_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_HOMOGENEOUS_MODULES = (nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Identity, *_DROPOUT)
_HOMOGENEOUS = {
    "relu", "relu_", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rrelu_", "abs", "absolute", "neg", "negative",
    "dropout", "dropout1d", "dropout2d", "dropout3d", "clone", "contiguous", "detach", "float", "double", "half",
    "bfloat16", "to", "type_as", "cuda", "cpu", "pos",
}  # fmt: skip
_SMOOTH_MODULES = (nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.ELU, nn.CELU, nn.SELU, nn.Hardswish, nn.LogSigmoid)
_SMOOTH = {"gelu", "silu", "mish", "softplus", "elu", "elu_", "celu", "selu", "hardswish", "logsigmoid", "log_sigmoid"}
_SHAPE_MODULES = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
_SHAPE = {
    "flatten", "unflatten", "view", "reshape", "view_as", "reshape_as", "permute", "transpose", "swapaxes", "movedim",
    "t", "squeeze", "unsqueeze", "getitem", "chunk", "split", "tensor_split", "unbind", "narrow", "select", "expand",
    "expand_as", "repeat", "tile", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "flip", "roll",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "index_select",
}  # fmt: skip
_ADD = {"add": 1.0, "add_": 1.0, "iadd": 1.0, "sub": -1.0, "sub_": -1.0, "isub": -1.0, "subtract": -1.0}
_SCALE = {"mul": False, "mul_": False, "imul": False, "multiply": False,
          "truediv": True, "itruediv": True, "div": True, "div_": True, "divide": True}  # fmt: skip
_REDUCE = {"sum", "mean", "amax", "amin"}
_CONV = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
_CONV_TRANSPOSE = {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}
_CONV_MODULES: dict[type, int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_CONV_TRANSPOSE_MODULES: dict[type, int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_MAX_POOL: dict[type, int] = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}
_AVERAGE_POOL: dict[type, int] = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
_ADAPTIVE_POOL: dict[type, tuple[int, str]] = {
    nn.AdaptiveAvgPool1d: (1, "average"), nn.AdaptiveAvgPool2d: (2, "average"), nn.AdaptiveAvgPool3d: (3, "average"),
    nn.AdaptiveMaxPool1d: (1, "max"), nn.AdaptiveMaxPool2d: (2, "max"), nn.AdaptiveMaxPool3d: (3, "max"),
}  # fmt: skip
_POOL_FUNCTIONS: dict[str, tuple[int, str]] = {
    f"{stem}{rank}d": (rank, kind)
    for rank in (1, 2, 3)
    for stem, kind in (("max_pool", "max"), ("avg_pool", "average"), ("adaptive_avg_pool", "average"),
                       ("adaptive_max_pool", "max"))
}  # fmt: skip


def describe(node: fx.Node, trace: Trace) -> Operation:
    """Looks an operation up.

    Args:
        node: a ``call_module``, ``call_function`` or ``call_method`` node of the trace.
        trace: the trace it belongs to.
    """
    if not isinstance(node.meta["value"], Tensor) and not _returns_pieces(node):
        return Operation("opaque", node.name, note=f"{node.name} does not return one tensor")
    found = _describe_module(node, trace) if node.op == "call_module" else _describe_function(node)
    return found or Operation("opaque", node.name, note=f"{_title(node, trace)} is not known to be rescalable")


def _title(node: fx.Node, trace: Trace) -> str:
    if node.op == "call_module":
        return f"{type(trace.modules[str(node.target)]).__name__} {str(node.target)!r}"
    return f"operation {function_name(node)!r}"


def function_name(node: fx.Node) -> str:
    """The bare name of a function or method node."""
    return str(node.target) if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _returns_pieces(node: fx.Node) -> bool:
    return node.op != "call_module" and function_name(node) in {"chunk", "split", "tensor_split", "unbind"}


def _is_plain(module: nn.Module) -> bool:
    """No hook or parametrization stands between the stored parameters and what is computed."""
    return not (module._forward_hooks or module._forward_pre_hooks or parametrize.is_parametrized(module))


def _describe_module(node: fx.Node, trace: Trace) -> Operation | None:
    name = str(node.target)
    module = trace.modules[name]
    if not _is_plain(module):
        return Operation("opaque", name, note=f"{name!r} has forward hooks or parametrizations")
    if len(node.args) != 1 or node.kwargs:
        return None
    x = node.args[0]

    def parameter(attribute: str) -> ParameterName | None:
        value = getattr(module, attribute)
        return None if value is None else ParameterName(trace.parameter_names[id(value)])

    kind = type(module)
    if kind is nn.Linear:
        return Operation("linear", name, (x, parameter("weight"), parameter("bias")), F.linear)
    if kind in _CONV_MODULES and _rank_fits(x, _CONV_MODULES[kind]):
        run: Callable[..., Any] = module._conv_forward  # type: ignore[assignment]
        operands = (x, parameter("weight"), parameter("bias"))
        return Operation("conv", name, operands, run, {"groups": module.groups})
    if kind in _CONV_TRANSPOSE_MODULES and _rank_fits(x, _CONV_TRANSPOSE_MODULES[kind]):
        numbers = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
        function = getattr(F, f"conv_transpose{_CONV_TRANSPOSE_MODULES[kind]}d")
        return Operation(
            "conv_transpose",
            name,
            (x, parameter("weight"), parameter("bias")),
            lambda x, w, b: function(x, w, b, *numbers),
            {"groups": module.groups},
        )
    if isinstance(module, _BATCH_NORM):
        options: dict[str, Any] = {"mean": module.running_mean, "variance": module.running_var, "epsilon": module.eps}
        return Operation("norm", name, (x, parameter("weight"), parameter("bias")), None, options)
    if kind in _HOMOGENEOUS_MODULES:
        return Operation("homogeneous", name, (x,))
    if kind in _SMOOTH_MODULES:
        return Operation("smooth", kind.__name__, (x,))
    if kind in _SHAPE_MODULES:
        return Operation("shape", name, (x,), module.forward)
    if kind in _MAX_POOL or kind in _AVERAGE_POOL:
        rank = _MAX_POOL.get(kind) or _AVERAGE_POOL[kind]
        options = {"rank": rank, "reduction": "max" if kind in _MAX_POOL else "average", "adaptive": False}
        options |= {k: getattr(module, k, 1) for k in ("kernel_size", "stride", "padding", "dilation")}
        return Operation("pool", name, (x,), module.forward, options) if _rank_fits(x, rank) else None
    if kind in _ADAPTIVE_POOL:
        rank, reduction = _ADAPTIVE_POOL[kind]
        options = {"rank": rank, "reduction": reduction, "adaptive": True}
        return Operation("pool", name, (x,), module.forward, options) if _rank_fits(x, rank) else None
    if isinstance(module, nn.Upsample) and module.mode == "nearest":
        return Operation("nearest", name, (x,), module.forward)
    if isinstance(module, nn.ZeroPad1d | nn.ZeroPad2d | nn.ZeroPad3d):
        return Operation("pad", name, (x,), None, {"pad": module.padding})
    return None


def _rank_fits(x: Any, rank: int) -> bool:
    """With a batch and a channel dimension in front."""
    return isinstance(x, fx.Node) and x.meta["value"].ndim == rank + 2


def _arguments(node: fx.Node, names: str) -> dict[str, Any]:
    found = dict(zip(names.split(), node.args, strict=False)) | dict(node.kwargs)
    return found


def _describe_function(node: fx.Node) -> Operation | None:
    name = function_name(node)
    if node.target is getattr:
        return _describe_attribute(node)
    origin = getattr(node.target, "__module__", None) or "torch"
    if origin.partition(".")[0] not in {"torch", "_operator", "builtins"}:
        return None  # a wrapped function of the user's may share a name with one of torch
    if name in _HOMOGENEOUS:
        return Operation("homogeneous", name, (node.args[0] if node.args else node.kwargs["input"],))
    if name in {"clamp", "clamp_min", "clamp_", "clamp_min_"}:
        arguments = _arguments(node, "input min max")
        if arguments.get("min") == 0 and arguments.get("max") is None:
            return Operation("homogeneous", name, (arguments["input"],))
        return None
    if name in _SMOOTH:
        return Operation("smooth", name, (node.args[0] if node.args else node.kwargs["input"],))
    if name in _SHAPE:
        if name in {"getitem", "index_select"} and any(n.meta["data"] for n in node.all_input_nodes[1:]):
            return None  # indices that depend on the data
        return Operation("shape", name, (), _runner(node))
    if name == "pad":
        arguments = _arguments(node, "input pad mode value")
        if arguments.get("mode", "constant") == "constant" and not arguments.get("value"):
            return Operation("pad", name, (arguments["input"],), None, {"pad": arguments["pad"]})
        return None
    if name in _ADD and len(node.args) == 2 and set(node.kwargs) <= {"alpha"}:
        alpha = _ADD[name] * float(node.kwargs.get("alpha", 1.0))  # type: ignore[arg-type]
        return Operation("add", name, tuple(node.args), None, {"alpha": alpha})
    if name in _SCALE and len(node.args) == 2 and not node.kwargs:
        return Operation("scale", name, tuple(node.args), None, {"divide": _SCALE[name]})
    if name in {"maximum", "minimum"} and len(node.args) == 2:
        return Operation("extremum", name, tuple(node.args))
    if name in _REDUCE:
        return _describe_reduction(node, name)
    return _describe_affine(node, name) or _describe_resampling(node, name)


def _runner(node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_method":
        return lambda x, *args, **kwargs: getattr(x, str(node.target))(*args, **kwargs)
    assert callable(node.target)
    return node.target


def _describe_attribute(node: fx.Node) -> Operation | None:
    x, name = node.args
    if name in {"T", "mT", "H"}:
        return Operation("shape", str(name), (), lambda x, name: getattr(x, "mT" if name == "mT" else "T"))
    return Operation("homogeneous", str(name), (x,)) if name == "data" else None


def _describe_reduction(node: fx.Node, name: str) -> Operation | None:
    arguments = _arguments(node, "input dim keepdim")
    if not set(arguments) <= {"input", "dim", "keepdim"}:
        return None
    dims = arguments.get("dim")
    rank = arguments["input"].meta["value"].ndim
    dims = range(rank) if dims is None else (dims if isinstance(dims, list | tuple) else (dims,))
    options = {
        "dims": tuple(int(d) % rank for d in dims),
        "keepdim": bool(arguments.get("keepdim", False)),
        "mean": name == "mean",
    }
    return Operation("reduce", name, (arguments["input"],), None, options)


def _describe_affine(node: fx.Node, name: str) -> Operation | None:
    if name == "linear":
        a = _arguments(node, "input weight bias")
        return Operation("linear", node.name, (a["input"], a["weight"], a.get("bias")), F.linear)
    if name in {"matmul", "mm", "mv"} and len(node.args) == 2:
        return Operation("linear", node.name, (*node.args, None), None, {"transposed": True})
    if name == "addmm" and len(node.args) == 3 and not node.kwargs:
        return Operation("addmm", node.name, tuple(node.args))
    if name in _CONV or name in _CONV_TRANSPOSE:
        tail = "stride padding dilation groups" if name in _CONV else "stride padding output_padding groups dilation"
        a = _arguments(node, f"input weight bias {tail}")
        if not _rank_fits(a["input"], (_CONV | _CONV_TRANSPOSE)[name]):
            return None
        rest = {k: v for k, v in a.items() if k not in {"input", "weight", "bias"}}
        function: Callable[..., Tensor] = getattr(F, name)
        return Operation(
            "conv" if name in _CONV else "conv_transpose",
            node.name,
            (a["input"], a["weight"], a.get("bias")),
            lambda x, w, b: function(x, w, b, **rest),
            {"groups": a.get("groups", 1)},
        )
    if node.target is F.batch_norm:
        a = _arguments(node, "input running_mean running_var weight bias training momentum eps")
        options = {
            "mean": a.get("running_mean"),
            "variance": a.get("running_var"),
            "epsilon": a.get("eps", 1e-5),
        }
        return Operation("norm", node.name, (a["input"], a.get("weight"), a.get("bias")), None, options)
    return None


def _describe_resampling(node: fx.Node, name: str) -> Operation | None:
    if name in {"interpolate", "upsample"}:
        a = _arguments(node, "input size scale_factor mode")
        rest = {k: v for k, v in a.items() if k != "input"}
        plain = a.get("mode", "nearest") == "nearest"
        return Operation("nearest", name, (a["input"],), lambda x: F.interpolate(x, **rest)) if plain else None
    if name not in _POOL_FUNCTIONS:
        return None
    rank, reduction = _POOL_FUNCTIONS[name]
    adaptive = name.startswith("adaptive")
    a = _arguments(node, "input kernel_size stride padding" + (" dilation" if reduction == "max" else ""))
    if not _rank_fits(a["input"], rank):
        return None
    options = {"rank": rank, "reduction": reduction, "adaptive": adaptive}
    if not adaptive:
        options |= {"kernel_size": a["kernel_size"], "stride": a.get("stride"), "padding": a.get("padding", 0)}
        options["dilation"] = a.get("dilation", 1)
    positional, named = node.args[1:], {k: v for k, v in node.kwargs.items() if k != "input"}
    function = node.target
    assert callable(function)
    return Operation("pool", name, (a["input"],), lambda x: function(x, *positional, **named), options)
