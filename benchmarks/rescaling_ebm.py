"""Does rescaling at the start help a ReLU log-concave density in one dimension, under each parameterization?

A ``LogConcaveEBM`` with ``ICNN(activation="relu")`` on Gumbel(0, 1) samples, log Z by quadrature, batches of 256 fresh
samples; the projected and the direct parameterization, two starts of the network, SGD and Adam. Every arm of a seed
starts from the same density and sees the same batches.

    python benchmarks/rescaling_ebm.py --seeds 5 --json ebm.json
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
from typing import Any

import before
import numpy as np
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.metrics.functional import total_variation
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, ProjectedGradient
from lightning_lift.partition.grids import grid_points, trapezoid_log_weights
from lightning_lift.rescaling import rescale_module_

ARMS = ("none", "pathcond", "enorm")
PARAMETERIZATIONS: dict[str, Any] = {"pgd": ProjectedGradient, "direct": DirectSoftplus}
STARTS: dict[str, dict[str, Any]] = {
    "folded normal": {**before.START},
    "constant, by fan-in": {
        "divide_by_fan_in": True,
        "weight_init": "constant",
        "free_weight_std": 1.0,
        "bias_std": 1.0,
    },
}
OPTIMIZERS: dict[str, Any] = {
    "sgd 1e-2": functools.partial(torch.optim.SGD, lr=1e-2),
    "adam 1e-2": functools.partial(torch.optim.Adam, lr=1e-2),
}


def make(parameterization: str, start: str, seed: int, data: GumbelDataModule) -> LogConcaveEBM:
    torch.manual_seed(seed)
    network = functools.partial(ICNN, widths=[32, 32, 32], activation="relu", strong_convexity=0.02, **STARTS[start])
    module = LogConcaveEBM(1, network=network, parameterization=PARAMETERIZATIONS[parameterization])
    module.partition.prepare(data.support, data.window)
    return module


@torch.no_grad()
def distance(module: LogConcaveEBM, data: GumbelDataModule) -> float:
    """Total variation to the truth on an 8000-point grid."""
    points = grid_points(data.window, 8000)
    weights = trapezoid_log_weights(data.window, 8000).exp()
    return float(total_variation(data.log_prob(points), module.log_prob_scaled(points), weights))


def train(module: LogConcaveEBM, data: GumbelDataModule, optimizer: str, steps: int, marks: tuple[int, ...]) -> list:
    """Total variation at the marks."""
    update = OPTIMIZERS[optimizer](module.parameters())
    found = []
    for step, batch in enumerate(data.train_dataloader()):
        if step in marks:
            found.append(distance(module, data))
        if step == steps:
            break
        update.zero_grad()
        module.batch_loss(batch).backward()
        update.step()
        module.parameterization.project_()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--optimizers", choices=OPTIMIZERS, nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--starts", choices=STARTS, nargs="+", default=list(STARTS))
    parser.add_argument("--json", help="write the figures to this file, after every setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    marks = (0, options.steps // 10, options.steps // 2, options.steps)
    results = []
    for start, optimizer, name in itertools.product(options.starts, options.optimizers, PARAMETERIZATIONS):
        started, change = time.perf_counter(), 0.0
        distances: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
        for seed, arm in itertools.product(range(options.seeds), ARMS):
            data = GumbelDataModule(batches_per_epoch=options.steps + 1, data_seed=seed)
            data.setup("fit")
            module = make(name, start, seed, data)
            if arm != "none":
                outcome = rescale_module_(module, arm, example_input=data.split("val")[:256])
                change = max(change, *outcome.report.function_change.values())
            distances[arm].append(train(module, data, optimizer, options.steps, marks))
        base = np.array(distances["none"])
        print(f"{start}, {optimizer}, {name}: {time.perf_counter() - started:.0f} s, function change {change:.1e}")
        for arm in ARMS:
            values = np.array(distances[arm])
            cells = []
            for column, mark in enumerate(marks):
                column_values = values[:, column]
                error = column_values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
                lower = int((column_values < base[:, column]).sum())
                cells.append(f"{mark}: {column_values.mean():.4f} +- {error:.4f} ({lower})")
            print(f"  {arm:9} " + "  ".join(cells), flush=True)
        results.append(
            {"start": start, "optimizer": optimizer, "parameterization": name, "distances": distances, "marks": marks}
        )
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"options": vars(options), "settings": results}, file)


if __name__ == "__main__":
    main()
