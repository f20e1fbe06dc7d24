"""Record the operations of a network on one example row, as a graph of few kinds of operators.

``make_fx`` sees what autograd sees: the many ways to write a layer become some dozens of operators of ``aten`` (matrix
product, convolution, batch norm, addition, ...) without mutation. Shapes are ordinary numbers; control flow on the
*values* of the data is refused, because another input could take the other branch. (``torch.export`` gives the same
operators and takes half a second for each network, a hundred times as long.)
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

ExampleInput = Tensor | Sequence[Any] | Mapping[str, Any]

# Constants, though they take their shape from a tensor that may depend on the data.
_FACTORIES = {"new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like"}


class UntraceableModelError(ValueError):
    """The forward function cannot be recorded as a fixed graph of operations."""


@dataclass(frozen=True)
class Trace:
    """One recorded forward pass.

    Attributes:
        nodes: in execution order. ``meta["data"]`` says whether a node depends on the input, ``meta["value"]`` holds
            what it returned: a tensor without numbers where it does. ``meta["parameter"]`` names a parameter, and
            ``meta["custom"]["path"]`` the modules in which the operation happens.
        modules: every submodule by qualified name.
        parameters: every parameter by its first qualified name.
    """

    nodes: tuple[fx.Node, ...]
    modules: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]

    def signature(self) -> tuple[str, ...]:
        """What the pass does, without its constants: equal for two passes over the same operations."""
        return tuple(f"{n.op}:{n.target}:{','.join(a.name for a in n.all_input_nodes)}" for n in self.nodes)


def bind_example(model: nn.Module, example_input: ExampleInput) -> dict[str, Any]:
    """The arguments of ``model.forward`` by name.

    Args:
        model: the network.
        example_input: one tensor, a sequence of positional arguments, or a mapping of named ones.

    Raises:
        ValueError: they do not fit the signature of forward.
    """
    if isinstance(example_input, Mapping):
        args, kwargs = (), dict(example_input)
    else:
        args = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
        kwargs = {}
    try:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ValueError(f"example_input does not fit {type(model).__name__}.forward: {error}.") from error


def trace_model(model: nn.Module, example_input: ExampleInput) -> list[Trace]:
    """Record the forward pass in evaluation and, where it takes other operations, in training mode.

    Args:
        model: the network; left as it was, in the same mode.
        example_input: arguments of its forward; the first dimension of each tensor is the batch, of which one row is
            used, twice in training mode (one row has no batch statistics).

    Returns:
        One or two traces, evaluation mode first.

    Raises:
        UntraceableModelError: forward branches on the data's values, or does what cannot be recorded.
    """
    inputs = bind_example(model, example_input)
    modes = [(module, module.training) for module in model.modules()]
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            traces = [_trace(model.eval(), inputs, rows=1), _trace(model.train(), inputs, rows=2)]
    finally:
        for module, mode in modes:
            module.training = mode
    return traces[:1] if traces[0].signature() == traces[1].signature() else traces


def _trace(model: nn.Module, inputs: Mapping[str, Any], rows: int) -> Trace:
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    stored: dict[str, Tensor] = parameters | buffers
    others = {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}
    given = {name: _example(value, rows) for name, value in inputs.items() if isinstance(value, Tensor)}

    def forward(stored: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Any:
        return torch.func.functional_call(model, dict(stored), (), {**others, **given})

    record: Callable[..., fx.GraphModule] = make_fx(
        torch.func.functionalize(forward), tracing_mode="fake", _allow_non_fake_inputs=True
    )
    try:
        with _noted_modules(model), _CircularPadding():
            graph = record(stored, given)
    except Exception as error:
        if "datadependent" in type(error).__name__.lower():
            raise UntraceableModelError(
                f"{type(model).__name__}.forward has control flow on the values of the data: the graph would hold for "
                "one input only."
            ) from error
        raise UntraceableModelError(
            f"{type(model).__name__}.forward could not be traced ({type(error).__name__}: {error}). Rescaling needs a "
            "feed-forward network whose operations do not depend on the data's values; rescale its traceable parts."
        ) from error
    names = dict(zip(graph.graph.find_nodes(op="placeholder"), stored, strict=False))  # those of the input come last
    written = _written(graph.graph.nodes)
    for node in graph.graph.nodes:
        made_of_data = operator_name(node) not in _FACTORIES and any(n.meta["data"] for n in node.all_input_nodes)
        node.meta["data"] = made_of_data or node in written
        if node in names:
            if names[node] in parameters:
                node.meta.update(value=parameters[names[node]], parameter=names[node])
            else:
                node.meta["value"] = buffers[names[node]].clone()  # a forward may write to its buffers
        elif node.op == "get_attr":
            node.meta["value"] = getattr(graph, str(node.target))
        elif node.op == "output":
            node.meta["value"] = None
        elif node.op == "placeholder" or node.meta["data"]:
            node.meta["data"] = True
            node.meta["value"] = tree_map(_without_numbers, node.meta["val"])
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: tree_map(_with_numbers, n.meta["value"]))
            node.meta["value"] = node.target(*args, **kwargs)
    return Trace(tuple(graph.graph.nodes), dict(model.named_modules()), parameters)


class _CircularPadding(TorchFunctionMode):
    """Circular padding by indices: its own kernel writes in place, out of sight of what removes mutation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = dict(zip(("input", "pad", "mode"), args, strict=False)) | kwargs
        if func is not F.pad or named.get("mode") != "circular":
            return func(*args, **kwargs)
        x: Tensor = named["input"]
        for axis, (before, after) in enumerate(zip(named["pad"][::2], named["pad"][1::2], strict=True)):
            size = x.shape[-1 - axis]
            x = x.index_select(-1 - axis, torch.arange(-before, size + after, device=x.device) % size)
        return x


def _example(value: Tensor, rows: int) -> Tensor:
    return value[:1].detach().expand(rows, *value.shape[1:]).clone() if value.ndim else value.detach().clone()


def _without_numbers(value: Any) -> Any:
    return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def _with_numbers(value: Any) -> Any:
    is_meta = isinstance(value, Tensor) and value.device.type == "meta"
    return torch.zeros(tuple(value.shape), dtype=value.dtype) if is_meta else value


def _written(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """What a kernel writes into, and what that was made from: it may hold data that its own inputs do not show."""
    found: set[fx.Node] = set()
    waiting = [node.all_input_nodes[0] for node in nodes if mutates(node)]
    while waiting:
        node = waiting.pop()
        if node.op != "placeholder" and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def mutates(node: fx.Node) -> bool:
    """Whether an operation writes in place: few do, inside of kernels where it could not be removed."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


@contextmanager
def _noted_modules(model: nn.Module) -> Iterator[None]:
    """Note in each recorded node the modules in which it happens."""
    names = {module: name for name, module in model.named_modules()}
    path: list[str] = []

    def enter(module: nn.Module, args: Any) -> None:
        path.append(names.get(module, ""))
        traceback.get_current_meta()["custom"] = {"path": tuple(path)}

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        path.pop()
        traceback.get_current_meta()["custom"] = {"path": tuple(path)}

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        for handle in handles:
            handle.remove()


def operator_name(node: fx.Node) -> str:
    """The bare name of an operator of ``aten``."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def is_piece(node: fx.Node) -> bool:
    """Whether a node takes one of several results of another."""
    return node.target is operator.getitem
