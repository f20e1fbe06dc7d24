"""Tasks that model a density: negative log-likelihood, distance to the truth, prediction, freezing."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lightning_lift.metrics import NegativeLogLikelihood, NegativeLogLikelihoodStandardError, best_gaussian
from lightning_lift.metrics.functional import hellinger_distance, kl_divergence, total_variation
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.frozen import FrozenDistribution
from lightning_lift.modules.likelihood import LikelihoodTask
from lightning_lift.modules.original_units import OriginalUnits
from lightning_lift.partition.grids import grid_points, trapezoid_log_weights

_WIDEST_GAUSSIAN = 1000  # columns: a covariance of more takes longer than the test
# Along each dimension of the window on which truth and model are compared. A validation in the plane makes do with
# fewer, or it would take as long as hundreds of training steps of a flow.
_TRUTH_POINTS = {"val": {1: 8000, 2: 160}, "test": {1: 8000, 2: 400}}


class DensityTask(OriginalUnits, LikelihoodTask):
    """Base of tasks with a normalised density, on convex networks or not.

    ``log_prob``, ``sample``, ``predict`` and ``freeze`` are in original units; losses, ``log_prob_scaled`` and
    ``sample_scaled`` are in training units, as the data module's rows and its own ``log_prob`` are.

    Logged in validation: ``val/nll`` (nats, training units), ``val/total_variation`` where the data module knows the
    true density in one or two dimensions. In test: ``test/nll``, ``test/nll_standard_error``, ``test/nll_original``
    (original units), ``test/excess_nll`` where the entropy is known, ``test/total_variation``, ``test/kl_divergence``
    (from the truth to the model) and ``test/hellinger_distance``. With a fixed training split of more rows than
    columns also ``test/gaussian_nll``, of the better of two Gaussians (``metrics.best_gaussian``) fitted to it, and
    ``test/nll_minus_gaussian``, the mean difference over the same rows, with
    ``test/nll_minus_gaussian_standard_error``; nats, training units.

    Subclass requirements: ``batch_loss`` (or ``loss``, behind ``DensityModule``), ``log_prob_scaled``,
    ``sample_scaled`` and ``frozen``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.test_gaussian_nll = NegativeLogLikelihood()
        self.test_difference_standard_error = NegativeLogLikelihoodStandardError()
        self._gaussian: MultivariateNormal | None = None

    @abstractmethod
    def frozen(self) -> FrozenDistribution:
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""

    def evaluated_log_prob(self, batch: Tensor) -> Tensor:
        """``log_prob_scaled`` of the rows.

        Args:
            batch: rows in training units, shape (N, D).
        """
        return self.log_prob_scaled(batch)

    def on_validation_epoch_start(self) -> None:
        """Start an evaluation, and log ``val/total_variation`` where the truth is known."""
        super().on_validation_epoch_start()
        with self.judged():
            truth = self._on_truth_grid("val")
        if truth is not None:
            self.log("val/total_variation", total_variation(*truth), prog_bar=True)

    def on_test_epoch_start(self) -> None:
        """Log the distances to the truth where it is known, and fit a Gaussian to the rows of training."""
        super().on_test_epoch_start()
        data = self._attached_datamodule()
        if callable(getattr(data, "split", None)) and not getattr(data, "draws_fresh_rows", True):
            train, val = (self.own_units(data.split(key)) for key in ("train", "val"))
            if train.shape[1] < min(len(train), _WIDEST_GAUSSIAN):
                self._gaussian = best_gaussian(train, val)
        truth = self._on_truth_grid("test")
        if truth is not None:
            self.log("test/total_variation", total_variation(*truth))
            self.log("test/kl_divergence", kl_divergence(*truth))
            self.log("test/hellinger_distance", hellinger_distance(*truth))

    def score_test_rows(self, rows: Tensor) -> Tensor:
        """Accumulate the negative log-likelihood of test rows, and its difference from the Gaussian's.

        Args:
            rows: shape (N, D).
        """
        log_prob = super().score_test_rows(rows)
        if self._gaussian is not None:
            gaussian = self._gaussian.log_prob(rows.detach().cpu().double()).to(log_prob)
            self.test_gaussian_nll.update(gaussian)
            self.test_difference_standard_error.update(log_prob - gaussian)
        return log_prob

    def reset_test(self) -> None:
        """Forget the rows of a test, and the Gaussian."""
        super().reset_test()
        self._gaussian = None
        self.test_gaussian_nll.reset()
        self.test_difference_standard_error.reset()

    def log_test(self) -> None:
        """Log the negative log-likelihood, its excess over the entropy and its difference from the Gaussian's."""
        super().log_test()
        nll = self.test_nll.compute()
        data = self._attached_datamodule()
        if getattr(data, "entropy", None) is not None:
            self.log(
                "test/excess_nll", nll + self.log_scale - (data.entropy + getattr(data, "log_scale", self.log_scale))
            )
        if self._gaussian is not None:
            gaussian_nll = self.test_gaussian_nll.compute()
            self.log("test/gaussian_nll", gaussian_nll)
            self.log("test/nll_minus_gaussian", nll - gaussian_nll)
            self.log("test/nll_minus_gaussian_standard_error", self.test_difference_standard_error.compute())

    @torch.no_grad()
    def _on_truth_grid(self, stage: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """True and model log-density with quadrature weights on the window, or None where no truth is known."""
        data = self._attached_datamodule()
        if not getattr(data, "has_log_prob", False) or self.dim not in _TRUTH_POINTS[stage]:
            return None
        size = _TRUTH_POINTS[stage][self.dim]
        window = data.window.to(next(self.parameters()))  # the weights' dtype: float64 under 64-true
        points = grid_points(window, size)
        model = torch.cat([self.log_prob_scaled(self.own_units(chunk)) for chunk in points.split(16384)])
        if self._other_units() is not None:
            model = model + (
                data.log_scale - self.log_scale
            )  # the window, and so the comparison, is in the data's units
        return data.log_prob(points.cpu()).to(model), model, trapezoid_log_weights(window, size).exp()


class DensityModule(DensityTask, ConvexModule):
    """Base of tasks with a normalised density on convex networks.

    It logs what ``DensityTask`` does. Subclass requirements: ``loss`` (or ``batch_loss``), ``log_prob_scaled``,
    ``sample_scaled`` and ``frozen``.
    """
