"""Sum pooling in its separable form, for the path kernel: a path runs through every entry of a pooling window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from lightning_lift.rescaling.operators import Operation, result_shape
from lightning_lift.rescaling.tracing import operator_name


def squared_pool(x: Tensor, node: fx.Node, operation: Operation) -> Tensor:
    """The flow of squared path weights through a pooling layer.

    An average over n entries is n edges of the constant weight 1/n, so each carries 1/n^2. The maximum is a path
    through every entry of its window, each with weight 1 (the path lifting of max-pooling layers).

    Args:
        x: nonnegative flow, shape (N, C, *in).
        node: the pooling operator.
        operation: its description.

    Returns:
        Shape (N, C, *out).
    """
    options, name, out_shape = operation.options, operator_name(node), result_shape(node)
    sizes_in = x.shape[2:]
    ones = torch.ones_like(x[:1, :1])
    for axis in range(len(sizes_in)):
        dim = axis + 2
        size_in, size_out = x.shape[dim], out_shape[dim]
        if "adaptive" in name:
            window = _adaptive_window(size_in, size_out)
        else:
            numbers = (_axis(options, key, axis) for key in ("kernel_size", "stride", "padding", "dilation"))
            window = _window(size_in, size_out, *numbers)
        x = torch.tensordot(x, window, dims=([dim], [1])).movedim(-1, dim)
        ones = torch.tensordot(ones, window, dims=([dim], [1])).movedim(-1, dim)
    if "max" in name:
        return x
    # The divisor depends on padding and on the layer's options: read it off the layer itself.
    divisor = ones / node.target(torch.ones(1, 1, *sizes_in, dtype=x.dtype), **options)  # type: ignore[operator]
    flow: Tensor = x / divisor.square()
    return flow


def _axis(options: dict[str, Any], key: str, axis: int) -> int:
    value = options.get(key, 1)
    if key == "stride" and not value:
        value = options["kernel_size"]
    return int(value[axis % len(value)] if isinstance(value, tuple | list) else value)


def _window(size_in: int, size_out: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """0/1 matrix (out, in) of the entries in each window."""
    window = torch.zeros(size_out, size_in, dtype=torch.float64)
    for row in range(size_out):
        for step in range(kernel):
            column = row * stride - padding + step * dilation
            if 0 <= column < size_in:
                window[row, column] = 1.0
    return window


def _adaptive_window(size_in: int, size_out: int) -> Tensor:
    window = torch.zeros(size_out, size_in, dtype=torch.float64)
    for row in range(size_out):
        window[row, row * size_in // size_out : -(-(row + 1) * size_in // size_out)] = 1.0
    return window
