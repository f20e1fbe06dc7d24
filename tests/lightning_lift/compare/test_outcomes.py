"""What is a divergence and what is a failure."""

import lightning as L
import pytest
import torch

from lightning_lift.compare.outcomes import DivergenceError, check_tested, ending, largest_weight


class Two(L.LightningModule):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -size]))


@pytest.mark.parametrize(
    ("error", "size", "outcome", "text"),
    [
        (DivergenceError("val/nll is nan at step 3"), 2.0, "diverged", "val/nll is nan at step 3"),
        (ZeroDivisionError("no"), 2.0, "diverged", "ZeroDivisionError: no"),
        (torch.linalg.LinAlgError("no"), 2.0, "diverged", "_LinAlgError: no"),
        (OSError("the disk is gone"), 2.0, "failed", "OSError: the disk is gone"),
        (RuntimeError("no"), 1999.0, "failed", "RuntimeError: no"),
        (RuntimeError("no"), 2001.0, "diverged", "RuntimeError: no"),
        (RuntimeError("no"), float("nan"), "diverged", "RuntimeError: no"),
    ],
)
def test_an_error_is_an_outcome(error: Exception, size: float, outcome: str, text: str) -> None:
    assert largest_weight(Two(2.0)) == 2.0
    assert ending(error, Two(size), 2.0) == (outcome, text)


def test_before_training_nothing_has_diverged() -> None:
    assert ending(ZeroDivisionError("no"), Two(1.0), None)[0] == "failed"
    assert ending(ValueError("no"), None, None) == ("failed", "ValueError: no")


def test_a_state_without_a_finite_test_metric_has_diverged() -> None:
    check_tested({"best": {"val/nll": 1.0, "test/nll": 1.0}, "last": {}})
    with pytest.raises(DivergenceError, match="test/nll of the last state is inf"):
        check_tested({"best": {"val/nll": 1.0, "test/nll": 1.0}, "last": {"val/nll": 1.0, "test/nll": float("inf")}})
    with pytest.raises(DivergenceError, match="test/loss of the best state is nan"):
        check_tested({"best": {"val/loss": 1.0, "test/loss": float("nan")}})
