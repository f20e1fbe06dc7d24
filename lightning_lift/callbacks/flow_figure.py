"""A figure of a flow: its density and samples, held-out rows, and the grid of its map."""

from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure

from lightning_lift.callbacks._flow_plot import Array, FlowPicture, MarginalPicture, draw_flow, draw_marginals
from lightning_lift.callbacks._scheduled_figure import (
    ScheduledFigure,
    Stage,
    column_names,
    density_on_window,
    held_out_rows,
    in_data_order,
    original_units,
)
from lightning_lift.callbacks.periodic import check_count

_POINTS = 161  # along each dimension, of the density
_LINES, _LINE_POINTS = 17, 301  # of the base grid
_REACH = 2.75  # half-width of the base grid, in standard deviations: 99 % of the mass lies within
_MAX_COLUMNS = 4


class FlowFigure(ScheduledFigure):
    """Draw what a density model has learned, in original units, on rows that it was not trained on.

    Two columns: the true density (where the data module knows it) under held-out rows, the model's density under its
    samples, and the map: the pre-images of a square grid of the base, whose cells are the model's quantiles, so that
    lines crowd where mass is. Any other number of columns: marginals of samples and held-out rows, of up to four.

    It needs ``sample(n, seed)`` of the module, in the plane ``log_prob(x)`` too, and draws the grid where there is
    ``inverse_map(y)``, all in original units; lines break where that inverse has not converged. Figures go to
    ``flow/val`` and ``flow/test`` in TensorBoard, and to ``figures/flow_step_<step>.png`` and
    ``figures/flow_test.png`` beside the logs.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.
        num_samples: draws of the model.

    Raises:
        ValueError: fewer than one step or sample.
    """

    label = "flow"

    def __init__(self, every_n_steps: int = 1000, num_samples: int = 2000) -> None:
        super().__init__(every_n_steps)
        check_count("num_samples", num_samples)
        self.num_samples = num_samples

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
        sample: Any = getattr(pl_module, "sample", None)
        if not callable(sample) or not callable(getattr(pl_module, "log_prob", None)):
            return None, f"{type(pl_module).__name__} has no sample(n, seed) and log_prob(x)."
        when = f"step {trainer.global_step}" if stage == "val" else "test"
        title = f"{data.name}, {when}"
        samples = in_data_order(pl_module, data, sample(self.num_samples, seed=0)).numpy()
        rows = original_units(data, held_out_rows(data, stage)).numpy()
        if not np.isfinite(samples).all():
            return None, "samples are not finite: the model has diverged."
        if data.dim != 2:
            shown = min(data.dim, _MAX_COLUMNS)
            names = column_names(data)[:shown]
            return draw_marginals(MarginalPicture(samples[:, :shown], rows[:, :shown], names, title)), ""
        picture = self._plane(pl_module, data, samples, rows, title)
        if not np.isfinite(picture.model).all():
            return None, "the density is not finite: the model has diverged."
        return draw_flow(picture), ""

    def _plane(self, pl_module: Any, data: Any, samples: Array, rows: Array, title: str) -> FlowPicture:
        axes, model, truth = density_on_window(pl_module, data, _POINTS)
        return FlowPicture(
            axes=(axes[0], axes[1]),
            model=model,
            samples=samples,
            truth=truth,
            rows=rows,
            grid=_base_grid(pl_module, data),
            columns=column_names(data),
            title=title,
        )


def _base_grid(pl_module: Any, data: Any) -> Array | None:
    """Pre-images of the lines z1 = c and z2 = c, shape (2, lines, points, 2); NaN where the inverse failed."""
    inverse_map = getattr(pl_module, "inverse_map", None)
    if not callable(inverse_map):
        return None
    along = torch.linspace(-_REACH, _REACH, _LINE_POINTS)
    at = torch.linspace(-_REACH, _REACH, _LINES)
    fixed, moving = torch.meshgrid(at, along, indexing="ij")
    lines = torch.stack([torch.stack([fixed, moving], -1), torch.stack([moving, fixed], -1)])
    like = next(pl_module.parameters())
    result = inverse_map(lines.reshape(-1, 2).to(like))
    x = torch.where(result.converged[:, None], result.x, torch.nan)
    grid: Array = in_data_order(pl_module, data, x).reshape(lines.shape).numpy()
    return grid
