"""A figure of the posterior of one observation, beside reference draws where they are known."""

from typing import Any

import lightning as L
from matplotlib.figure import Figure

from lightning_lift.callbacks._flow_plot import MarginalPicture, draw_marginals
from lightning_lift.callbacks._scheduled_figure import (
    ScheduledFigure,
    Stage,
    column_names,
    in_data_order,
    original_units,
)
from lightning_lift.callbacks.periodic import check_count
from lightning_lift.datamodules.units import Units

_MAX_COLUMNS = 6


class PosteriorFigure(ScheduledFigure):
    """Draw pairs of parameters under the posterior of one held-out observation, in original units.

    Draws of the model are below the diagonal, those within the bounds of the prior where the data module has
    ``inside(x)``; above it are reference draws, where it has ``reference_draws(context, num_draws, seed)`` and gives
    some for this observation. Along it are histograms of both. The parameters that the observation was simulated from
    are marked in red. Up to six parameters are drawn.

    It needs ``sample(n, context, seed)`` of the module. Figures go to ``posterior/val`` and ``posterior/test`` in
    TensorBoard, and to ``figures/posterior_step_<step>.png`` (``posterior_val.png`` without a fit) and
    ``figures/posterior_test.png`` beside the logs.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.
        num_samples: draws of the model, and of the reference.
        observation: which row of the first batch of the validation or test split is observed, from 0.

    Raises:
        ValueError: fewer than one step or sample, or a negative row.
    """

    label = "posterior"

    def __init__(self, every_n_steps: int = 1000, num_samples: int = 2000, observation: int = 0) -> None:
        super().__init__(every_n_steps)
        check_count("num_samples", num_samples)
        check_count("observation", observation, least=0)
        self.num_samples, self.observation = num_samples, observation

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
        if "context" not in getattr(module, "batch_fields", ()) or not callable(getattr(module, "sample", None)):
            return None, f"{type(module).__name__} has no sample(n, context, seed)."
        loader = data.val_dataloader() if stage == "val" else data.test_dataloader()
        batch = module.as_batch(next(iter(loader)))
        row = slice(self.observation, self.observation + 1)
        parameters, context = original_units(data, batch.x[row].cpu()), batch.context[row].cpu()
        if not len(context):
            return None, f"observation={self.observation} is no row of the first batch, which has {len(batch.x)}."
        units: Units | None = getattr(data, "field_units", {}).get("context")
        if units is not None:
            context = units.invert(context)
        samples = in_data_order(module, data, module.sample(self.num_samples, context, seed=0)[:, 0])
        if not samples.isfinite().all():
            return None, "samples are not finite: the model has diverged."
        inside = getattr(data, "inside", None)
        draws = (samples[inside(samples)] if callable(inside) else samples).numpy()
        if not len(draws):
            return None, f"none of {self.num_samples} draws is within the bounds of the prior."
        draw_reference = getattr(data, "reference_draws", None)
        reference = draw_reference(context[0], self.num_samples, 0) if callable(draw_reference) else None
        when = f"step {trainer.global_step}" if stage == "val" else "test"
        shown = slice(min(data.dim, _MAX_COLUMNS))
        picture = MarginalPicture(
            samples=draws[:, shown],
            rows=None if reference is None else reference.cpu().double().numpy()[:, shown],
            columns=column_names(data)[shown],
            title=f"{data.name}, {when}",
            labels=("posterior", "reference"),
            truth=parameters.numpy()[0, shown],
        )
        return draw_marginals(picture), ""
