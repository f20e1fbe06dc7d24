"""Sum pooling of squared path weights against the squared Jacobian of the layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_lift.rescaling.operators import describe
from lightning_lift.rescaling.pooling import squared_pool
from lightning_lift.rescaling.tracing import is_piece, trace_model

AVERAGES = [
    nn.AvgPool2d(2),
    nn.AvgPool2d(3, stride=2, padding=1),
    nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    nn.AvgPool2d(2, stride=2, ceil_mode=True),
    nn.AvgPool2d((2, 3), divisor_override=5),
    nn.AdaptiveAvgPool2d((2, 3)),
]
WINDOWS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.MaxPool2d(2, stride=1, dilation=2),
    nn.MaxPool2d(2, stride=2, ceil_mode=True),
    nn.AdaptiveMaxPool2d(3),
]


def pooled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    trace = trace_model(nn.Sequential(layer), x)[0]
    node = next(n for n in trace.nodes if n.op == "call_function" and not is_piece(n))
    return squared_pool(x, node, describe(node, trace))


@pytest.mark.parametrize("layer", AVERAGES, ids=str)
def test_average(layer: nn.Module) -> None:
    x = torch.rand(1, 2, 7, 5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(layer, x)
    expected = torch.einsum("abcdefgh,efgh->abcd", jacobian.square(), x)
    torch.testing.assert_close(pooled(layer, x), expected)


@pytest.mark.parametrize("layer", WINDOWS, ids=str)
def test_maximum_sums_its_window(layer: nn.Module) -> None:
    """Entry by entry: raising one entry above all others moves the outputs whose window holds it."""
    x = torch.rand(1, 1, 7, 5, dtype=torch.float64)
    expected = torch.zeros_like(layer(x))
    for row in range(7):
        for column in range(5):
            only = torch.full_like(x, -1.0)
            only[0, 0, row, column] = 1.0
            expected += (layer(only) == 1.0) * x[0, 0, row, column]
    torch.testing.assert_close(pooled(layer, x), expected)
