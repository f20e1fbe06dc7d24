"""Which weights a fit ends with: on a fixed training split, which can be overfitted, those of the best validation."""

import copy
import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

_PATIENCE, _LEAST_STEPS = 3.0, 300  # without a better validation: multiples of the best's own step, and steps


class BestWeights(L.Callback):
    """Ends a fit on a fixed training split with the weights of its best validation, kept in memory.

    The best has the lowest of the task's ``selection_metric``. A task adds it by itself (``configure_callbacks``). It
    stops the fit when three times as many steps as the best weights took, and at least 300 more, have brought nothing
    better. It does nothing where training batches are drawn fresh, where nothing is validated, and where a callback of
    the user's own chooses the weights (``EarlyStopping``, a ``ModelCheckpoint`` with ``monitor``, weight averaging) or
    judges the run itself. A checkpoint written during the fit holds the weights of its own step, and the best ones as
    this callback's state; one written after it holds the best.
    """

    def __init__(self) -> None:
        self._active = False
        self._best, self._step = math.inf, 0
        self._state: dict[str, Any] | None = None
        self.restored_step: int | None = None  # of the weights that the last fit ended with, if they were not its last

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Forget an earlier fit; a checkpoint is loaded after this."""
        if stage == "fit":
            self._best, self._step, self._state, self.restored_step = math.inf, 0, None, None

    def state_dict(self) -> dict[str, Any]:
        """The best so far, where there is one."""
        return {"best": self._best, "step": self._step, "state": self._state} if self._state is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        self._best, self._step, self._state = state_dict["best"], state_dict["step"], state_dict["state"]

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find out whether there is anything to do."""
        fresh = getattr(getattr(trainer, "datamodule", None), "draws_fresh_rows", True)
        others: list[Any] = getattr(trainer, "callbacks", [])
        watched = any(
            isinstance(other, EarlyStopping | WeightAveraging | StochasticWeightAveraging)
            or (isinstance(other, ModelCheckpoint) and other.monitor)
            or getattr(other, "judges_divergence", False)
            for other in others
        )
        self._active = not (fresh or watched or getattr(trainer, "fast_dev_run", False))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the weights if they are the best so far; stop if they have not been for long."""
        found = trainer.callback_metrics.get(_metric(pl_module))
        if not self._active or trainer.state.fn != "fit" or trainer.sanity_checking or not isinstance(found, Tensor):
            return
        if float(found) < self._best:
            self._best, self._step = float(found), trainer.global_step
            self._state = copy.deepcopy(pl_module.state_dict())
        elif trainer.global_step - self._step > max(_LEAST_STEPS, _PATIENCE * self._step):
            trainer.should_stop = True

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the best weights in place, behind whatever was written of the last ones."""
        if self._active and self._state is not None and self._step < trainer.global_step:
            pl_module.load_state_dict(self._state)
            self.restored_step = self._step
            rank_zero_info(
                f"The module has the weights of step {self._step} ({_metric(pl_module)} {self._best:.5g}, the "
                f"lowest): the training split is fixed, and the later ones, to step {trainer.global_step}, were worse."
            )
        self._state = None


def _metric(module: L.LightningModule) -> str:
    return str(getattr(module, "selection_metric", "val/loss"))
