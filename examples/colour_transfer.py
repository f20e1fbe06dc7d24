"""A photograph in the colours of another: the optimal map between their pixels.

Pixels are rows of red, green and blue. The Brenier map moves the colours of one photograph (a temple in China) to those
of the other (a flower) with the least change, both shipped with scikit-learn. Half-way stands (1 - t) x + t T(x) at
t = 1/2.

    python examples/colour_transfer.py
"""

import logging
import sys
import time
from pathlib import Path

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image

from lightning_lift import BrierMap
from lightning_lift.datamodules import TransportDataModule

ROWS, STEPS = 20_000, 600


def pixels(name: str) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Rows of red, green and blue in [0, 1], and the shape of the photograph."""
    image = np.asarray(load_sample_image(name), dtype=np.float32) / 255.0
    return torch.from_numpy(image.reshape(-1, 3)), image.shape


def main(picture: Path) -> None:
    """Learn the map and save the photographs."""
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    L.seed_everything(0, verbose=False)
    source, shape = pixels("china.jpg")
    target, other = pixels("flower.jpg")
    some = torch.randperm(len(source))[:ROWS], torch.randperm(len(target))[:ROWS]
    data = TransportDataModule(source[some[0]], target[some[1]])
    model = BrierMap(dim=3)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_steps=STEPS, accelerator="cpu", **quiet)
    began = time.perf_counter()
    trainer.fit(model, data)
    found = trainer.test(model, data, verbose=False)[0]
    print(
        f"{STEPS} steps in {time.perf_counter() - began:.0f} s; energy distance to the flower's colours "
        f"{found['test/energy_distance']:.4f} (standard error {found['test/energy_distance_standard_error']:.4f})"
    )
    panels = {
        "the photograph": source,
        "half-way": model.interpolate(source, 0.5),
        "in the flower's colours": model.transport(source),
    }
    figure = Figure(figsize=(12.0, 6.6), layout="constrained")
    grid = figure.subplots(2, 2)
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        axes.imshow(rows.clamp(0.0, 1.0).reshape(shape).numpy())
        axes.set_title(title)
    grid[1, 1].imshow(target.reshape(other).numpy())
    grid[1, 1].set_title("the flower")
    for axes in grid.flat:
        axes.set_axis_off()
    figure.savefig(picture, dpi=100)
    print(f"saved {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("colour_transfer.png"))
