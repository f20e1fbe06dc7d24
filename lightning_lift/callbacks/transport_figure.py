"""A figure of a transport map: where rows go, what becomes of the mass on the way, and where it lands."""

from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from lightning_lift.callbacks._scheduled_figure import Array, ScheduledFigure, Stage
from lightning_lift.callbacks.periodic import check_count
from lightning_lift.modules.transport_map import TransportMap

_STEPS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SOURCE, _TARGET = "#0072B2", "#D55E00"  # colour-blind safe (Okabe & Ito)


def draw_transport(
    transport: TransportMap, source: torch.Tensor, target: torch.Tensor, arrows: int = 150, names: Any = None
) -> Figure:
    """Draw a map of rows of P, beside rows of Q, by its first two columns.

    Above: arrows from rows to where they go; rows of Q beside the mapped ones. Below: the displacement interpolation,
    (1 - t) x + t T(x) for five t. In one dimension: the map's graph, and histograms on the way.

    Args:
        transport: the map.
        source: rows of P, shape (N, D).
        target: rows of Q, shape (M, D).
        arrows: how many of the rows have one.
        names: of the first two columns; None for x1 and x2.
    """
    with torch.no_grad():
        mapped = transport.forward(source)
        way = [torch.lerp(source, mapped, t)[:, :2].double().cpu().numpy() for t in _STEPS]
    x, y, q = way[0], way[-1], target[:, :2].double().cpu().numpy()
    names = [str(name) for name in names or ("x1", "x2")]
    figure = Figure(figsize=(12.5, 8.0), layout="constrained")
    grid = figure.add_gridspec(2, 2 * len(_STEPS), height_ratios=(1.6, 1.0))
    left, right = (figure.add_subplot(grid[0, part]) for part in (slice(len(_STEPS)), slice(len(_STEPS), None)))
    below = [figure.add_subplot(grid[1, 2 * i : 2 * i + 2]) for i in range(len(_STEPS))]
    if x.shape[1] == 1:
        order = x[:, 0].argsort()
        left.plot(x[order, 0], y[order, 0], color=_SOURCE)
        left.set(title="The map", xlabel=f"{names[0]} of P", ylabel=f"{names[0]} of Q")
        _histograms(right, y, q)
        for axes, t, points in zip(below, _STEPS, way, strict=True):
            axes.hist(points[:, 0], bins=60, density=True, color=_SOURCE)
            axes.set(title=f"t = {t:g}", xlabel=names[0])
        return figure
    some = slice(0, min(arrows, len(x)))
    segments = np.stack([x[some], y[some]], axis=1)
    left.add_collection(LineCollection(list(segments), colors="0.7", linewidths=0.7, zorder=1))
    left.scatter(x[some, 0], x[some, 1], s=8, color=_SOURCE, label="row of P", zorder=2)
    left.scatter(y[some, 0], y[some, 1], s=8, color=_TARGET, marker="^", label="where it goes", zorder=2)
    left.set(title="Where rows go", xlabel=names[0], ylabel=names[1])
    right.scatter(q[:, 0], q[:, 1], s=3, color="0.6", label="rows of Q", rasterized=True)
    right.scatter(y[:, 0], y[:, 1], s=3, color=_TARGET, label="mapped rows of P", rasterized=True)
    right.set(title="Where the mass lands", xlabel=names[0], ylabel=names[1])
    for axes in (left, right):
        axes.set_aspect("equal", adjustable="datalim")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    everything = np.concatenate(way)
    middle, half = 0.5 * (everything.max(0) + everything.min(0)), 0.55 * np.ptp(everything, axis=0).max()
    for axes, t, points in zip(below, _STEPS, way, strict=True):
        axes.scatter(points[:, 0], points[:, 1], s=2, color=_SOURCE, rasterized=True)
        axes.set(title=f"t = {t:g}", xlabel=names[0], xlim=middle[0] + [-half, half], ylim=middle[1] + [-half, half])
        axes.set_aspect("equal")
    below[0].set_ylabel(names[1])
    return figure


def _histograms(axes: Axes, mapped: Array, target: Array) -> None:
    ends = np.concatenate([mapped, target])
    bins = np.linspace(ends.min(), ends.max(), 60)
    axes.hist(target[:, 0], bins=list(bins), density=True, color="0.7", label="rows of Q")
    axes.hist(mapped[:, 0], bins=list(bins), density=True, histtype="step", color=_TARGET, label="mapped rows of P")
    axes.set(title="Where the mass lands", xlabel="x1", ylabel="density")
    axes.legend(frameon=False)


class TransportFigure(ScheduledFigure):
    """Draw where held-out rows go under a transport map, where they land, and the mass on the way.

    By the first two columns, in original units. Figures go to ``transport/val`` and ``transport/test`` in TensorBoard,
    and to ``figures/transport_step_<step>.png`` (``transport_val.png`` without a fit) and
    ``figures/transport_test.png`` beside the logs.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.
        num_rows: rows of either side.

    Raises:
        ValueError: fewer than one step or row.
    """

    label = "transport"

    def __init__(self, every_n_steps: int = 1000, num_rows: int = 1000) -> None:
        super().__init__(every_n_steps)
        check_count("num_rows", num_rows)
        self.num_rows = num_rows

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
        module: Any = pl_module
        if not callable(getattr(module, "transport_map", None)):
            return None, f"{type(module).__name__} has no transport_map()."
        loader = data.val_dataloader() if stage == "val" else data.test_dataloader()
        batch = module.as_batch(next(iter(loader)))
        source, target = (rows[: self.num_rows].to(module.device) for rows in batch[:2])
        transport = module.transport_map()
        if not torch.isfinite(transport.forward(source)).all():
            return None, "mapped rows are not finite: the model has diverged."
        return draw_transport(transport, source, target, names=getattr(data, "columns", None)), ""
