"""Pictures of what a density of image codes has learned: its draws, decoded."""

import math
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lightning_lift.callbacks._scheduled_figure import ScheduledFigure, Stage, held_out_rows
from lightning_lift.callbacks.periodic import check_count

Array = np.typing.NDArray[np.float64]

_PANEL = 3.2  # inches along a side
_LINE = 0.35  # shade of the lines between images


@dataclass(frozen=True)
class LatentPicture:
    """What is drawn. All images are in [0, 1], (N, 1, side, side).

    Attributes:
        samples: decoded draws of the model.
        reconstructions: decoded held-out rows.
        originals: the images of those rows, or None where the data module does not give them.
        title: of the figure.
    """

    samples: Tensor
    reconstructions: Tensor
    originals: Tensor | None
    title: str


class LatentImages(ScheduledFigure):
    """Decode draws of a density of image codes, beside held-out images and their reconstructions.

    The reconstructions are the best that the decoder can do: what the draws fall short of them is the density's doing.

    It needs ``sample(n, seed)`` of the module and ``decode(rows)`` of the data module, which gives images
    (N, 1, side, side); the originals are drawn where it has ``images(split)``. The draws have the same seed each time,
    so that two figures differ by the model alone (as far as its sampler is deterministic). Figures go to ``images/val``
    and ``images/test`` in TensorBoard, and to ``figures/images_step_<step>.png`` (``images_val.png`` without a fit) and
    ``figures/images_test.png`` beside the logs.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.
        num_images: draws of the model, and about as many held-out images and reconstructions together.
        seed: of the draws.

    Raises:
        ValueError: fewer than one step or image.
    """

    label = "images"

    def __init__(self, every_n_steps: int = 1000, num_images: int = 64, seed: int = 0) -> None:
        super().__init__(every_n_steps)
        check_count("num_images", num_images)
        self.num_images, self.seed = num_images, seed

    def figure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, data: Any, stage: Stage
    ) -> tuple[Figure | None, str]:
        """Draw, or say why not.

        Args:
            trainer: the trainer.
            pl_module: the model, in evaluation mode.
            data: the trainer's data module.
            stage: ``val`` or ``test``.
        """
        decode, sample = getattr(data, "decode", None), getattr(pl_module, "sample", None)
        if not callable(decode):
            return None, f"{type(data).__name__} has no decode(rows), so its rows are no images."
        if not callable(sample):
            return None, f"{type(pl_module).__name__} has no sample(n, seed)."
        draws = sample(self.num_images, seed=self.seed).detach().cpu().double()
        draws = data.units.apply(draws).float()  # what ``decode`` takes
        if not bool(torch.isfinite(draws).all()):
            return None, "the draws are not finite: the model has diverged."
        # Half a panel for the originals and half for what becomes of them.
        shown = max(1, self.num_images // 2)
        rows = held_out_rows(data, stage, shown)
        images = getattr(data, "images", None)
        when = f"step {trainer.global_step}" if stage == "val" else "test"
        picture = LatentPicture(
            samples=decode(draws),
            reconstructions=decode(rows),
            originals=images(stage)[: len(rows)] if callable(images) else None,
            title=f"{data.name}, {when}",
        )
        return draw_latents(picture), ""


def draw_latents(picture: LatentPicture) -> Figure:
    """Draw held-out images over their reconstructions on the left, decoded draws on the right.

    Args:
        picture: what to draw.
    """
    columns = max(1, math.isqrt(len(picture.samples)))
    if picture.originals is None:
        left, left_title = tiled(picture.reconstructions, columns), "held-out, reconstructed"
    else:
        left, left_title = _in_pairs(picture.originals, picture.reconstructions, columns), "held-out over reconstructed"
    figure = Figure(figsize=(2 * _PANEL, _PANEL + 0.5), layout="constrained")
    figure.suptitle(picture.title, fontsize="medium")
    panels = figure.subplots(1, 2)
    right = tiled(picture.samples, columns)
    for axes, image, title in zip(panels, (left, right), (left_title, "decoded draws of the model"), strict=True):
        axes.imshow(image, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(title, fontsize="small")
        axes.set_axis_off()
    return figure


def tiled(images: Tensor, columns: int) -> Array:
    """Images side by side in rows, with a grey line after each, black where there are none left.

    Args:
        images: (N, 1, side, side).
        columns: in a row.

    Returns:
        Shape (rows * (side + 1), columns * (side + 1)).
    """
    count, cell = len(images), images.shape[-1] + 1
    rows = -(-count // columns)
    cells = torch.zeros(rows * columns, cell, cell, dtype=torch.float64)
    cells[:count, :-1, :-1] = images[:, 0].double()
    cells[:, -1, :] = cells[:, :, -1] = _LINE
    array: Array = cells.view(rows, columns, cell, cell).transpose(1, 2).reshape(rows * cell, columns * cell).numpy()
    return array


def _in_pairs(above: Tensor, below: Tensor, columns: int) -> Array:
    """Rows of images, each over the row of its partners."""
    cell = above.shape[-1] + 1
    first, second = (tiled(images, columns).reshape(-1, cell, columns * cell) for images in (above, below))
    return np.stack([first, second], axis=1).reshape(-1, columns * cell)
