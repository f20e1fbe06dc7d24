"""Records the operations of a network on one example row, as a ``torch.fx`` graph with known shapes.

Plain symbolic tracing refuses code that looks at shapes (``x.view(x.size(0), -1)``, a check of ``x.shape``). The
tracer here runs every recorded operation on one row of the example, so that shapes are ordinary numbers; control flow
on the *values* of the data is still refused, because another input could take the other branch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_any, tree_map

ExampleInput = Tensor | Sequence[Any] | Mapping[str, Any]


class UntraceableModelError(ValueError):
    """The forward function cannot be recorded as a fixed graph of operations."""


class SizedProxy(fx.Proxy):
    """A proxy that answers questions about shape and type with plain Python values."""

    def _value(self) -> Any:
        return self.node.meta["value"]

    def __getattr__(self, name: str) -> Any:
        """Shape-like properties are concrete, anything else is recorded."""
        if name in {"shape", "ndim", "dtype", "device", "is_cuda", "layout", "requires_grad"} and isinstance(
            self._value(), Tensor
        ):
            return getattr(self._value(), name)
        return super().__getattr__(name)

    def _ask(self, name: str, *args: Any) -> Any:
        value = self._value()
        if isinstance(value, Tensor):
            return getattr(value, name)(*args)
        return self.tracer.create_proxy("call_method", name, (self, *args), {})

    def size(self, *args: Any) -> Any:
        """The size, as plain integers."""
        return self._ask("size", *args)

    def dim(self) -> Any:
        """The number of dimensions."""
        return self._ask("dim")

    def numel(self) -> Any:
        """The number of entries."""
        return self._ask("numel")

    def is_floating_point(self) -> Any:
        """Whether the entries are floating-point numbers."""
        return self._ask("is_floating_point")

    def __len__(self) -> int:
        return len(self._value())


@dataclass(frozen=True)
class Trace:
    """One recorded forward pass.

    Attributes:
        nodes: in execution order. ``meta["value"]`` holds what the node returned, with tensors that depend on the
            input replaced by empty ones of the same shape; ``meta["data"]`` says whether it depends on the input.
        modules: every submodule by qualified name.
        parameters: every parameter by its first qualified name.
        parameter_names: that name, by the identity of the parameter.
    """

    nodes: tuple[fx.Node, ...]
    modules: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]
    parameter_names: dict[int, str]

    def signature(self) -> tuple[str, ...]:
        """What the pass does, without its constants: equal for two passes over the same operations."""
        return tuple(f"{n.op}:{n.target}:{','.join(a.name for a in n.all_input_nodes)}" for n in self.nodes)


class _Tracer(fx.Tracer):
    """Runs every operation as it is recorded."""

    proxy_buffer_attributes = True

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__()
        self._inputs = inputs
        self._running = False
        self._constants: dict[int, fx.Node] = {}

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        args: list[Any] = [self.root]
        for name, parameter in list(inspect.signature(root_fn).parameters.items())[1:]:
            if name in self._inputs and isinstance(self._inputs[name], Tensor):
                args.append(self.create_proxy("placeholder", name, (), {}))
            elif parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY}:
                if name in self._inputs:
                    raise UntraceableModelError(f"forward's argument {name!r}: give example inputs by position.")
            else:
                args.append(self._inputs.get(name, parameter.default))
        return root_fn, args

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return SizedProxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        node = proxy.node
        node.meta["data"] = kind == "placeholder" or any(n.meta["data"] for n in node.all_input_nodes)
        self._running = True
        try:
            node.meta["value"] = self._run(node)
        finally:
            self._running = False
        return proxy

    def create_arg(self, a: Any) -> Any:
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        # The base class would store the constant as an attribute of the user's model.
        if id(a) not in self._constants:
            name = next((n for n, p in self.root.named_parameters() if p is a), f"constant_{len(self._constants)}")
            node = self.create_node("get_attr", name, (), {})
            node.meta.update(data=False, value=a)
            self._constants[id(a)] = node
        return self._constants[id(a)]

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self._running else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self._running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        node = obj.node
        if node.meta["data"] and isinstance(node.meta["value"], Tensor):
            raise UntraceableModelError(
                f"control flow on the values of the data (at {node.name!r}): the graph would hold for one input only."
            )
        return bool(node.meta["value"])

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        proxy: Any = obj
        return iter([proxy[index] for index in range(len(obj.node.meta["value"]))])

    def _run(self, node: fx.Node) -> Any:
        bound: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["value"])
        args, kwargs = bound
        if node.op == "placeholder":
            return self._inputs[str(node.target)]
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            value = getattr(self.root.get_submodule(owner), name)
            return value if isinstance(value, nn.Parameter) else value.clone()  # a forward may write to its buffers
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return _run_in_eval_mode(self.root.get_submodule(str(node.target)), args, kwargs)
        if node.target is F.batch_norm:  # only the shape matters, and one row has no batch statistics
            return (args[0] if args else kwargs["input"]).clone()
        assert callable(node.target)
        return node.target(*args, **kwargs)


def _run_in_eval_mode(module: nn.Module, args: Any, kwargs: Any) -> Any:
    modes = [(child, child.training) for child in module.modules()]
    try:
        for child, _ in modes:
            child.training = False
        return module.forward(*args, **kwargs)
    finally:
        for child, mode in modes:
            child.training = mode


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
    """Records the forward pass in evaluation and, where it takes other operations, in training mode.

    Args:
        model: the network; left as it was, in the same mode.
        example_input: arguments of its forward; the first dimension of each tensor is the batch, of which one row is
            used.

    Returns:
        One or two traces, evaluation mode first.

    Raises:
        UntraceableModelError: forward branches on the data's values, or uses what ``torch.fx`` cannot record.
    """
    inputs = {
        name: value[:1].detach().clone() if isinstance(value, Tensor) and value.ndim else value
        for name, value in bind_example(model, example_input).items()
    }
    modes = [(module, module.training) for module in model.modules()]
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            model.eval()
            traces = [_trace(model, inputs)]
            model.train()
            traces.append(_trace(model, inputs))
    finally:
        for module, mode in modes:
            module.training = mode
    return traces[:1] if traces[0].signature() == traces[1].signature() else traces


def _trace(model: nn.Module, inputs: Mapping[str, Any]) -> Trace:
    tracer = _Tracer({name: v.clone() if isinstance(v, Tensor) else v for name, v in inputs.items()})
    try:
        graph = tracer.trace(model)
    except UntraceableModelError:
        raise
    except Exception as error:
        raise UntraceableModelError(
            f"{type(model).__name__}.forward could not be traced ({type(error).__name__}: {error}). Rescaling needs a "
            "feed-forward network whose operations do not depend on the data's values; rescale its traceable parts."
        ) from error

    def empty(value: Any) -> Any:
        return value.to("meta") if isinstance(value, Tensor) else value

    for node in graph.nodes:
        if node.op == "output":
            node.meta.update(data=True, value=None)
        elif node.meta["data"] and tree_any(lambda v: isinstance(v, Tensor), node.meta["value"]):
            node.meta["value"] = tree_map(empty, node.meta["value"])
    parameters = dict(model.named_parameters())
    return Trace(
        nodes=tuple(graph.nodes),
        modules=dict(model.named_modules()),
        parameters=parameters,
        parameter_names={id(p): name for name, p in parameters.items()},
    )
