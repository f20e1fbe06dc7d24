"""Tasks judged by the log-density that they give held-out rows."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import inputs_of
from lightning_lift.metrics import NegativeLogLikelihood, NegativeLogLikelihoodStandardError
from lightning_lift.modules.original_units import TrainingUnits
from lightning_lift.modules.task import TaskModule


class LikelihoodTask(TrainingUnits, TaskModule):
    """Base of tasks with a normalised density, of rows or of rows at a context.

    Logged in validation: ``val/nll`` (nats, training units). In test: ``test/nll``, ``test/nll_standard_error`` and
    ``test/nll_original`` (original units).

    Subclass requirements: ``batch_loss`` (or ``loss``, on convex networks), ``evaluated_log_prob`` and ``frozen``.
    """

    prediction_columns = ("log_density",)
    selection_metric = "val/nll"
    headlines = ("test/total_variation", "test/nll")
    takes_mixed_columns = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.val_nll = NegativeLogLikelihood()
        self.test_nll = NegativeLogLikelihood()
        self.test_nll_standard_error = NegativeLogLikelihoodStandardError()

    @abstractmethod
    def evaluated_log_prob(self, batch: Any) -> Tensor:
        """Log-density of each row of a batch in training units under the weights of evaluation, shape (N,).

        Args:
            batch: as the task takes it, in training units.
        """

    def _like_weights(self, x: Tensor) -> Tensor:
        return x.to(next(self.parameters()))

    def begin_evaluation(self, stage: str) -> None:
        """Called once at the start of each evaluation, under its weights; by default does nothing.

        Args:
            stage: ``val``, ``test`` or ``predict``.
        """

    def end_evaluation(self) -> None:
        """Called at the end of each evaluation that is not interrupted; by default does nothing."""

    def on_validation_epoch_start(self) -> None:
        """Calibrate where there is a lift.

        Not at the end: by then weight averaging has put the trained weights back.
        """
        super().on_validation_epoch_start()
        self.val_nll.reset()  # an interrupted evaluation leaves its own rows behind
        with self.judged():
            self.begin_evaluation("val")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accumulate the negative log-likelihood of held-out rows.

        Raises:
            ValueError: during fit, a row that is not finite, or is outside of a bounded support.
        """
        rows = self.own_units(self.as_batch(batch))
        with self.judged():
            log_prob = self.evaluated_log_prob(rows)
        if self.trainer.state.fn == "fit":
            self._check_held_out(inputs_of(rows), log_prob)
        self.val_nll.update(log_prob)

    def _check_held_out(self, rows: Tensor, log_prob: Tensor) -> None:
        low, high = self.support.to(rows)
        outside = (log_prob == -torch.inf) & ((rows < low) | (rows > high)).any(1)
        wrong = int((outside | ~rows.isfinite().all(1)).sum())
        if wrong:
            raise ValueError(
                f"{wrong} of {len(rows)} rows of a validation batch are not finite, or outside of the data module's "
                f"support, {low.tolist()} to {high.tolist()} in training units: val/nll is not finite whatever the "
                "model; take these rows out, or widen the support."
            )

    def on_validation_epoch_end(self) -> None:
        """Log ``val/nll``."""
        self.log("val/nll", self.val_nll.compute(), prog_bar=True)
        self.val_nll.reset()
        self.end_evaluation()

    def on_test_epoch_start(self) -> None:
        """Start an evaluation."""
        self.reset_test()
        self.begin_evaluation("test")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Accumulate the negative log-likelihood of test rows."""
        self.score_test_rows(self.own_units(self.as_batch(batch)))

    def score_test_rows(self, rows: Any) -> Tensor:
        """Accumulate what is measured of the likelihood.

        Args:
            rows: a batch as the task takes it, in its training units.

        Returns:
            The log-densities, shape (N,).
        """
        log_prob = self.evaluated_log_prob(rows)
        self.test_nll.update(log_prob)
        self.test_nll_standard_error.update(log_prob)
        return log_prob

    def reset_test(self) -> None:
        """Forget the rows of a test, which may have been interrupted."""
        self.test_nll.reset()
        self.test_nll_standard_error.reset()

    def log_test(self) -> None:
        """Log the negative log-likelihood in training and original units, and its standard error."""
        nll = self.test_nll.compute()
        self.log("test/nll", nll)
        self.log("test/nll_standard_error", self.test_nll_standard_error.compute())
        self.log("test/nll_original", nll + self.log_scale)

    def on_test_epoch_end(self) -> None:
        """Log what was accumulated."""
        self.log_test()
        self.reset_test()
        self.end_evaluation()

    def on_predict_epoch_start(self) -> None:
        """Start an evaluation."""
        self.begin_evaluation("predict")

    def on_predict_epoch_end(self) -> None:
        """End it."""
        self.end_evaluation()

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Log-density of each row in original units, shape (N,)."""
        return self.evaluated_log_prob(self.own_units(self.as_batch(batch, predicting=True))) - self.log_scale
