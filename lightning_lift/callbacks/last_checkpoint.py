"""``last.ckpt``: the state after the last step, whatever a monitored metric says."""

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging

from lightning_lift.modules.divergence import DivergenceError


class LastCheckpoint(ModelCheckpoint):
    """Keep ``last.ckpt``, written after each validation and at the end of ``fit``, for resuming.

    ``ModelCheckpoint(monitor=..., save_last=True)`` writes ``last`` only when the monitored metric has improved. An
    interruption or an error writes ``exception.ckpt`` instead, but a divergence does not. The command line adds this
    callback to every run; in Python list it behind the checkpoints of a monitored metric. ``last`` is its own: it sets
    their ``save_last`` to None.

    Args:
        dirpath: folder of the files; None for ``checkpoints`` in the run's folder.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__(dirpath=dirpath, save_top_k=0, save_last=True)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave ``last.ckpt`` to this callback alone."""
        super().setup(trainer, pl_module, stage)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and not isinstance(callback, LastCheckpoint):
                callback.save_last = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write after a validation that closes no epoch; resuming behind one that does would miss its metrics."""
        if not self._should_save_on_train_epoch_end(trainer):
            self._write(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write after the epoch's validation, and where training ends: averaging replaces the trained weights then."""
        done = ((trainer.global_step, trainer.max_steps), (trainer.current_epoch + 1, trainer.max_epochs))
        ends = trainer.should_stop or any(limit not in (None, -1) and count >= limit for count, limit in done)
        if ends or self._should_save_on_train_epoch_end(trainer) or not trainer.enable_validation:
            self._write(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write where nothing has yet, or where averaged weights have only now replaced the trained ones."""
        if any(isinstance(c, StochasticWeightAveraging) for c in trainer.callbacks):  # type: ignore[attr-defined]
            self._last_global_step_saved = -1
        self._write(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Write ``exception.ckpt``, unless the weights have diverged or there are no new ones."""
        if not isinstance(exception, DivergenceError) and not self._should_skip_saving_checkpoint(trainer):
            self._save_checkpoint(trainer, self.format_checkpoint_name({}, "exception"))

    def _write(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
