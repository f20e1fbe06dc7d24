"""What everything that is trained here shares: optimizer and schedule, modes and averages, a watch over the loss."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.tuner.lr_finder import _LRCallback
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_lift.modules.checkpoint_files import name_damaged_files, write_whole_files
from lightning_lift.modules.checkpoints import StoredModule
from lightning_lift.modules.defaults import WarmupCosine
from lightning_lift.modules.divergence import DivergenceError, has_diverged, has_exploded, is_blown_up, largest_weight
from lightning_lift.modules.factories import factory
from lightning_lift.modules.loops import forward_state, settle_loops
from lightning_lift.modules.schedules import check_optimizer, renew_schedule

_LAG = 50  # batches between two looks at the losses where a look waits for a device or for other processes


class FittedModule(StoredModule):
    """Base of every module that is trained here, with or without convex networks.

    A fit ends with ``DivergenceError`` at the first training loss that is not finite, or a million times the first one
    (seen at once on one CPU, within 50 batches elsewhere), at a monitored metric, ``val/loss`` or ``val/nll`` that is
    not finite in validation, and at an error of arithmetic after the first step; such weights are never written as a
    checkpoint. Under averaging callbacks whatever is evaluated outside ``fit`` is the module as it is given or loaded.
    Local checkpoints are written beside their place and renamed.

    Subclass requirements: constructor arguments plain or factories, all of them passed on or stored by name; hooks
    that are overridden call ``super()``.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: a dimension below 1 or a learning rate that is not positive.
        TypeError: a factory that is not one, or that a checkpoint could not store.
    """

    scheduler_interval: Literal["step", "epoch"] = "step"

    selection_metric: str = "val/loss"
    """What the best weights of a fit have the lowest of."""

    headlines: tuple[str, ...] = ("test/loss",)
    """Test metrics that a report of a comparison is about, the first ones that are measured."""

    def __init__(
        self,
        dim: int,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim={dim!r}: the data need at least one column.")
        if learning_rate is not None and not learning_rate > 0.0:
            raise ValueError(f"learning_rate={learning_rate}: must be positive, or None for the optimizer's own.")
        self.save_plain_hyperparameters()
        self.dim = dim
        self.learning_rate = learning_rate
        self._optimizer = factory("optimizer", optimizer, Optimizer)
        self._lr_scheduler = None if lr_scheduler is None else factory("lr_scheduler", lr_scheduler, LRScheduler)
        self._modes: list[tuple[nn.Module, bool]] = []  # before an evaluation that has not ended
        self._judged = False  # whether a divergence ends the fit
        self._start_size, self._began = math.inf, 0.0  # largest weight and time at the start of training
        self._first_loss: float | None = None
        self._losses: list[tuple[int, float, Tensor]] = []  # step, rate and loss, not yet looked at
        self._before: tuple[int, dict[str, Any]] | None = None  # see ``settle_loops``
        self._batch: Any = None  # of the present training step
        self._trained: list[Tensor] = []  # weights before a validation that has not ended, under weight averaging

    def configure_optimizers(self) -> Any:
        """The optimizer over all parameters, and the scheduler."""
        optimizer = self._optimizer(self.parameters())
        if self.learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate
        if self._lr_scheduler is None:
            return optimizer
        scheduler = self._lr_scheduler(optimizer)
        if isinstance(scheduler, WarmupCosine) and self._trainer is not None:
            scheduler.follow(self.trainer.estimated_stepping_batches)
        for name in ("T_max", "step_size"):  # others are checked by torch
            if getattr(scheduler, name, 1) < 1:
                raise ValueError(f"lr_scheduler: {name}={getattr(scheduler, name)}: give a number of steps, 1 or more.")
        config: dict[str, Any] = {"scheduler": scheduler, "interval": self.scheduler_interval}
        if isinstance(scheduler, ReduceLROnPlateau):
            config |= {"interval": "epoch", "monitor": getattr(scheduler, "monitor", "val/loss")}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def setup(self, stage: str) -> None:
        """Have checkpoints written whole; outside ``fit`` averaging callbacks forget the average of a fit before.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
        """
        self._judged = False
        write_whole_files(self.trainer)
        name_damaged_files(self.trainer)
        if stage != "fit":
            forget_averages(self.trainer)

    # -- modes --------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Put the modes back that an interrupted evaluation has left behind."""
        if not self.training:
            for part, training in self._modes:
                part.training = training
        self._modes = []

    def on_validation_model_eval(self) -> None:
        """Evaluation mode, until the end."""
        self._keep_modes()
        if any(isinstance(callback, WeightAveraging) for callback in getattr(self.trainer, "callbacks", [])):
            self._trained = [parameter.detach().clone() for parameter in self.parameters()]
        super().on_validation_model_eval()

    def on_test_model_eval(self) -> None:
        """Evaluation mode, until the end."""
        self._keep_modes()
        super().on_test_model_eval()

    def on_predict_model_eval(self) -> None:
        """Evaluation mode, until the end."""
        self._keep_modes()
        super().on_predict_model_eval()

    def _keep_modes(self) -> None:
        self._modes = [(part, part.training) for part in self.modules()]

    def teardown(self, stage: str) -> None:
        """Nothing was interrupted."""
        self._modes, self._trained, self._before, self._batch = [], [], None, None

    # -- divergence ---------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Start the watch over the loss; not in a learning-rate finder, nor where a callback judges the run itself."""
        callbacks = getattr(self.trainer, "callbacks", [])
        self._judged = not any(isinstance(c, _LRCallback) or getattr(c, "judges_divergence", False) for c in callbacks)
        self._first_loss = None
        self._losses, self._began = [], time.time() - 0.01  # files are stamped by a coarser clock
        self._start_size = largest_weight(self) if self._judged else math.inf

    def on_before_backward(self, loss: Tensor) -> None:
        """Take note of the loss, before gradients are made of it.

        Args:
            loss: scalar; under ``16-mixed`` times the gradient scaler's factor.
        """
        if not self._judged:
            return
        optimizers = self.trainer.optimizers
        rate = float(optimizers[0].param_groups[0]["lr"]) if optimizers else math.nan
        self._losses.append((self.trainer.global_step + 1, rate, loss.detach()))
        at_once = loss.device.type == "cpu" and self.trainer.world_size == 1
        if at_once or len(self._losses) >= _LAG:
            self._judge_losses()

    def _judge_losses(self) -> None:
        """Raise at the first loss that has exploded in any process; called by all processes alike."""
        noted, self._losses = self._losses, []
        if not noted:
            return
        losses = torch.stack([loss for *_, loss in noted]).float()
        if self.trainer.world_size > 1:
            losses = torch.as_tensor(self.all_gather(losses)).reshape(self.trainer.world_size, -1).mean(0)
        for (step, rate, _), loss in zip(noted, losses.tolist(), strict=True):
            self._first_loss = loss if self._first_loss is None else self._first_loss
            if has_exploded(loss, self._first_loss):
                raise DivergenceError(self._diverged(f"the training loss is {loss:.6g}", step, rate))

    def _judge_metrics(self) -> None:
        callbacks = getattr(self.trainer, "callbacks", [])
        own = ("val/loss", self.selection_metric)
        wrong = {k: float(v) for k, v in self.trainer.callback_metrics.items() if not math.isfinite(float(v))}
        for name in [*own, *(getattr(c, "monitor", None) for c in callbacks)]:
            if name not in wrong:
                continue
            what = f"{name} is {wrong[name]}"
            if name in own or is_blown_up(self, self._start_size):
                raise DivergenceError(self._diverged(what))
            raise ValueError(
                f"{what} after step {self.trainer.global_step}, and it is monitored: by it no checkpoint is the best. "
                "The weights are finite: mend the metric, or monitor another."
            )

    def _diverged(self, what: str, step: int | None = None, rate: float | None = None) -> str:
        """The sentence: what is not finite and where, what to try, and the last file with finite weights."""
        if rate is None:
            rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])
        folders = {getattr(callback, "dirpath", None) for callback in self.trainer.checkpoint_callbacks}
        files = [file for folder in folders if folder for file in Path(folder).glob("*.ckpt")]
        times = {file: file.stat().st_mtime for file in files}
        since = [file for file, written in times.items() if written >= self._began]
        resumed = self.trainer.ckpt_path
        if resumed is not None and not get_filesystem(resumed).exists(str(resumed)):
            resumed = None  # a learning-rate finder's own
        last = max(since, key=times.__getitem__, default=resumed)
        kept = "no checkpoint was written before" if last is None else f"the last finite checkpoint is {last}"
        step = step or self.trainer.global_step
        advice = "lower the learning rate, or clip gradients (the trainer's gradient_clip_val)"
        if not self._finite_batch():
            advice = "the batch has rows that are not finite: take them out"
        elif step == 1 and self.trainer.training:
            advice = "no weight has moved yet: look for rows far from all others, or mend the start of the weights"
        return f"training has diverged at step {step} (learning rate {rate:.3g}): {what}; {advice}; {kept}."

    def _finite_batch(self) -> bool:
        parts = self._batch if isinstance(self._batch, list | tuple) else [self._batch]
        return all(bool(part.isfinite().all()) for part in parts if isinstance(part, Tensor))

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Inside, an error that a diverged model has caused is a ``DivergenceError``; around losses and evaluations."""
        try:
            yield
        except Exception as error:
            if not self._judged or not self.trainer.global_step or isinstance(error, DivergenceError):
                raise
            if not has_diverged(error, self, self._start_size):
                raise
            step = self.trainer.global_step + self.trainer.training  # of the step that cannot be done
            raise DivergenceError(self._diverged(str(error).rstrip("."), step)) from error

    def on_validation_epoch_start(self) -> None:
        """Look at the losses so far, before anything is measured."""
        if self.trainer.state.fn == "fit":
            self._judge_losses()

    def on_validation_end(self) -> None:
        """Raise where a metric is not finite, whether or not a checkpoint would be written."""
        self._trained = []
        if self._judged and self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self._judge_metrics()

    def on_train_end(self) -> None:
        """Look at the last losses."""
        self._judge_losses()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Keep the batch, and what the forwards of this optimizer step may move, for a checkpoint before its end.

        Args:
            batch: of the data module.
            batch_idx: within the epoch.
        """
        self._batch = batch
        if self.automatic_optimization and batch_idx % self.trainer.accumulate_grad_batches == 0:
            progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
            self._before = progress.total.processed, forward_state(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stamp version and format; refuse to write diverged weights while training goes on."""
        super().on_save_checkpoint(checkpoint)
        trainer = self._trainer
        if trainer is not None:
            settle_loops(checkpoint, trainer, self._before)
        if not all(map(torch.equal, self._trained, self.parameters())):  # averaged weights stand in their place
            swap_averages(checkpoint)
        if self._judged and trainer is not None and trainer.state.fn == "fit" and trainer.state.status == "running":
            self._judge_metrics()
            if not math.isfinite(largest_weight(self)):
                raise DivergenceError(self._diverged("a weight is not finite"))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of something else; on resuming, a new schedule replaces the old one.

        Raises:
            ValueError: the checkpoint is of another program, format, network or parameterization; on resuming, also of
                another optimizer.
        """
        super().on_load_checkpoint(checkpoint)
        if self._trainer is not None and self.trainer.state.fn == "fit":
            with self._naming_the_file():
                check_optimizer(checkpoint, self.hparams)
            renew_schedule(checkpoint, self.hparams, self._optimizer)


def forget_averages(trainer: L.Trainer) -> None:
    """Make averaging callbacks forget the average of an earlier fit.

    With it ``WeightAveraging`` loads a checkpoint's trained weights in place of the averaged ones, and swaps the
    average in where another module is validated.

    Args:
        trainer: about to validate, test or predict.
    """
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, WeightAveraging | StochasticWeightAveraging):
            callback._average_model = None


def swap_averages(checkpoint: dict[str, Any]) -> None:
    """Exchange trained and averaged numbers where ``WeightAveraging`` has them the wrong way round.

    It does in a checkpoint that is written within a validation.

    Args:
        checkpoint: as Lightning is about to write it, changed in place.
    """
    averaged, trained = dict(checkpoint["state_dict"]), dict(checkpoint.get("current_model_state", {}))
    for name in [name for name, value in trained.items() if isinstance(value, Tensor)]:
        averaged[name], trained[name] = trained[name], averaged[name]
    if trained:
        checkpoint |= {"state_dict": averaged, "current_model_state": trained}
