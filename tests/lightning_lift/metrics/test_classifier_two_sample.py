import warnings

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from lightning_lift.metrics import classifier_two_sample


def normal(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("classifier", ["mlp", "forest"])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_accuracy_between_normals_is_that_of_the_best_rule(classifier: str, shift: float) -> None:
    """N(0, s^2) and N(shift s, s^2) far from the origin: the best rule is right with probability Phi(shift / 2)."""
    reference = 1e3 + 1e-2 * normal(600, 1, 0).double()
    samples = 1e3 + 1e-2 * (normal(600, 1, 1).double() + shift)
    best = norm.cdf(shift / 2.0)
    found = classifier_two_sample(samples, reference, classifier)  # type: ignore[arg-type]
    # A forest of whole trees learns the noise of one column: it may be worse than the rule.
    lower = 0.04 if classifier == "mlp" else 0.12
    assert best - lower < found < best + 0.04


def test_the_forest_sees_what_the_mlp_does_not() -> None:
    """Two rings of nearly one radius."""
    angles = torch.pi * normal(600, 1, 2)
    circle = torch.cat([angles.cos(), angles.sin()], dim=1)
    reference = circle * (1.0 + 0.002 * normal(600, 1, 3))
    samples = circle.flip(0).flip(1) * (1.01 + 0.002 * normal(600, 1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert classifier_two_sample(samples, reference, "forest") > 0.6


def test_what_has_no_accuracy_of_chance_is_refused() -> None:
    rows = normal(20, 2, 0)
    with pytest.raises(ValueError, match="as many draws"):
        classifier_two_sample(rows[:19], rows)
    with pytest.raises(ValueError, match="not finite"):
        classifier_two_sample(rows.index_fill(0, torch.tensor([1]), torch.nan), rows)
    with pytest.raises(ValueError, match="column 1 of the reference is constant"):
        classifier_two_sample(rows, rows * torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="classifier='tree'"):
        classifier_two_sample(rows, rows, "tree")  # type: ignore[arg-type]
