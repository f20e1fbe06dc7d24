"""How long does rescaling a ResNet-18 take, is it exact, and what does moving whole layers gain?

One unit at a time is timed in this package's own code and in a bare NumPy loop.
Random weights, random data. The epoch is extrapolated: seconds a training step of one batch, times the number of
batches in 50,000 images.

    python benchmarks/rescaling_resnet.py --json resnet.json
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.rescaling import UnitGraph, build_unit_graph, path_conditioning, path_kernel_diagonal, rescale_
from lightning_lift.rescaling.block_descent import DescentState

IMAGES = 50_000


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm; the skip is the identity or a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Block output."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.skip(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., 2016) with the 3x3 stem used on 32x32 images."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        strides = [1, 1, 2, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(*(Block(a, b, s) for a, b, s in zip(widths, widths[1:], strides, strict=False)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def seconds_a_step(model: nn.Module, batch: int, size: int, repeats: int = 3) -> float:
    """Median time of a training step after one to warm up."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def tight_unit_sweep(graph: UnitGraph, diagonal: dict[str, Tensor], sweeps: int) -> tuple[float, float]:
    """Seconds a sweep, and the objective at the end, of one unit at a time in a bare NumPy loop.

    The strongest form of that baseline: every unit's weights lie contiguous, and nothing is checked or recorded.
    """
    state = DescentState(graph, diagonal, 1.0, "unit")
    count = sum(g.numel() for g in diagonal.values())
    balance, scale, total = state.balance.numpy(), np.ones(graph.num_units + 1), state.total
    units = [
        (
            int(block.units[0]),
            *(
                [(np.ascontiguousarray(side.values.numpy()[0]), side.other.numpy()) for side in sides]
                for sides in (block.incoming, block.outgoing)
            ),
        )
        for block in state.blocks
    ]
    u, inverse = np.zeros(graph.num_units), 1.0 / scale
    start = time.perf_counter()
    for _ in range(sweeps):
        for unit, incoming, outgoing in units:
            c_in = sum(values.dot(scale[other]) for values, other in incoming) / scale[unit]
            c_out = sum(values.dot(inverse[other]) for values, other in outgoing) * scale[unit]
            rest = total - c_in - c_out
            a, b, c = c_out * (balance[unit] + count), rest * balance[unit], c_in * (count - balance[unit])
            root = math.sqrt(b * b + 4.0 * a * c)
            x = 2.0 * c / (b + root) if b >= 0.0 else (root - b) / (2.0 * a)
            u[unit] += math.log(x)
            scale[unit] *= x
            inverse[unit] /= x
            total = rest + c_out * x + c_in / x
    seconds = (time.perf_counter() - start) / sweeps
    return seconds, count * math.log(total) + float(balance @ u)


def measure(batch: int, size: int, sweeps: int, unit_sweeps: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = ResNet18()
    epoch = seconds_a_step(model, batch, size) * IMAGES / batch
    x = torch.randn(2, 3, size, size)
    exact = {}
    for method in ("pathcond", "enorm"):
        report = rescale_(copy.deepcopy(model).double().train(), method, example_input=x.double(), max_sweeps=sweeps)
        exact[method] = report.function_change
    report = rescale_(copy.deepcopy(model).train(), example_input=x, tolerance=0.0, max_sweeps=sweeps)
    graph = build_unit_graph(model, x)
    diagonal = path_kernel_diagonal(graph.trace)
    times = {}
    for update, number in (("layer", sweeps), ("unit", unit_sweeps)):
        # The difference of two runs leaves out the preparation that both share.
        start = time.perf_counter()
        path_conditioning(graph, diagonal, 0.0, 0, update)
        middle = time.perf_counter()
        found = path_conditioning(graph, diagonal, 0.0, number, update)
        end = time.perf_counter()
        times[update] = {
            "preparation": middle - start,
            "sweep": (end - middle - (middle - start)) / number,
            "objective_after_a_sweep": found.objective[1],
            "objective": found.objective[-1],
        }
    tight, tight_objective = tight_unit_sweep(graph, diagonal, unit_sweeps)
    agreement = abs(tight_objective / times["unit"]["objective"] - 1.0)
    limit = path_conditioning(graph, diagonal, 1e-4, 2000)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "units": report.num_units,
        "epoch_seconds": epoch,
        "rescaling_seconds": report.seconds,
        "share_of_an_epoch": report.seconds["total"] / epoch,
        "function_change_float64": exact,
        "function_change_float32": report.function_change,
        "condition_before": report.condition_before.arithmetic_over_geometric,
        "condition_after": report.condition_after.arithmetic_over_geometric,
        "objective": [report.objective_before, report.objective_after],
        "left_after_the_sweeps": report.objective_after - limit.objective[-1],
        "sweeps_to_1e-4": limit.sweeps,
        "times": times,
        "tight_unit_sweep": tight,
        "tight_agrees_to": agreement,
        "speedup": times["unit"]["sweep"] / times["layer"]["sweep"],
        "speedup_over_tight_loop": tight / times["layer"]["sweep"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--unit-sweeps", type=int, default=2, help="sweeps of the one-unit-at-a-time arm")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.batch, options.size, options.sweeps, options.unit_sweeps)
    for key, value in result.items():
        print(f"{key:28} {value}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**vars(options), **result}, file, indent=2)


if __name__ == "__main__":
    main()
