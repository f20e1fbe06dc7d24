"""Rescale the network at the start of training, without changing its function."""

from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_lift.callbacks._logging import log_scalars, tensorboard_loggers
from lightning_lift.callbacks.periodic import ReportingCallback, check_count
from lightning_lift.rescaling.report import RescalingReport
from lightning_lift.rescaling.whole_module import ModuleRescaling, rescale_module_, transport_states_


class PathConditioning(ReportingCallback):
    """Rescale the hidden units of a ReLU network before its first training step, and again every so many epochs.

    The function that the module's ``forward`` computes stays as it is; gradient descent takes another path (Lebeurrier,
    Vayer & Gribonval, "Path-conditioned training", 2026). A ConvexModule's network is rescaled under its present
    weights; its parameterization must not be a lift, whose weights depend on the batch. What an optimizer remembers is
    transported: first moments are divided by the factors, second moments by their squares. A resumed run is not
    rescaled anew, unless its checkpoint was written without this callback.

    Logged at the step of the rescaling: ``rescaling/objective_before`` and ``_after``, ``rescaling/condition_before``
    and ``_after`` (arithmetic over geometric mean of the path kernel's diagonal), ``rescaling/spread_before`` and
    ``_after`` (largest over smallest entry), ``rescaling/function_change`` (relative to the largest output),
    ``rescaling/units``, ``rescaling/sweeps``, ``rescaling/seconds``; in TensorBoard the histogram
    ``rescaling/log_scales``. The report is printed and kept as ``report``.

    The example input is the module's ``example_input_array`` where it has one, else the batch at hand (the first
    element of a tuple or list).

    Args:
        method: ``pathcond``, or ``enorm`` (least sum of squared weights, the baseline).
        every_n_epochs: rescale again at the start of every so many epochs; None for the start of training only.
        approximate: rescale through smooth activations (GELU, SiLU, Softplus) too; the function then changes by what is
            logged.
        max_sweeps: largest number of sweeps of the coordinate descent.
        tolerance: stop when the sum of the log-scales' changes over a sweep is below it.

    Raises:
        ValueError: an argument out of range.
    """

    label = "rescaling"

    def __init__(
        self,
        method: Literal["pathcond", "enorm"] = "pathcond",
        every_n_epochs: int | None = None,
        approximate: bool = False,
        max_sweeps: int = 10,
        tolerance: float = 1e-2,
    ) -> None:
        super().__init__()
        if method not in ("pathcond", "enorm"):
            raise ValueError(f"method={method!r} is not known; choose 'pathcond' or 'enorm'.")
        if every_n_epochs is not None:
            check_count("every_n_epochs", every_n_epochs)
        check_count("max_sweeps", max_sweeps)
        if not tolerance >= 0.0:
            raise ValueError(f"tolerance={tolerance}: give a number of at least 0.")
        self.method: Literal["pathcond", "enorm"] = method
        self.every_n_epochs = every_n_epochs
        self.approximate = approximate
        self.max_sweeps = max_sweeps
        self.tolerance = tolerance
        self.report: RescalingReport | None = None
        self._resumed = False
        self._due = False
        self._last_epoch = -1

    def state_dict(self) -> dict[str, Any]:
        """The epoch of the last rescaling."""
        return {"last_epoch": self._last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it: the checkpoint's weights are rescaled already."""
        self._last_epoch = int(state_dict["last_epoch"])
        self._resumed = self._last_epoch >= 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse what would be wrong in silence.

        Raises:
            ValueError: sharded parameters, or averaged weights that later rescalings would mix.
        """
        self._resumed = False  # before the checkpoint's state is loaded
        if stage != "fit":
            return
        strategy = type(trainer.strategy).__name__
        if strategy.startswith(("FSDP", "DeepSpeed", "ModelParallel")):
            raise ValueError(
                f"PathConditioning needs whole parameters on each device, which {strategy} shards: use DDP."
            )
        if self.every_n_epochs is not None and _averages(trainer):
            raise ValueError(
                "PathConditioning(every_n_epochs=...) and weight averaging exclude each other: the average would mix "
                "weights of different scales; leave every_n_epochs out."
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Rescale at the first batch, unless the run was resumed with rescaled weights."""
        self._due = not self._resumed
        if self._due:
            self._last_epoch = -1

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Rescale at the first batch of every ``every_n_epochs``-th epoch."""
        epoch = trainer.current_epoch
        if self.every_n_epochs is not None and epoch > self._last_epoch >= 0 and epoch % self.every_n_epochs == 0:
            self._due = True

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Rescale if it is due: the first hook that has a batch at hand, after the restoring of a checkpoint."""
        if not self._due:
            return
        if trainer.global_step and _averages(trainer):
            raise ValueError(
                "PathConditioning would rescale weights that are being averaged already: start it with the run, or "
                "resume without weight averaging."
            )
        rescaling = rescale_module_(
            pl_module,
            self.method,
            example_input=_example(pl_module, batch),
            approximate=self.approximate,
            tolerance=self.tolerance,
            max_sweeps=self.max_sweeps,
        )
        if trainer.world_size > 1:  # the same arithmetic everywhere, but not on the same hardware
            for parameter in pl_module.parameters():
                torch.distributed.broadcast(parameter.data, 0)
        transported = transport_states_(pl_module, trainer.optimizers, rescaling)
        self._due, self._last_epoch, self.report = False, trainer.current_epoch, rescaling.report
        self._tell(trainer, rescaling, transported)

    def _tell(self, trainer: L.Trainer, rescaling: ModuleRescaling, transported: str) -> None:
        report, step = rescaling.report, trainer.global_step
        if report.num_units == 0:
            self.warn_once("the network has no unit that can be rescaled; the report says why.\n" + str(report))
        if rescaling.raised:
            self.warn_once(
                f"{rescaling.raised} weights were raised to the parameterization's smallest one, and the output "
                f"changed by {max(report.function_change.values()):.2g} of its size.",
                key="raised",
            )
        rank_zero_info(f"{report}\n  {transported}")
        if not trainer.is_global_zero:
            return
        values = {
            "objective_before": report.objective_before,
            "objective_after": report.objective_after,
            "condition_before": report.condition_before.arithmetic_over_geometric,
            "condition_after": report.condition_after.arithmetic_over_geometric,
            "spread_before": report.condition_before.largest_over_smallest,
            "spread_after": report.condition_after.largest_over_smallest,
            "function_change": max(report.function_change.values(), default=float("nan")),
            "units": float(report.num_units),
            "sweeps": float(report.sweeps),
            "seconds": report.seconds["total"],
        }
        log_scalars(trainer, {f"{self.name(trainer)}/{key}": value for key, value in values.items()}, step)
        if report.num_units:
            for logger in tensorboard_loggers(trainer):
                logger.experiment.add_histogram(f"{self.name(trainer)}/log_scales", report.log_scales.numpy(), step)


def _averages(trainer: L.Trainer) -> bool:
    return any(isinstance(callback, WeightAveraging) for callback in trainer.callbacks)  # type: ignore[attr-defined]


def _example(pl_module: L.LightningModule, batch: Any) -> Any:
    example = pl_module.example_input_array
    if example is None:
        example = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(example, Tensor):
        return example.to(pl_module.device)
    if isinstance(example, tuple | dict) and example is not batch:
        return example
    raise ValueError(
        f"PathConditioning cannot tell the input of {type(pl_module).__name__}.forward from a batch of type "
        f"{type(batch).__name__}: set example_input_array in the module."
    )
