"""Does path conditioning at the start lower the training loss that plain gradient descent reaches on two moons?

A ReLU network [2, 64, 64, 64, 64, 2], full batch, SGD without momentum, paired seeds: the same initial network with
and without ``rescale_`` (Lebeurrier, Vayer & Gribonval, 2026, report 0.0087 against 0.0149).

    python benchmarks/rescaling_two_moons.py --seeds 10 --json two_moons.json
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from lightning_lift.rescaling import rescale_

ARMS = ("none", "pathcond", "enorm")


def make_network(seed: int, width: int = 64, depth: int = 4) -> nn.Sequential:
    """A ReLU network with PyTorch's default start."""
    torch.manual_seed(seed)
    widths = [2] + [width] * depth + [2]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_data(seed: int, points: int, noise: float) -> tuple[Tensor, Tensor]:
    x, y = make_moons(points, noise=noise, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def train(network: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> float:
    """Final training loss (cross-entropy) after full-batch gradient descent."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(network(x), y))


def compare(
    seeds: int, steps: int, rate: float = 1e-2, points: int = 1000, noise: float = 0.1, max_sweeps: int = 10
) -> dict[str, list[float]]:
    """Final loss by arm and seed."""
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(seeds):
        start, (x, y) = make_network(seed), make_data(seed, points, noise)
        for arm in ARMS:
            network = copy.deepcopy(start)
            if arm != "none":
                rescale_(network, arm, example_input=x, max_sweeps=max_sweeps)
            losses[arm].append(train(network, x, y, steps, rate))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--max-sweeps", type=int, default=10)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    losses = compare(options.seeds, options.steps, options.lr, options.points, options.noise, options.max_sweeps)
    base = np.array(losses["none"])
    rows = []
    print(f"{'arm':10} {'final loss':>12} {'+- s.e.':>10} {'ratio of means':>15} {'mean paired ratio':>18} {'wins':>6}")
    for arm in ARMS:
        values = np.array(losses[arm])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        row = {
            "arm": arm,
            "loss": float(values.mean()),
            "standard_error": float(error),
            "ratio_of_means": float(values.mean() / base.mean()),
            "mean_paired_ratio": float((values / base).mean()),
            "wins": int((values < base).sum()),
            "losses": losses[arm],
        }
        rows.append(row)
        print(
            f"{arm:10} {row['loss']:12.5f} {row['standard_error']:10.5f} {row['ratio_of_means']:15.3f} "
            f"{row['mean_paired_ratio']:18.3f} {row['wins']:3d}/{options.seeds}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**vars(options), "seconds": time.perf_counter() - started, "arms": rows}, file, indent=2)


if __name__ == "__main__":
    main()
