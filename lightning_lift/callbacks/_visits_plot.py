"""The figure of shoulder visits: survival of their lengths, occupancy, and a few latents over the steps."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from lightning_lift.diagnostics.survival import SurvivalCurve

Array = np.typing.NDArray[np.float64]


@dataclass(frozen=True)
class VisitsPicture:
    """What is drawn.

    Attributes:
        steps: optimizer steps of the looks, shape (K,).
        occupancy: fraction inside at each, shape (K,).
        latents: of the chosen coordinates, shape (K, C).
        coordinates: their indices, shape (C,).
        threshold: the largest latent inside; None where there is no single one.
        survival: of the visits' lengths.
        what: what "inside" is, for the labels.
    """

    steps: Array
    occupancy: Array
    latents: Array
    coordinates: np.typing.NDArray[np.int64]
    threshold: float | None
    survival: SurvivalCurve
    what: str


def visits_figure(picture: VisitsPicture) -> Figure:
    """Three panels, left to right: survival, occupancy, trajectories."""
    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    curve = picture.survival
    times = np.concatenate([[0.0], curve.times.numpy()])
    survival = np.concatenate([[1.0], curve.survival.numpy()])
    error = np.concatenate([[0.0], curve.error.numpy()])
    left.step(times, survival, where="post", color="C0")
    low, high = np.clip(survival - 2 * error, 0, 1), np.clip(survival + 2 * error, 0, 1)
    left.fill_between(times, low, high, step="post", color="C0", alpha=0.25, linewidth=0)
    ended, censored = int(curve.ended.sum()), int(curve.censored.sum())
    left.set(xlabel="length of a visit, steps", ylabel="fraction that lasts longer", ylim=(-0.02, 1.02))
    left.set_title(f"visits {picture.what}: {ended} ended, {censored} go on", fontsize="medium")
    middle.plot(picture.steps, picture.occupancy, color="C1")
    middle.set(xlabel="optimizer step", ylabel=f"fraction of weights {picture.what}", ylim=(-0.02, 1.02))
    for index, row in zip(picture.coordinates, picture.latents.T, strict=True):
        right.plot(picture.steps, row, linewidth=0.9, label=str(index))
    if picture.threshold is not None:
        right.axhline(picture.threshold, color="0.4", linewidth=0.8, linestyle="--")
    right.set(xlabel="optimizer step", ylabel="latent")
    if len(picture.coordinates):
        right.legend(
            title="weight", fontsize="x-small", title_fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )
    return figure
