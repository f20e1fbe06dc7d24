"""The path lifting by brute force: every path of a network written as an explicit graph of scalars and edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PathGraph:
    """A directed graph of scalar nodes. An edge carries a parameter entry, or a constant, or both."""

    def __init__(self) -> None:
        self.edges: dict[int, list[tuple[int, tuple[str, int] | None, float]]] = defaultdict(list)
        self.sources: list[int] = []
        self.values: dict[tuple[str, int], float] = {}
        self._count = 0

    def node(self) -> int:
        self._count += 1
        return self._count

    def source(self) -> int:
        self.sources.append(self.node())
        return self.sources[-1]

    def edge(self, start: int, end: int, entry: tuple[str, int] | None, value: float) -> None:
        self.edges[start].append((end, entry, value))
        if entry is not None:
            self.values[entry] = value

    def linear(self, nodes: Sequence[int], name: str, layer: nn.Linear) -> list[int]:
        outputs = [self.node() for _ in range(layer.out_features)]
        for o, end in enumerate(outputs):
            for i, start in enumerate(nodes):
                self.edge(start, end, (f"{name}.weight", o * len(nodes) + i), layer.weight[o, i].item())
        self.bias(outputs, name, layer.bias)
        return outputs

    def bias(self, nodes: Sequence[int], name: str, bias: Tensor | None, repeat: int = 1) -> None:
        if bias is not None:
            for position, end in enumerate(nodes):
                entry = position // repeat
                self.edge(self.source(), end, (f"{name}.bias", entry), bias[entry].item())

    def conv1d(self, nodes: list[list[int]], name: str, layer: nn.Conv1d) -> list[list[int]]:
        """Channels of positions in, channels of positions out; stride 1, no dilation, zero padding, groups."""
        kernel, padding, length = layer.kernel_size[0], int(layer.padding[0]), len(nodes[0])
        per_group = layer.in_channels // layer.groups
        outputs = [[self.node() for _ in range(length + 2 * padding - kernel + 1)] for _ in range(layer.out_channels)]
        for o, row in enumerate(outputs):
            group = o // (layer.out_channels // layer.groups)
            for t, end in enumerate(row):
                for i in range(per_group):
                    for k in range(kernel):
                        if 0 <= t + k - padding < length:
                            entry = (f"{name}.weight", (o * per_group + i) * kernel + k)
                            start = nodes[group * per_group + i][t + k - padding]
                            self.edge(start, end, entry, layer.weight[o, i, k].item())
        self.bias([n for row in outputs for n in row], name, layer.bias, repeat=len(outputs[0]))
        return outputs

    def norm(self, nodes: list[list[int]], name: str, layer: nn.BatchNorm1d) -> list[list[int]]:
        """Evaluation mode: (x - m) / s times the weight, plus the bias."""
        outputs = []
        for c, row in enumerate(nodes):
            spread = float(layer.running_var[c] + layer.eps) ** 0.5
            outputs.append([])
            for start in row:
                middle, end = self.node(), self.node()
                self.edge(start, middle, None, 1.0 / spread)
                self.edge(self.source(), middle, None, -float(layer.running_mean[c]) / spread)
                self.edge(middle, end, (f"{name}.weight", c), layer.weight[c].item())
                self.edge(self.source(), end, (f"{name}.bias", c), layer.bias[c].item())
                outputs[-1].append(end)
        return outputs

    def pool(self, nodes: list[list[int]], size: int, weight: float) -> list[list[int]]:
        outputs = []
        for row in nodes:
            outputs.append([])
            for start in range(0, len(row) - size + 1, size):
                end = self.node()
                for offset in range(size):
                    self.edge(row[start + offset], end, None, weight)
                outputs[-1].append(end)
        return outputs

    def add(self, left: Sequence[int], right: Sequence[int]) -> list[int]:
        outputs = [self.node() for _ in left]
        for a, b, end in zip(left, right, outputs, strict=True):
            self.edge(a, end, None, 1.0)
            self.edge(b, end, None, 1.0)
        return outputs

    def diagonal(self, outputs: Sequence[int], shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
        """sum over paths of the squared derivative of their product, for each parameter entry."""
        result = {name: torch.zeros(shape, dtype=torch.float64).reshape(-1) for name, shape in shapes.items()}
        ends = set(outputs)
        for source in self.sources:
            stack: list[tuple[int, float, tuple[tuple[str, int], ...]]] = [(source, 1.0, ())]
            while stack:
                node, product, entries = stack.pop()
                if node in ends:
                    for entry in entries:
                        result[entry[0]][entry[1]] += (product / self.values[entry]) ** 2
                for end, entry, value in self.edges[node]:
                    stack.append((end, product * value, entries if entry is None else (*entries, entry)))
        return {name: value.reshape(shapes[name]) for name, value in result.items()}
