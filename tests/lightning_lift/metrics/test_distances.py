import math

import pytest
import torch
from torch.distributions import Normal

from lightning_lift.metrics import GridDistance, HellingerDistance, KLDivergence, TotalVariation


def pair() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.linspace(-10.0, 11.0, 8001)
    weights = torch.full_like(x, 21.0 / 8000)
    return Normal(0.0, 1.0).log_prob(x), Normal(1.0, 1.0).log_prob(x), weights


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (TotalVariation, math.erf(0.5 / math.sqrt(2.0))),
        (KLDivergence, 0.5),
        (HellingerDistance, math.sqrt(1.0 - math.exp(-1.0 / 8.0))),
    ],
)
def test_float32_value_and_mean_over_updates(metric: type[GridDistance], expected: float) -> None:
    p, q, w = pair()
    distance = metric()
    distance.update(p, q, w)
    assert distance.compute().item() == pytest.approx(expected, abs=2e-5)
    distance.update(p, p, w)
    assert distance.compute().item() == pytest.approx(0.5 * expected, abs=2e-5)


def test_ranks_with_the_same_grid_give_the_same_number() -> None:
    p, q, w = pair()
    one, other = TotalVariation(), TotalVariation()
    one.update(p, q, w)
    other.update(p, q, w)
    alone = one.compute()
    one.merge_state(other)
    one._computed = None
    torch.testing.assert_close(one.compute(), alone)


def test_float64_inputs_give_a_float32_metric() -> None:
    p, q, w = (t.double() for t in pair())
    metric = KLDivergence()
    metric.update(p, q, w)
    assert metric.compute().dtype == torch.float32
