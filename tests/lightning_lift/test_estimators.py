import logging
import pickle
import random

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lightning_lift import ConvexClassifier, ConvexRegressor

SHORT = {"widths": (8,), "max_steps": 80, "learning_rate": 0.1, "random_state": 0}
ENOUGH = SHORT | {"max_steps": 200}  # for the scores that the contract asks
ORDER = "rows of weight 2 and rows twice are summed in another order, in float32; the test below compares them"


@pytest.mark.slow
@parametrize_with_checks(
    [ConvexRegressor(**ENOUGH), ConvexClassifier(**ENOUGH)],
    expected_failed_checks=lambda _: {"check_sample_weight_equivalence_on_dense_data": ORDER},
)
def test_keeps_scikit_learns_contract(estimator, check):
    check(estimator)


def rows(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 2)) * [10.0, 0.1] + [500.0, -3.0]
    return x, 1e5 + 1e3 * (np.square((x[:, 0] - 500.0) / 10.0) + np.exp(10.0 * (x[:, 1] + 3.0)))


def test_fits_values_and_slopes_in_original_units_and_leaves_nothing_behind(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    x, y = rows()
    with caplog.at_level(logging.INFO):
        model = ConvexRegressor(max_steps=600, random_state=0).fit(x, y)
    assert list(tmp_path.iterdir()) == []
    assert "".join(capfd.readouterr()) == "" and not caplog.records
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all() and torch.equal(torch.get_rng_state(), states[2])
    fresh, truth = rows(seed=1)
    assert model.score(fresh, truth) > 0.99
    step = np.array([1e-3, 0.0])
    slopes = (model.predict(fresh + step) - model.predict(fresh - step)) / 2e-3
    np.testing.assert_allclose(model.predict_gradient(fresh)[:, 0], slopes, rtol=1e-5, atol=1e-4)


def test_a_pickled_model_is_convex_and_monotone_to_rounding():
    x, y = rows()
    frame = pd.DataFrame(x, columns=["energy", "price"])
    model = pickle.loads(pickle.dumps(ConvexRegressor(increasing=["price"], **SHORT).fit(frame, y)))
    generator = np.random.default_rng(2)
    a, b = (500.0 + 1000.0 * generator.standard_normal((100_000, 2)) for _ in range(2))
    share = generator.random((100_000, 1))
    points = [pd.DataFrame(p, columns=frame.columns) for p in (a, b, share * a + (1 - share) * b)]
    ends, middle = [model.predict(p) for p in points[:2]], model.predict(points[2])
    spread = np.ptp(np.concatenate(ends))
    assert (middle - share[:, 0] * ends[0] - (1 - share[:, 0]) * ends[1]).max() <= 1e-12 * spread
    assert model.predict_gradient(points[0])[:, 1].min() >= 0.0


@pytest.mark.parametrize("loss", ["squared", "poisson", "logistic"])
def test_a_row_of_weight_three_is_the_row_three_times_and_one_of_weight_zero_is_none(loss):
    x, y = rows(40)
    y = np.floor((y - 1e5) / 1e3) if loss == "poisson" else (y > np.median(y)) if loss == "logistic" else y
    settings = SHORT | {"validation_fraction": 0.25}
    model = ConvexClassifier(**settings) if loss == "logistic" else ConvexRegressor(loss=loss, **settings)
    weight = np.arange(40) % 4
    weighted, repeated = clone(model).fit(x, y, weight), clone(model).fit(x.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.predict_gradient(x), repeated.predict_gradient(x), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=1e-4)


def test_works_in_a_pipeline_under_a_grid_search():
    x, y = rows(60)
    steps = make_pipeline(StandardScaler(), ConvexRegressor(**SHORT))
    search = GridSearchCV(steps, {"convexregressor__concave": [True, False]}, cv=2).fit(x, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_[-1].concave == search.best_params_["convexregressor__concave"]


def test_probabilities_and_classes_follow_a_convex_logit():
    x = np.random.default_rng(0).normal(size=(400, 2))
    labels = np.where(np.square(x).sum(1) > 1.5, "out", "in")
    model = ConvexClassifier(max_steps=400, random_state=0).fit(x, labels)
    assert model.score(x, labels) > 0.95
    np.testing.assert_allclose(model.predict_proba(x)[:, 1], 1 / (1 + np.exp(-model.decision_function(x))))
    assert ((model.predict_proba(x)[:, 1] > 0.5) == (model.predict(x) == "out")).all()


def test_columns_that_it_is_not_convex_in_are_context():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(500, 2)), columns=["shape", "input"])
    truth = np.sin(2.0 * frame["shape"]) + np.square(frame["input"])
    model = ConvexRegressor(convex_in=["input"], widths=(32, 32), max_steps=600, random_state=0).fit(frame, truth)
    assert model.score(frame, truth) > 0.97
    gradient = model.predict_gradient(frame.sort_values("input").assign(shape=0.3))
    assert gradient.shape == (500, 1) and (np.diff(gradient[:, 0]) >= 0.0).all()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction=1.0: give a fraction in"),
        ({"max_steps": 0}, "max_steps must be an integer of at least 1, got 0"),
        ({"increasing": [7]}, "column 7 is none of the 2 columns of X: name one of"),
        ({"increasing": [0], "convex_in": [1]}, "'0' is no input that is known by name; the inputs are"),
        ({"convex_in": []}, r"convex_in=\[\]: name one column or more"),
        ({"convex_in": ["price"]}, "column 'price' is none of the 2 columns"),
        ({"loss": "logistic"}, "take ConvexClassifier"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        ConvexRegressor(**settings).fit(*rows(20))
