"""A figure of the model's density against the truth, or against held-out data."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.callbacks._density_plot import DensityPicture, draw_density
from lightning_lift.callbacks._logging import publish_figure, run_directory
from lightning_lift.callbacks.periodic import WarnsOnce, check_count
from lightning_lift.diagnostics.probe import undisturbed

_POINTS = {1: 1001, 2: 161}  # along each dimension
_MAX_ROWS = 20_000


class DensityFigure(WarnsOnce):
    """Draws the model's density: curves for one column, contours for two, in original units.

    It is drawn against the true density where the data module knows it, else against a histogram of held-out rows (of
    validation in validation, of test in test), on the data module's window, under the weights that are evaluated (also
    with weight averaging). It goes to every TensorBoard logger as ``density/val`` and ``density/test``, and to
    ``figures/density_step_<step>.png`` (``density_val.png`` without a fit) and ``figures/density_test.png`` beside the
    logs.

    With more than two columns nothing is drawn, and that is said once.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. Every test has one.

    Raises:
        ValueError: fewer than one step.
    """

    def __init__(self, every_n_steps: int = 1000) -> None:
        super().__init__()
        check_count("every_n_steps", every_n_steps)
        self.every_n_steps = every_n_steps
        self._last_step: int | None = None

    @property
    def state_key(self) -> str:
        """Tells two instances with different settings apart in a checkpoint."""
        return self._generate_state_key(every_n_steps=self.every_n_steps)

    def state_dict(self) -> dict[str, Any]:
        """The step of the last figure in validation."""
        return {"last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what ``state_dict`` gave."""
        self._last_step = state_dict["last_step"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A training from step 0 has no figure before it."""
        if trainer.global_step == 0:
            self._last_step = None

    # At the first batch rather than at the end of the epoch: the weights under evaluation are in place and calibrated,
    # while weight averaging takes its average back at the end of the epoch, before or after this callback.

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draws in validation, when it is time."""
        if trainer.sanity_checking or batch_idx or dataloader_idx:
            return
        if trainer.state.fn != "fit":
            self._draw(trainer, pl_module, "val", "density_val.png")
            return
        step = trainer.global_step
        if self._last_step is None or step - self._last_step >= self.every_n_steps:
            self._last_step = step
            self._draw(trainer, pl_module, "val", f"density_step_{step:08d}.png")

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draws in test."""
        if batch_idx == 0 and dataloader_idx == 0:
            self._draw(trainer, pl_module, "test", "density_test.png")

    def _draw(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str, file_name: str) -> None:
        data = getattr(trainer, "datamodule", None)
        calibrate, log_prob = (getattr(pl_module, name, None) for name in ("calibrate", "log_prob"))
        if data is None or not callable(log_prob):
            missing = (
                "the trainer has no data module" if data is None else f"{type(pl_module).__name__} has no log_prob"
            )
            self.warn_once(f"{missing}, so no density is drawn.")
            return
        if data.dim not in _POINTS:
            self.warn_once(f"the data have {data.dim} columns; densities of one or two columns can be drawn.")
            return
        if callable(calibrate):
            calibrate()
        if not trainer.is_global_zero:
            return
        try:
            with undisturbed(pl_module), torch.no_grad():
                pl_module.eval()
                picture = self._picture(trainer, pl_module, data, stage)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            # A figure must not end a training; a diverged model raises in the partition function.
            self.warn_once(f"no density at step {trainer.global_step}: {error}", key="failed")
            return
        if picture is None:
            self.warn_once(
                f"the log-density is NaN or infinite at step {trainer.global_step}: the model has diverged.",
                key="diverged",
            )
            return
        path = run_directory(trainer) / "figures" / file_name
        publish_figure(trainer, draw_density(picture), f"density/{stage}", path, trainer.global_step)

    def _picture(
        self, trainer: L.Trainer, pl_module: L.LightningModule, data: Any, stage: str
    ) -> DensityPicture | None:
        size = _POINTS[data.dim]
        ends = data.window.T.tolist()
        lines = [torch.linspace(low, high, size, dtype=torch.float64) for low, high in ends]
        points = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, data.dim).float()
        log_prob: Any = pl_module.log_prob
        own_units: Any = getattr(pl_module, "own_units", lambda rows: rows)
        parts = [part.to(pl_module.device) for part in torch.split(points, 8192)]
        log_model = torch.cat([log_prob(own_units(part)).cpu() for part in parts])
        if bool(log_model.isnan().any()) or bool((log_model == torch.inf).any()):
            return None
        location, scale = data.location.cpu().double(), data.scale.cpu().double()
        shape = [size] * data.dim

        log_scale = float(scale.log().sum())

        def density(log_prob: Tensor, log_scale: float) -> Any:
            return (log_prob.double() - log_scale).exp().view(shape).numpy()

        truth = density(data.log_prob(points), log_scale) if data.has_log_prob else None
        rows = None
        if truth is None:
            loader = data.val_dataloader() if stage == "val" else data.test_dataloader()
            rows = (location + scale * _first_rows(loader).double()).numpy()
        names = getattr(data, "columns", None)
        if names is None or len(names) != data.dim:
            names = ["x"] if data.dim == 1 else [f"x{i + 1}" for i in range(data.dim)]
        when = f"step {trainer.global_step}" if stage == "val" else "test"
        return DensityPicture(
            axes=tuple((location[i] + scale[i] * line).numpy() for i, line in enumerate(lines)),
            model=density(log_model, getattr(pl_module, "log_scale", log_scale)),
            truth=truth,
            rows=rows,
            columns=tuple(str(name) for name in names),
            title=f"{data.name}, {when}",
        )


def _first_rows(loader: Any) -> Tensor:
    rows: list[Tensor] = []
    for batch in loader:
        rows.append(batch.cpu())
        if sum(map(len, rows)) >= _MAX_ROWS:
            break
    return torch.cat(rows)[:_MAX_ROWS]
