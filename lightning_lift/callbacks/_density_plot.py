"""Drawings of a density against the truth or against data. Pure: arrays in, a figure out, no pyplot."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FEW_ROWS = 2000  # fewer are drawn as points: a histogram in the plane would be mostly empty


@dataclass(frozen=True)
class DensityPicture:
    """What is drawn, everything in original units.

    Attributes:
        axes: grid along each of D = 1 or 2 dimensions, (M,) each.
        model: the model's density on the grid, (M,) or (M, M), first index along the first dimension.
        truth: the true density on the grid, or None.
        rows: held-out rows (N, D), drawn as a histogram where there is no truth, or None.
        columns: name of each dimension.
        title: over the figure.
    """

    axes: tuple[Array, ...]
    model: Array
    truth: Array | None
    rows: Array | None
    columns: tuple[str, ...]
    title: str


def draw_density(picture: DensityPicture) -> Figure:
    """Draw curves for one dimension, contours for two.

    Args:
        picture: at least one of ``truth`` and ``rows``.

    Raises:
        ValueError: another number of dimensions.
    """
    if len(picture.axes) == 1:
        return _draw_line(picture)
    if len(picture.axes) == 2:
        return _draw_plane(picture)
    raise ValueError(f"a density in {len(picture.axes)} dimensions cannot be drawn; 1 or 2 can.")


def _draw_line(picture: DensityPicture) -> Figure:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    (x,) = picture.axes
    top = float(picture.model.max())
    if picture.truth is not None:
        axes.fill_between(x, picture.truth, color="0.85", linewidth=0.0)
        axes.plot(x, picture.truth, color="0.35", linewidth=1.5, label="truth")
        top = min(top, 1.5 * float(picture.truth.max()))
        top = max(top, float(picture.truth.max()))
    elif picture.rows is not None:
        heights, edges = histogram(picture.rows, (x,), _num_bins(len(picture.rows), 60))
        axes.stairs(heights, edges[0], fill=True, color="0.8", label=f"held-out data ({len(picture.rows)} rows)")
        top = max(min(top, 2.0 * float(heights.max())), float(heights.max()))
    axes.plot(x, picture.model, color="C0", linewidth=1.8, label="model")
    axes.set_xlim(float(x[0]), float(x[-1]))
    axes.set_ylim(0.0, 1.05 * top if top > 0.0 else 1.0)
    axes.set_xlabel(picture.columns[0])
    axes.set_ylabel("density")
    axes.set_title(picture.title)
    axes.legend(frameon=False)
    return figure


def _draw_plane(picture: DensityPicture) -> Figure:
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    x, y = picture.axes
    reference, rows = picture.truth, picture.rows
    edges: tuple[Array, ...] = ()
    if reference is None and rows is not None and len(rows) >= _FEW_ROWS:
        reference, edges = histogram(rows, (x, y), _num_bins(len(rows), 40))
    # One scale for both panels, set by the reference where there is one: equal colours are equal densities.
    top = float(reference.max()) if reference is not None and reference.max() > 0.0 else float(picture.model.max())
    levels = np.linspace(0.0, top if top > 0.0 else 1.0, 11)
    style: dict[str, Any] = {"levels": levels, "cmap": "viridis", "extend": "max"}
    if picture.truth is not None:
        left.contourf(x, y, picture.truth.T, **style)
        left.set_title("truth")
    elif rows is not None:
        left.set_title(f"held-out data ({len(rows)} rows)")
        if reference is not None:
            left.pcolormesh(edges[0], edges[1], reference.T, cmap="viridis", vmin=0.0, vmax=levels[-1])
        else:
            left.contour(x, y, picture.model.T, levels=levels[1:], cmap="viridis", linewidths=0.8)
            left.scatter(rows[:, 0], rows[:, 1], s=8.0, color="C3", linewidths=0.0)
            left.set_title(f"{len(rows)} held-out rows, model's contours")
    filled = right.contourf(x, y, picture.model.T, **style)
    right.contour(x, y, picture.model.T, levels=levels[1:], colors="white", linewidths=0.4)
    right.set_title("model")
    figure.colorbar(filled, ax=[left, right], label="density")
    for axes in (left, right):
        axes.set_xlabel(picture.columns[0])
        axes.set_xlim(float(x[0]), float(x[-1]))
        axes.set_ylim(float(y[0]), float(y[-1]))
    left.set_ylabel(picture.columns[1])
    figure.suptitle(picture.title)
    return figure


def _num_bins(num_rows: int, most: int) -> int:
    """Rice's rule, 2 N^(1/3), within 5 and ``most``: few rows in many bins would be noise."""
    return int(np.clip(2.0 * num_rows ** (1.0 / 3.0), 5, most))


def histogram(rows: Array, axes: tuple[Array, ...], bins: int) -> tuple[Array, tuple[Array, ...]]:
    """A histogram density on the window of the axes; rows outside it count in the total.

    Args:
        rows: (N, D).
        axes: grid along each dimension; only its ends matter.
        bins: along each dimension.

    Returns:
        Heights, (bins,) or (bins, bins), and the edges along each dimension.
    """
    edges = tuple(np.linspace(float(axis[0]), float(axis[-1]), bins + 1) for axis in axes)
    counts, _ = np.histogramdd(rows, bins=edges)
    volume = float(np.prod([edge[1] - edge[0] for edge in edges]))
    return counts / (len(rows) * volume), edges
