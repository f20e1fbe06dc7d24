"""Drawing of loss landscapes. Pure: arrays in, a figure out, no pyplot."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LEVELS = 16
_HATCH = (1.0, 1.0, 1.0, 0.45)


@dataclass(frozen=True)
class Panel:
    """One slice with what is projected on it.

    Attributes:
        title: over the panel.
        x: first axis, (n,).
        y: second axis, (m,).
        loss: (n, m), first index along x; NaN where not defined.
        infeasible: (n, m), where some weight is negative.
        trajectories: coordinates (T, 2) by label.
        colors: of the trajectories.
        labels: of the axes.
        lowest_known: the lowest loss at an end of a run: contours are spaced by the logarithm above it.
    """

    title: str
    x: Array
    y: Array
    loss: Array
    infeasible: NDArray[np.bool_]
    trajectories: dict[str, Array]
    colors: tuple[str, ...]
    labels: tuple[str, str]
    lowest_known: float


def draw_landscape(panels: list[Panel]) -> Figure:
    """Draw the slices side by side.

    Args:
        panels: one or two.
    """
    figure = Figure(figsize=(7.2 * len(panels), 6.2), layout="constrained")
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _draw(figure, axes, panel)
    return figure


def _draw(figure: Figure, axes: Axes, panel: Panel) -> None:
    finite = panel.loss[np.isfinite(panel.loss)]
    if finite.size:
        # The contours' logarithm is of the loss above a base that lies a little below everything.
        base = min(float(finite.min()), panel.lowest_known)
        spread = max(float(np.quantile(finite, 0.98)) - base, 1e-6)
        # From the innermost fiftieth of the grid on, within five decades.
        least = float(np.clip(np.quantile(finite - base, 0.02), 1e-5 * spread, 0.3 * spread))
        excess = np.clip(panel.loss - base, least, None)
        levels = np.geomspace(least, spread, _LEVELS + 1)
        norm = LogNorm(levels[0], levels[-1])
        masked = np.ma.masked_invalid(excess).T
        filled = axes.contourf(panel.x, panel.y, masked, levels=levels, norm=norm, cmap="viridis", extend="max")
        axes.contour(panel.x, panel.y, masked, levels=levels, norm=norm, colors="white", linewidths=0.3, alpha=0.6)
        bar = figure.colorbar(filled, ax=axes, label=f"loss - ({base:.4g}), nats")
        decades = [t for t in 10.0 ** np.arange(-12.0, 12.0) if levels[0] <= t <= levels[-1]]
        ticks = decades if len(decades) > 1 else [float(level) for level in levels[:: _LEVELS // 4]]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
        bar.ax.minorticks_off()
    axes.set_facecolor("0.85")  # where the loss is not defined
    handles: list[Artist] = []
    if bool(panel.infeasible.any()):
        hatched = panel.infeasible.astype(float).T
        drawn = axes.contourf(panel.x, panel.y, hatched, levels=[0.5, 1.5], colors="none", hatches=["///"])
        drawn.set(edgecolor=_HATCH, linewidth=0.0)
        handles.append(Patch(facecolor="0.6", edgecolor=_HATCH, hatch="///", label="a weight is negative"))
    if not np.isfinite(panel.loss).all():
        handles.append(Patch(facecolor="0.85", label="no finite loss"))
    for index, (label, points) in enumerate(panel.trajectories.items()):
        color = panel.colors[index]
        style: dict[str, Any] = {"color": color, "markeredgecolor": "white", "zorder": 5.0 + index, "clip_on": False}
        (line,) = axes.plot(points[:, 0], points[:, 1], ".-", color=color, linewidth=1.4, markersize=4.0, label=label)
        axes.plot(*points[0], "o", markersize=9.0, **style)
        axes.plot(*points[-1], "*", markersize=16.0, **style)
        handles.append(line)
    handles.append(axes.plot([], [], "o", color="0.4", markersize=8.0, label="start")[0])
    handles.append(axes.plot([], [], "*", color="0.4", markersize=12.0, label="end")[0])
    axes.set_xlim(float(panel.x[0]), float(panel.x[-1]))
    axes.set_ylim(float(panel.y[0]), float(panel.y[-1]))
    axes.set_xlabel(panel.labels[0])
    axes.set_ylabel(panel.labels[1])
    axes.set_title(panel.title)
    axes.legend(handles=handles, loc="best", fontsize="small", framealpha=0.9)
