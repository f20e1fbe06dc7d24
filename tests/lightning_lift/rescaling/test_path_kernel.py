"""The diagonal of the path kernel against an enumeration of all paths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.rescaling import build_unit_graph, path_kernel_diagonal
from tests.lightning_lift.rescaling.path_enumeration import PathGraph
from tests.lightning_lift.rescaling.rescaling_networks import IdentityBlock, mlp, shake_norms_


def diagonal(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return path_kernel_diagonal(build_unit_graph(model, x).trace)


def assert_equals_enumeration(model: nn.Module, x: Tensor, graph: PathGraph, outputs: list[int]) -> None:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    expected = graph.diagonal(outputs, shapes)
    found = diagonal(model, x)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("widths", [(2, 3, 2), (2, 4, 3, 3, 2), (3, 1, 5, 1)])
def test_mlp(widths: tuple[int, ...]) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        model = mlp(*widths).double()
        graph = PathGraph()
        nodes = [graph.source() for _ in range(widths[0])]
        for index, layer in enumerate(model):
            if isinstance(layer, nn.Linear):
                nodes = graph.linear(nodes, str(index), layer)
        assert_equals_enumeration(model, torch.randn(2, widths[0], dtype=torch.float64), graph, nodes)


class _Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(2, 4, 2, padding=1)
        self.n = nn.BatchNorm1d(4)
        self.b = nn.Conv1d(4, 2, 2, groups=2)
        self.c = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(torch.relu(self.n(self.a(x))), 2)
        x = F.avg_pool1d(torch.relu(self.b(x)), 2)
        return self.c(x.flatten(1))


def test_convolutions_norm_and_pooling() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        model = shake_norms_(_Conv()).double()
        graph = PathGraph()
        nodes = [[graph.source() for _ in range(5)] for _ in range(2)]
        nodes = graph.norm(graph.conv1d(nodes, "a", model.a), "n", model.n)
        nodes = graph.pool(nodes, 2, 1.0)
        nodes = graph.pool(graph.conv1d(nodes, "b", model.b), 2, 0.5)
        outputs = graph.linear([n for row in nodes for n in row], "c", model.c)
        assert_equals_enumeration(model, torch.randn(1, 2, 5, dtype=torch.float64), graph, outputs)


def test_residual() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 3), IdentityBlock(3, 2), IdentityBlock(3, 4), nn.Linear(3, 2)).double()
        graph = PathGraph()
        nodes = graph.linear([graph.source() for _ in range(2)], "0", model[0])
        for index in (1, 2):
            inner = graph.linear(nodes, f"{index}.first", model[index].first)
            nodes = graph.add(nodes, graph.linear(inner, f"{index}.second", model[index].second))
        outputs = graph.linear(nodes, "3", model[3])
        assert_equals_enumeration(model, torch.randn(1, 2, dtype=torch.float64), graph, outputs)


def test_constants_count_squared() -> None:
    """y = mean(3 (w x) / 2) over two units: every path carries the constant 3 / 4."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return (3.0 * self.layer(x) / 2.0).mean(1)

    found = diagonal(Net(), torch.ones(1, 1))["layer.weight"]
    torch.testing.assert_close(found, torch.full((2, 1), 0.75**2, dtype=torch.float64))


def test_the_factors_of_addmm_count_squared() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.addmm(self.layer.bias, x, self.layer.weight.T, beta=0.5, alpha=3.0)

    found = diagonal(Net(), torch.ones(1, 1))
    torch.testing.assert_close(found["layer.weight"], torch.full((2, 1), 9.0, dtype=torch.float64))
    torch.testing.assert_close(found["layer.bias"], torch.full((2,), 0.25, dtype=torch.float64))


def test_an_opaque_operation_cuts_the_paths() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False)).double()
    found = diagonal(model, torch.ones(1, 1, dtype=torch.float64))
    assert found["0.weight"].item() == 1.0
    assert found["2.weight"].item() == 1.0


def test_overflow_is_refused() -> None:
    model = mlp(2, 3, 1).double()
    model[0].weight.data.fill_(1e200)
    with pytest.raises(ValueError, match="overflow"):
        diagonal(model, torch.ones(1, 2, dtype=torch.float64))
