"""``rescale_``: one call from a network to the rescaled network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lightning_lift.rescaling.apply import apply_factors_, rescale_factors
from lightning_lift.rescaling.block_descent import Update
from lightning_lift.rescaling.equinormalization import equinormalization
from lightning_lift.rescaling.path_conditioning import path_conditioning
from lightning_lift.rescaling.path_kernel import path_kernel_diagonal
from lightning_lift.rescaling.report import DiagonalCondition, RescalingReport, rescale_diagonal, units_by_layer
from lightning_lift.rescaling.tracing import ExampleInput, bind_example
from lightning_lift.rescaling.unit_graph import build_unit_graph

Method = Literal["pathcond", "enorm"]


def rescale_(
    model: nn.Module,
    method: Method = "pathcond",
    *,
    example_input: ExampleInput,
    approximate: bool = False,
    tolerance: float = 1e-2,
    max_sweeps: int = 10,
    update: Update = "layer",
    verify: bool = True,
) -> RescalingReport:
    """Rescale the hidden units of a network in place, without changing its function.

    Args:
        model: a feed-forward network. Its parameters change in place; dtype, device and
            nonnegative entries stay.
        method: ``pathcond`` (path-conditioned, Lebeurrier et al., 2026) or ``enorm`` (Stock et al., 2019).
        example_input: input(s) of its forward, batch first: one row is enough for the scales, all are used to verify.
        approximate: rescale through smooth activations too (GELU, SiLU, Softplus, ...). The function then changes,
            and the report says by how much on the example.
        tolerance: stop when the sum of |du| over a sweep is below it.
        max_sweeps: largest number of sweeps.
        update: ``layer`` (fast) or ``unit`` (one unit at a time, the paper's loop).
        verify: run the network on the example before and after, and undo everything if an exact rescaling changed
            the output by more than rounding.

    Returns:
        The report; ``print`` it.

    Raises:
        UntraceableModelError: the forward function cannot be recorded.
        ValueError: an unknown method, an example that does not fit, weights that are not finite.
        RuntimeError: the output changed by more than rounding, or is not finite; the parameters are as before.
    """
    if method not in {"pathcond", "enorm"}:
        raise ValueError(f"method={method!r} is not known; choose 'pathcond' or 'enorm'.")
    clock = _Clock()
    graph = build_unit_graph(model, example_input, approximate)
    clock.stop("units")
    diagonal = path_kernel_diagonal(graph.trace)
    clock.stop("path kernel")
    if method == "pathcond":
        found = path_conditioning(graph, diagonal, tolerance, max_sweeps, update)
    else:
        squared = {n: p.detach().to("cpu", torch.float64).square() for n, p in graph.trace.parameters.items()}
        found = equinormalization(graph, squared, tolerance, max_sweeps, update)
    factors = rescale_factors(graph, found.log_scales)
    clock.stop("descent")

    before = _outputs(model, example_input) if verify else {}
    kept = {n: p.detach().clone() for n, p in model.named_parameters() if n in factors} if verify else {}
    clock.skip()
    apply_factors_(model, factors)
    clock.stop("apply")
    try:
        after = _outputs(model, example_input) if verify else {}
        changes = {mode: _relative_change(before[mode], after[mode]) for mode in before}
        _check(model, changes, exact=not graph.smooth)
    except RuntimeError:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in kept:
                    parameter.copy_(kept[name])
        raise
    units, left_alone = units_by_layer(graph, found.inactive)
    return RescalingReport(
        method=method,
        objective_trace=found.objective,
        sweeps=found.sweeps,
        converged=found.converged,
        largest_gradient=found.largest_gradient,
        condition_before=DiagonalCondition.of(diagonal),
        condition_after=DiagonalCondition.of(rescale_diagonal(diagonal, factors)),
        log_scales=found.log_scales,
        units=units,
        left_alone=left_alone,
        factors=factors,
        function_change=changes,
        smooth=graph.smooth,
        seconds=clock.seconds(),
    )


class _Clock:
    """Wall-clock time by stage."""

    def __init__(self) -> None:
        self._stages: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self._stages[stage] = now - self._last
        self._last = now

    def skip(self) -> None:
        self._last = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        return {**self._stages, "total": sum(self._stages.values())}


def _outputs(model: nn.Module, example_input: ExampleInput) -> dict[str, list[Tensor]]:
    """Outputs in evaluation mode, and in the present mode if that is training; buffers stay as they are."""
    inputs = bind_example(model, example_input)
    modes = [(module, module.training) for module in model.modules()]
    several = any(isinstance(v, Tensor) and v.ndim > 0 and len(v) > 1 for v in inputs.values())
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        if model.training and several:  # batch statistics need more than one row
            found["train"] = _call(model, inputs)
        try:
            model.eval()
            found["eval"] = _call(model, inputs)
        finally:
            for module, mode in modes:
                module.training = mode
    return found


def _call(model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    torch.manual_seed(0)  # the same dropout masks before and after; the generators' states are restored
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    fresh = {name: v.clone() if isinstance(v, Tensor) else v for name, v in inputs.items()}
    output = torch.func.functional_call(model, buffers, (), fresh)
    return [t.detach().clone() for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]


def run_network(model: nn.Module, example_input: ExampleInput) -> list[Tensor]:
    """The floating-point outputs in evaluation mode; modes and buffers stay as they are.

    Args:
        model: the network.
        example_input: input(s) of its forward.
    """
    return _outputs(model, example_input)["eval"]


def output_change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest absolute change over the largest absolute value, over all outputs.

    Args:
        before: outputs.
        after: the same outputs, later.
    """
    return _relative_change(before, after)


def _relative_change(before: list[Tensor], after: list[Tensor]) -> float:
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        if one.numel():
            size = float(one.double().abs().max()) if one.device.type != "mps" else float(one.abs().max())
            worst = max(worst, float((other - one).abs().max()) / (size or 1.0), key=lambda v: (v != v, v))
    return worst


def _check(model: nn.Module, changes: Mapping[str, float], exact: bool) -> None:
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
    allowed = max((torch.finfo(d).eps for d in dtypes), default=0.0) ** 0.5  # far above rounding, far below a mistake
    for mode, change in changes.items():
        finite = change == change and change != float("inf")
        if not finite or (exact and change > allowed):
            raise RuntimeError(
                f"Rescaling changed the output in {mode} mode by {change:.3g} relative to its size (allowed "
                f"{allowed:.1g}), so it was undone. Either the forward function is random beyond torch's generators "
                "(pass verify=False), or it does something that this package reads wrongly: please report it."
            )
