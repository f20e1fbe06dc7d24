"""Convex regression: a mean, a median, a quantile, a rate or a probability that is convex on its link scale."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric, MeanSquaredError, Metric, R2Score, TweedieDevianceScore
from torchmetrics.classification import BinaryAccuracy

from lightning_lift.datamodules.batches import Batch, context_of, parts_of
from lightning_lift.datamodules.units import Units
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.factories import constructor_of, unset_options
from lightning_lift.modules.regression_function import (
    FrozenRegression,
    LossName,
    RegressionFunction,
    mean_of,
    row_losses,
)
from lightning_lift.modules.units import warn_of_raw_units
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential

_WISHED = {
    "intercept": True,
    "strong_convexity_start": 0.05,
}  # of a network; one of a user's own may have no such options
_PREDICTED = {"squared": "mean", "absolute": "median", "quantile": "quantile", "poisson": "mean"}
_PREDICTED |= {"logistic": "probability"}
_HEADLINES = {"squared": ("mse", "r2"), "absolute": ("mae",), "quantile": ("pinball",), "poisson": ("deviance",)}
_HEADLINES |= {"logistic": ("log_loss", "accuracy")}


class ConvexRegression(ConvexModule):
    """Regression with a function that is convex, or concave, in its inputs, and monotone in those that are named.

    A batch is (x, target), with row weights of mean 1 behind them where there are any; (x, context, target) for a
    network that takes a context, on which the function may depend in any way. Convexity and monotonicity hold for the
    link: the prediction itself for ``squared``, ``absolute`` and ``quantile``, its logarithm for ``poisson``, its logit
    for ``logistic``. Convexity of the rate exp(link) follows, that of the probability does not.

    Logged: ``train/loss``, ``val/loss`` and ``test/loss`` in training units; in original ones ``test/mse``,
    ``test/mae`` and ``test/r2``, for ``quantile`` also ``test/pinball`` and ``test/share_below`` (of targets below the
    prediction), for ``poisson`` ``test/deviance`` in the place of ``r2``; for ``logistic`` ``test/log_loss`` (nats) and
    ``test/accuracy``. A prediction is the mean (the median, the quantile, the probability) and its link.

    Args:
        dim: dimension D of the inputs that the function is convex in; linked from the data module on the command line.
        loss: ``squared`` (predicts the mean), ``absolute`` (the median), ``quantile``, ``poisson`` (a rate, for counts)
            or ``logistic`` (a probability, for a target of 0 or 1).
        quantile: q in (0, 1), for the quantile loss.
        concave: make the link concave in its inputs.
        increasing: inputs that the prediction never falls in, by name where ``columns`` are known, or by position.
        decreasing: inputs that it never rises in.
        columns: names of the inputs, in the data's order; linked from the data module on the command line.
        context_shape: shape of one row's context, for a network that takes one; linked likewise.
        predict_gradient: let a prediction have its slope in each input beside it, in original units (shadow prices).
        network: factory of the convex network, called with ``dim``, ``intercept=True`` and a small
            ``strong_convexity_start`` (where it has these), and with ``increasing``, ``decreasing`` (positions) and
            ``context_shape`` where these are given.
        parameterization: as for ``ConvexModule``.
        optimizer: as for ``ConvexModule``.
        lr_scheduler: as for ``ConvexModule``.
        learning_rate: as for ``ConvexModule``.

    Raises:
        ValueError: an unknown loss or input, a quantile outside (0, 1), an input named twice, or a network that has no
            such option.
    """

    batch_fields: tuple[str, ...] = ("x", "target", "weight")

    def __init__(
        self,
        dim: int,
        loss: LossName = "squared",
        quantile: float = 0.5,
        concave: bool = False,
        increasing: Sequence[str | int] = (),
        decreasing: Sequence[str | int] = (),
        columns: Sequence[str] | None = None,
        context_shape: Sequence[int] | None = None,
        predict_gradient: bool = False,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
    ) -> None:
        if loss not in _PREDICTED:
            raise ValueError(f"loss={loss!r} is not known; choose {', '.join(map(repr, _PREDICTED))}.")
        if not 0.0 < quantile < 1.0:
            raise ValueError(f"quantile={quantile}: give a number between 0 and 1.")
        self.loss_name, self.quantile, self.sign = loss, quantile, -1.0 if concave else 1.0
        rising, falling = (_positions(named, columns, dim) for named in (increasing, decreasing))
        self._options: dict[str, Any] = {}
        if rising or falling:  # of E = sign * link
            names = ("decreasing", "increasing") if concave else ("increasing", "decreasing")
            self._options |= dict(zip(names, (rising, falling), strict=True))
        if context_shape is not None:
            self._options["context_shape"] = tuple(context_shape)
            self.batch_fields = ("x", "context", "target", "weight")
        super().__init__(dim, network, parameterization, optimizer, lr_scheduler, learning_rate)
        self.columns = None if columns is None else list(columns)
        self._stated = self.columns
        self.predict_gradient = predict_gradient
        self.test_metrics = nn.ModuleDict(_metrics(loss))
        self.headlines = tuple(f"test/{name}" for name in _HEADLINES[loss])

    def build(self, network: Callable[[int], ConvexNetwork]) -> nn.Module:
        """Make the network, with a free constant and monotone in the inputs that are named.

        Args:
            network: the factory given to the constructor.
        """
        made_of = constructor_of(network)
        if lacking := sorted(set(self._options) - set(inspect.signature(made_of).parameters)):
            raise ValueError(
                f"the network {made_of.__name__} has no {' and no '.join(lacking)}: take an ICNN for monotone inputs, "
                "a PICNN for a context."
            )
        made = network(self.dim, **unset_options(network, _WISHED), **self._options)
        if (made.context_shape is None) != ("context_shape" not in self._options):
            raise ValueError(f"{type(made).__name__} takes a context: state the rows' context_shape.")
        return made

    def adopt_units(self, data: Any) -> None:
        """Take over the data's units and columns.

        Args:
            data: a data module.

        Raises:
            ValueError: its columns are not those that the monotone inputs were named among.
        """
        theirs = getattr(data, "columns", None)
        if self._stated is not None and theirs is not None and list(theirs) != self._stated:
            raise ValueError(
                f"columns={self._stated}, and {type(data).__name__} has {list(theirs)}: state the data's, in its order."
            )
        super().adopt_units(data)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Warn of raw units in the first batch, where no data module states any.

        Args:
            batch: of the loader.
            batch_idx: within the epoch.
        """
        super().on_train_batch_start(batch, batch_idx)
        if self.global_step == 0 and not hasattr(self._attached_datamodule(), "location"):
            scaled = ("x", "target") if self.loss_name not in ("poisson", "logistic") else ("x",)
            warn_of_raw_units({name: part for name, part in parts_of(self.as_batch(batch)).items() if name in scaled})

    # -- the loss -------------------------------------------------------------------------------------------------

    def loss(self, potential: Potential, batch: Batch) -> Tensor:
        """The mean loss of the batch's rows, each times its weight.

        Args:
            potential: E; the link is E, or -E where it is concave.
            batch: inputs, target and weights in training units.
        """
        link = self.sign * potential.value(batch.x)
        rows = row_losses(self.loss_name, link, self._target(batch).to(link), self.quantile)
        return rows.mean() if batch.weight is None else (rows * batch.weight.to(rows)).mean()

    def _target(self, batch: Batch) -> Tensor:
        """The target (N,) in training units; counts and labels in original ones, whatever the data module did."""
        target = batch.target
        assert target is not None
        if target.shape not in ((len(batch.x),), (len(batch.x), 1)):
            raise ValueError(f"target of the batch has shape {tuple(target.shape)}: one number a row is regressed.")
        target = target.reshape(-1)
        if self.loss_name not in ("poisson", "logistic"):
            return target
        if "target" in self.field_units:
            target = self.field_units["target"].to(target.double()).invert(target)
            target = target.round() if self.loss_name == "logistic" else target.clamp(min=0.0)
        if (target < 0).any() or (self.loss_name == "logistic" and (target > 1).any()):
            wants = "a target of 0 or 1" if self.loss_name == "logistic" else "counts, 0 or more"
            raise ValueError(
                f"loss={self.loss_name!r} needs {wants}, and the batch has targets from {float(target.min()):.4g} to "
                f"{float(target.max()):.4g}."
            )
        return target

    # -- predictions ----------------------------------------------------------------------------------------------

    @property
    def prediction_columns(self) -> tuple[str, ...]:  # type: ignore[override]  # a class attribute in the base
        """The prediction, its link and, if asked for, its slope in each input."""
        names = self.columns or [f"x{i + 1}" for i in range(self.dim)]
        slopes = [f"slope_{name}" for name in names] if self.predict_gradient else []
        return (_PREDICTED[self.loss_name], "link", *slopes)

    def function(self, potential: Potential | None = None) -> RegressionFunction:
        """The regression in original units: ``mean(x)``, ``link(x)`` and ``gradient(x)``.

        Args:
            potential: E; None for the one under the weights of the present mode.
        """
        one = Units(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        potential = self.potential() if potential is None else potential
        fields = self.field_units
        units = self.units, fields.get("target", one), fields.get("context")
        return RegressionFunction(potential, self.sign, self.loss_name, *units)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Prediction, link and slopes of each row in original units, a column each of ``prediction_columns``."""
        batch = self.own_units(self.as_batch(batch, predicting=True))
        x, context, function = self.units.invert(batch.x), context_of(batch), self.function()
        if context is not None and function.context_units is not None:
            context = function.context_units.to(context.double()).invert(context)
        link = function.link(x, context)
        columns = torch.stack([mean_of(self.loss_name, link), link], dim=1)
        return torch.cat([columns, function.gradient(x, context)], dim=1) if self.predict_gradient else columns

    def frozen(self) -> "FrozenRegression":
        """What ``freeze`` returns: the prediction in original units, as a plain module."""
        return FrozenRegression(self.function())

    # -- test -----------------------------------------------------------------------------------------------------

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """The loss, and what is measured in original units."""
        super().test_step(batch, batch_idx)
        batch = self.own_units(self.as_batch(batch))
        link = self.sign * self.potential(batch).value(batch.x)
        target = self._target(batch).to(link)
        rows = row_losses(self.loss_name, link, target, self.quantile)
        if self.loss_name not in ("poisson", "logistic") and "target" in self.field_units:
            units = self.field_units["target"].to(link)
            link, target = units.invert(link), units.invert(target)
            rows = rows * units.scale
        mean = mean_of(self.loss_name, link)
        for name, metric in self.test_metrics.items():
            assert isinstance(metric, Metric)
            if isinstance(metric, MeanMetric):
                metric.update((target < mean).float() if name == "share_below" else rows)
            else:
                metric.update(mean, target.int() if self.loss_name == "logistic" else target)
            self.log(f"test/{name}", metric, on_epoch=True, batch_size=len(mean))


def _positions(named: Sequence[str | int], columns: Sequence[str] | None, dim: int) -> list[int]:
    if isinstance(named, str):
        raise ValueError(f"{named!r}: give a list of inputs, [{named}].")
    positions = []
    for name in named:
        if isinstance(name, str) and name not in (columns or ()):
            known = f"the inputs are {list(columns)}" if columns else "set columns, or give positions"
            raise ValueError(f"{name!r} is no input that is known by name; {known}.")
        positions.append(list(columns).index(name) if isinstance(name, str) and columns else name)
    return positions  # type: ignore[return-value]


def _metrics(loss: LossName) -> dict[str, Metric]:
    if loss == "logistic":
        return {"log_loss": MeanMetric(), "accuracy": BinaryAccuracy()}
    metrics: dict[str, Metric] = {"mse": MeanSquaredError(), "mae": MeanAbsoluteError()}
    if loss == "poisson":
        return metrics | {"deviance": TweedieDevianceScore(power=1.0)}
    quantile = {"pinball": MeanMetric(), "share_below": MeanMetric()} if loss == "quantile" else {}
    return metrics | {"r2": R2Score()} | quantile
