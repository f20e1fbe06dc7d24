"""A figure of the model's density against the truth, or against held-out data."""

from typing import Any

import lightning as L
import numpy as np
from matplotlib.figure import Figure

from lightning_lift.callbacks._density_plot import DensityPicture, draw_density
from lightning_lift.callbacks._scheduled_figure import (
    ScheduledFigure,
    Stage,
    column_names,
    density_on_window,
    held_out_rows,
    original_units,
)

_POINTS = {1: 1001, 2: 161}  # along each dimension


class DensityFigure(ScheduledFigure):
    """Draw the model's density: curves for one column, contours for two, in original units.

    It is drawn against the true density where the data module knows it, else against a histogram of held-out rows (of
    validation in validation, of test in test), on the data module's window, under the weights that are evaluated (also
    with weight averaging). It goes to every TensorBoard logger as ``density/val`` and ``density/test``, and to
    ``figures/density_step_<step>.png`` (``density_val.png`` without a fit) and ``figures/density_test.png`` beside the
    logs.

    With more than two columns nothing is drawn, and that is said once.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.

    Raises:
        ValueError: fewer than one step.
    """

    label = "density"

    def __init__(self, every_n_steps: int = 1000) -> None:
        super().__init__(every_n_steps)

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
        if not callable(getattr(pl_module, "log_prob", None)):
            return None, f"{type(pl_module).__name__} has no log_prob."
        if data.dim not in _POINTS:
            return None, f"the data have {data.dim} columns; densities of one or two columns can be drawn."
        picture = self._picture(trainer, pl_module, data, stage)
        if picture is None:
            return None, "the log-density is NaN or infinite: the model has diverged."
        return draw_density(picture), ""

    def _picture(
        self, trainer: L.Trainer, pl_module: L.LightningModule, data: Any, stage: Stage
    ) -> DensityPicture | None:
        axes, model, truth = density_on_window(pl_module, data, _POINTS[data.dim])
        if not np.isfinite(model).all():
            return None
        rows = None if truth is not None else original_units(data, held_out_rows(data, stage)).numpy()
        when = f"step {trainer.global_step}" if stage == "val" else "test"
        return DensityPicture(
            axes=tuple(axes),
            model=model,
            truth=truth,
            rows=rows,
            columns=column_names(data),
            title=f"{data.name}, {when}",
        )
