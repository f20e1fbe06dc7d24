"""Convex regression and classification as scikit-learn estimators."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import lightning as L
import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lightning_lift.datamodules import Batch, PartsDataModule
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.modules import ConvexRegression
from lightning_lift.modules.regression_function import LossName
from lightning_lift.networks import ICNN, PICNN

_BATCH_SIZE = 256
_VALIDATIONS = 40  # of a fit
_ROWS_AT_ONCE = 65_536

Array = npt.NDArray[np.float64]


class _ConvexEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """What both estimators share. The fitted function is ``model_``, a module in original units and float64."""

    def __init__(
        self,
        concave: bool = False,
        increasing: Sequence[str | int] = (),
        decreasing: Sequence[str | int] = (),
        convex_in: Sequence[str | int] | None = None,
        widths: Sequence[int] = (64, 64, 64),
        max_steps: int = 6000,
        learning_rate: float | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.concave = concave
        self.increasing = increasing
        self.decreasing = decreasing
        self.convex_in = convex_in
        self.widths = widths
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def _fit(self, X: Array, y: Array, weight: Array, loss: LossName, quantile: float = 0.5) -> None:
        check_counts(max_steps=self.max_steps)
        if not 0.0 <= self.validation_fraction < 1.0:
            raise ValueError(f"validation_fraction={self.validation_fraction}: give a fraction in [0, 1).")
        names = self._names()
        convex, context = self._columns(names)
        random = check_random_state(self.random_state)
        held_out = self._held_out(X, y, y if loss == "logistic" else np.zeros_like(y), random)
        data_seed, seed = (int(drawn) for drawn in random.randint(2**31 - 1, size=2))
        data = _Rows(X[:, convex], X[:, context], y, weight, held_out, loss, data_seed)
        with _quiet(not self.verbose), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = ConvexRegression(
                data.dim,
                loss=loss,
                quantile=quantile,
                concave=self.concave,
                increasing=[_name(column, names) for column in self.increasing],
                decreasing=[_name(column, names) for column in self.decreasing],
                columns=[names[column] for column in convex],
                context_shape=data.context_shape,
                network=partial(PICNN if context else ICNN, widths=list(self.widths)),
                learning_rate=self.learning_rate,
            )
            trainer = L.Trainer(
                accelerator="cpu",
                devices=1,
                max_steps=self.max_steps,
                val_check_interval=max(1, self.max_steps // _VALIDATIONS),
                check_val_every_n_epoch=None,
                limit_val_batches=1.0 if held_out.any() else 0,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=bool(self.verbose),
            )
            trainer.fit(module, data)
        self.model_: Any = module.freeze().double()

    def _names(self) -> list[str]:
        """Of the columns of X; their positions where they have none."""
        return [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]

    def _columns(self, names: list[str]) -> tuple[list[int], list[int]]:
        """Positions of the columns that the function is convex in, and of the others."""
        chosen = names if self.convex_in is None else [_name(column, names) for column in self.convex_in]
        convex = [names.index(name) for name in chosen]
        if not convex or len(set(convex)) < len(convex):
            raise ValueError(f"convex_in={self.convex_in!r}: name one column or more, each once, or None for all.")
        return convex, [column for column in range(len(names)) if column not in convex]

    def _held_out(self, X: Array, y: Array, strata: Array, random: np.random.RandomState) -> npt.NDArray[np.bool_]:
        """Which rows choose the weights, (N,): a share of each stratum, equal rows on the same side."""
        distinct, row_of = np.unique(np.column_stack([X, y, strata]), axis=0, return_inverse=True)
        chosen = []
        for stratum in np.unique(strata):
            rows = random.permutation(np.flatnonzero(distinct[:, -1] == stratum))
            chosen.append(rows[: int(self.validation_fraction * len(rows))])
        return np.isin(row_of.reshape(-1), np.concatenate(chosen))

    def _evaluate(self, what: Literal["mean", "link", "gradient"], X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        convex, context = self._columns(self._names())
        function = getattr(self.model_.function(), what)
        with torch.no_grad():
            found = [
                function(rows[:, convex], rows[:, context] if context else None)
                for rows in torch.tensor(X).split(_ROWS_AT_ONCE)
            ]
        result: Array = torch.cat(found).numpy()
        return result

    def predict_gradient(self, X: Any) -> Array:
        """Slopes of the prediction (a classifier's: the probability of the second class), as shadow prices.

        Args:
            X: shape (n_samples, n_features).

        Returns:
            Shape (n_samples, n_features), a column each of ``convex_in`` where it is given; prediction a unit of input.
        """
        return self._evaluate("gradient", X)


class ConvexRegressor(RegressorMixin, _ConvexEstimator):  # type: ignore[misc]
    """Regression with a function that is convex, or concave, in its inputs; see ``ConvexRegression``.

    Inputs are standardised, and the target where the loss is ``squared``, ``absolute`` or ``quantile``. The weights are
    those of the lowest loss on rows held out of the training ones.

    Args:
        loss: ``squared`` (predicts the mean), ``absolute`` (the median), ``quantile``, or ``poisson`` (the rate of
            counts, whose logarithm is convex).
        quantile: q in (0, 1), for the quantile loss.
        concave: make the function concave.
        increasing: columns of X that the prediction never falls in, by name or position.
        decreasing: columns that it never rises in.
        convex_in: columns that the function is convex in, by name or position; on the others it may depend in any way.
            None for all.
        widths: units of each hidden layer.
        max_steps: optimizer steps, of at most 256 rows each.
        learning_rate: of Adam; None for the default of every task.
        validation_fraction: share of the rows that is held out; 0 for the weights of the last step.
        random_state: decides the split, the start and the order of the rows.
        verbose: show progress and what Lightning has to say.
    """

    def __init__(
        self,
        loss: Literal["squared", "absolute", "quantile", "poisson"] = "squared",
        quantile: float = 0.5,
        concave: bool = False,
        increasing: Sequence[str | int] = (),
        decreasing: Sequence[str | int] = (),
        convex_in: Sequence[str | int] | None = None,
        widths: Sequence[int] = (64, 64, 64),
        max_steps: int = 6000,
        learning_rate: float | None = None,
        validation_fraction: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        super().__init__(
            concave,
            increasing,
            decreasing,
            convex_in,
            widths,
            max_steps,
            learning_rate,
            validation_fraction,
            random_state,
            verbose,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ConvexRegressor":
        """Fit the function.

        Args:
            X: shape (n_samples, n_features).
            y: shape (n_samples,).
            sample_weight: of each row in the loss, shape (n_samples,); None for 1.

        Raises:
            ValueError: rows that are not finite, an unknown column, or an argument out of range.
        """
        if str(self.loss) == "logistic":
            raise ValueError("loss='logistic' is a classifier's: take ConvexClassifier.")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        X, y, weight = _weighted(X, y, sample_weight)
        self._fit(X, y.astype(np.float64), weight, self.loss, self.quantile)
        return self

    def predict(self, X: Any) -> Array:
        """The mean (the median, the quantile, the rate) of each row, shape (n_samples,)."""
        return self._evaluate("mean", X)


class ConvexClassifier(ClassifierMixin, _ConvexEstimator):  # type: ignore[misc]
    """Two classes, with a logit of the second that is convex, or concave, in its inputs; see ``ConvexRegression``.

    The first class's region, ``decision_function(X) <= 0``, is convex (the second's is, with ``concave``).

    Args:
        concave: make the logit concave.
        increasing: columns of X that the probability of the second class never falls in, by name or position.
        decreasing: columns that it never rises in.
        convex_in: as for ``ConvexRegressor``.
        widths: as for ``ConvexRegressor``.
        max_steps: as for ``ConvexRegressor``.
        learning_rate: as for ``ConvexRegressor``.
        validation_fraction: as for ``ConvexRegressor``; of each class.
        random_state: as for ``ConvexRegressor``.
        verbose: as for ``ConvexRegressor``.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "ConvexClassifier":
        """Fit the logit of the second class, in the order of ``classes_``.

        Args:
            X: shape (n_samples, n_features).
            y: two different labels, shape (n_samples,).
            sample_weight: of each row in the loss, shape (n_samples,); None for 1.

        Raises:
            ValueError: labels that are not two, rows that are not finite, an unknown column, or an argument out of
                range.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if (kind := type_of_target(y, input_name="y")) != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        X, y, weight = _weighted(X, y, sample_weight)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"all rows that count are of one class, {self.classes_[0]!r}: give rows of two classes.")
        self._fit(X, labels.astype(np.float64), weight, "logistic")
        return self

    def decision_function(self, X: Any) -> Array:
        """The logit of the second class, convex (concave) in X, shape (n_samples,)."""
        return self._evaluate("link", X)

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, shape (n_samples, 2)."""
        second = self._evaluate("mean", X)
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any) -> Any:
        """The more probable class of each row, shape (n_samples,)."""
        likely = self.decision_function(X) > 0.0  # refuses a classifier that is not fitted
        return self.classes_[likely.astype(int)]


class _Rows(PartsDataModule):
    """Rows in memory, in their units, with rows held out that are given."""

    def __init__(
        self,
        x: Array,
        context: Array,
        target: Array,
        weight: Array,
        held_out: npt.NDArray[np.bool_],
        loss: LossName,
        data_seed: int,
    ) -> None:
        super().__init__(
            dim=x.shape[1],
            name="X",
            batch_size=min(_BATCH_SIZE, int((~held_out).sum())),
            context_shape=context.shape[1:] if context.size else None,
            target_dim=1,
            weighted=True,
            data_seed=data_seed,
        )
        weight = weight / weight[~held_out].mean()
        parts = {"x": x, "context": context if context.size else None, "target": target, "weight": weight}
        self._parts = {name: torch.tensor(part) for name, part in parts.items() if part is not None}
        self._held_out = torch.tensor(held_out)
        self._scaled = ("x", "context") if loss in ("poisson", "logistic") else ("x", "context", "target")

    def load(self) -> dict[str, Batch]:
        """The rows to train on and those held out, in training units."""
        rows = {"train": ~self._held_out, "val": self._held_out if self._held_out.any() else ~self._held_out}
        splits = {
            key: Batch(**{name: part[chosen] for name, part in self._parts.items()}) for key, chosen in rows.items()
        }
        return self.standardize(splits | {"test": splits["val"]}, self._scaled)


def _weighted(X: Array, y: Any, sample_weight: Any) -> tuple[Array, Any, Array]:
    """Rows and their weights, without rows of weight 0."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    counts = weight > 0
    return X[counts], y[counts], weight[counts]


def _name(column: str | int, names: list[str]) -> str:
    name = column if isinstance(column, str) else names[column] if 0 <= column < len(names) else None
    if name not in names:
        raise ValueError(f"column {column!r} is none of the {len(names)} columns of X: name one of {names}.")
    return str(name)


@contextmanager
def _quiet(silenced: bool) -> Iterator[None]:
    """Without Lightning's lines about the machine, the loaders and the end."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")] if silenced else []
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        if silenced:
            warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
