"""The schedule of figures that are drawn in validation and test."""

from abc import abstractmethod
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lightning_lift.callbacks._logging import is_recorded, publish_figure
from lightning_lift.callbacks.periodic import ReportingCallback, check_count
from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.modules.density import DensityTask
from lightning_lift.modules.units import column_order

Array = np.typing.NDArray[np.float64]
Stage = Literal["val", "test"]

_MAX_ROWS = 20_000


class ScheduledFigure(ReportingCallback):
    """A figure of the weights that are evaluated (also with weight averaging), which are not disturbed.

    A figure goes to every TensorBoard logger as ``<label>/val`` and ``<label>/test``, and to
    ``figures/<label>_step_<step>.png`` (``<label>_val.png`` without a fit) and ``figures/<label>_test.png`` beside the
    logs. A model that cannot be drawn gives one warning and never ends a run.

    Subclass requirements: ``label``, and ``figure(trainer, pl_module, data, stage)``, which is called on rank 0 in
    evaluation mode without gradient.

    Args:
        every_n_steps: optimizer steps between figures; one is drawn in the first validation that is at least so many
            steps after the one before. The end of a fit and every test have one.

    Raises:
        ValueError: fewer than one step.
    """

    def __init__(self, every_n_steps: int) -> None:
        super().__init__()
        check_count("every_n_steps", every_n_steps)
        self.every_n_steps = every_n_steps
        self._last_step: int | None = None

    @abstractmethod
    def figure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, data: Any, stage: Stage
    ) -> tuple[Figure | None, str]:
        """Draw, or say why not.

        Args:
            trainer: the trainer.
            pl_module: the model, in evaluation mode.
            data: the trainer's data module.
            stage: ``val`` or ``test``.

        Returns:
            The figure, or None and a reason, which is said once.
        """

    def state_dict(self) -> dict[str, Any]:
        """The step of the last figure in validation."""
        return {"last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._last_step = state_dict["last_step"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the figures before a training from step 0; ``on_fit_start`` does not know a resumed run's step."""
        if trainer.global_step == 0:
            self._last_step = None

    # At the first batch rather than at the end of the epoch: the weights under evaluation are in place and calibrated,
    # while weight averaging takes its average back at the end of the epoch, before or after this callback.

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw in validation, when it is time."""
        if trainer.sanity_checking or batch_idx or dataloader_idx:
            return
        if trainer.state.fn != "fit":
            self._draw(trainer, pl_module, "val", "val")
        elif self._last_step is None or trainer.global_step - self._last_step >= self.every_n_steps:
            self._draw_step(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the trained model, unless the last validation has.

        Not in ``on_train_end``, where weight averaging puts its average in place, before or after this callback. The
        module has left the accelerator, and is calibrated.
        """
        if self._last_step != trainer.global_step:
            self._draw_step(trainer, pl_module, calibrate=False)

    def _draw_step(self, trainer: L.Trainer, pl_module: L.LightningModule, calibrate: bool = True) -> None:
        self._last_step = trainer.global_step
        self._draw(trainer, pl_module, "val", f"step_{trainer.global_step:08d}", calibrate)

    def on_test_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Draw in test."""
        if batch_idx == 0 and dataloader_idx == 0:
            self._draw(trainer, pl_module, "test", "test")

    def _draw(
        self, trainer: L.Trainer, pl_module: L.LightningModule, stage: Stage, what: str, calibrate: bool = True
    ) -> None:
        data = getattr(trainer, "datamodule", None)
        if data is None:
            self.warn_once("the trainer has no data module, so nothing is drawn.")
            return
        calibration = getattr(pl_module, "calibrate", None) if calibrate else None
        if callable(calibration):
            calibration()
        if not trainer.is_global_zero or not is_recorded(trainer):
            return
        try:
            with undisturbed(pl_module), torch.no_grad():
                pl_module.eval()
                figure, reason = self.figure(trainer, pl_module, data, stage)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            # A figure must not end a training; a diverged model raises where it is sampled or inverted.
            self.warn_once(f"no figure at step {trainer.global_step}: {error}", key="failed")
            return
        if figure is None:
            self.warn_once(f"no figure at step {trainer.global_step}: {reason}", key="not drawn")
            return
        name = self.name(trainer)
        publish_figure(trainer, figure, f"{name}/{stage}", f"{name}_{what}.png", trainer.global_step)


def density_on_window(pl_module: Any, data: Any, size: int) -> tuple[list[Array], Array, Array | None]:
    """Axes of a grid on the data module's window and, on it, model and truth; all in original units.

    Args:
        pl_module: a density task, or a module with ``log_prob(x)`` in original units.
        data: a data module of D columns.
        size: points n along each dimension.

    Returns:
        D axes of shape (n,), the model's density, shape (n, ..., n), and the true one or None where it is not known.
    """
    if getattr(data, "window", None) is None:
        raise ValueError(f"{type(data).__name__} has no window to draw a density of rows alone on.")
    corners = torch.cartesian_prod(*data.window.double().T).reshape(-1, data.dim)
    box = data.units.invert(corners)  # whitened columns are mixed: the axes are those of the table
    axes = [torch.linspace(low, high, size, dtype=torch.float64) for low, high in zip(*box.aminmax(dim=0), strict=True)]
    original = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, data.dim)
    points = data.units.apply(original)
    like = next(pl_module.parameters())
    if isinstance(pl_module, DensityTask):  # knows the order of the data's columns, and needs no large numbers
        parts = [pl_module.predict_step(part.to(like), 0) for part in points.split(8192)]
    else:
        parts = [pl_module.log_prob(part.to(like)) for part in original.split(8192)]
    model = torch.cat(parts).cpu()
    shape = [size] * data.dim
    truth = None
    if getattr(data, "has_log_prob", False):
        truth = (data.log_prob(points.float()).double() - data.log_scale).exp().view(shape).numpy()
    return [axis.numpy() for axis in axes], model.double().exp().view(shape).numpy(), truth


def original_units(data: Any, x: Tensor) -> Tensor:
    """Points in the data module's training units, shape (N, D), to original ones, float64 on the CPU."""
    original: Tensor = data.units.invert(x.cpu().double())
    return original


def in_data_order(pl_module: Any, data: Any, x: Tensor) -> Tensor:
    """Points of a model, shape (N, D), float64 on the CPU, with their columns as the data module has them."""
    x = x.detach().cpu().double()
    order = column_order(getattr(pl_module, "columns", None), data)
    return x if order is None else x[:, torch.tensor(order).argsort()]


def held_out_rows(data: Any, stage: Stage, most: int = _MAX_ROWS) -> Tensor:
    """The first rows of the validation or test split on the CPU, in the data module's units: shape (N, D)."""
    rows: list[Tensor] = []
    for batch in data.val_dataloader() if stage == "val" else data.test_dataloader():
        if not isinstance(batch, Tensor):
            raise ValueError(f"a batch of {type(data).__name__} has parts, and this figure is one of rows alone.")
        rows.append(batch.cpu())
        if sum(map(len, rows)) >= most:
            break
    return torch.cat(rows)[:most]


def column_names(data: Any) -> tuple[str, ...]:
    """The data module's column names, or x1, x2, ..."""
    names = getattr(data, "columns", None)
    if names is None or len(names) != data.dim:
        names = ["x"] if data.dim == 1 else [f"x{i + 1}" for i in range(data.dim)]
    return tuple(str(name) for name in names)
