import collections

import pytest
import torch

from lightning_lift.datamodules import Batch
from lightning_lift.datamodules.batches import as_batch, num_rows

X, Y, U = torch.zeros(5, 2), torch.zeros(5), torch.zeros(5, 3, 4, 4)
PAIRS = ("x", "target", "weight")


@pytest.mark.parametrize(
    "given",
    [
        [X, Y],
        (X, Y),
        {"target": Y, "x": X},
        Batch(X, target=Y),
        collections.namedtuple("Row", ["target", "x"])(Y, X),
    ],
    ids=["list", "tuple", "dict", "batch", "named tuple of another order"],
)
def test_forms_of_a_pair_become_one(given):
    batch = as_batch(given, PAIRS)
    assert batch.x is X
    assert batch.target is Y
    assert batch.context is batch.weight is None
    assert as_batch(batch, PAIRS) is batch
    assert num_rows(batch) == 5


def test_rows_alone_stay_a_tensor():
    assert as_batch(X, ("x",)) is X
    assert as_batch([X], ("x",)) is X
    assert as_batch(Batch(X), ("x",)) is X


def test_a_loaders_order_is_the_tasks():
    batch = as_batch([X, U, Y], ("x", "context", "target"))
    assert batch.context is U
    assert batch.target is Y


def test_the_target_may_be_left_out_where_a_task_predicts():
    assert as_batch([X], PAIRS, predicting=True).target is None
    assert as_batch(X, PAIRS, predicting=True).x is X


@pytest.mark.parametrize(
    ("given", "fields", "match"),
    [
        ([X, Y], ("x",), "batch of 2 parts.*takes \\(x\\).*batch_fields"),
        (X, PAIRS, "rows alone, \\(5, 2\\).*target is missing"),
        (Batch(X, context=U, target=Y), PAIRS, "context is none of these"),
        ({"x": X, "y": Y}, PAIRS, "\\(x, y\\).*target is missing, and y is none of these"),
        ([X, Y[:3]], PAIRS, "target of the batch has shape \\(3,\\)"),
        ([X, 3.0], PAIRS, "target of the batch is a float"),
        ("rows", ("x",), "type str"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(given, fields, match):
    with pytest.raises(ValueError, match=match):
        as_batch(given, fields)
