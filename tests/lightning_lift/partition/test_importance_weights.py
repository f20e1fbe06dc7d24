import math

import pytest
import torch

from lightning_lift.partition.importance_weights import pareto_shape

M = 8192


def pareto_weights(shape: float, count: int, seed: int) -> torch.Tensor:
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (uniform**-shape - 1.0) / shape


@pytest.mark.parametrize("shape", [0.2, 0.5, 1.0])
def test_shape_of_pareto_weights(shape: float) -> None:
    """272 tail points; the standard error of one fit is (1 + k) / sqrt(272), and the prior pulls by 4 % towards 0.5."""
    found = [pareto_shape(pareto_weights(shape, M, seed).log()) for seed in range(16)]
    expected = (272 * shape + 5.0) / 282
    assert sum(found) / 16 == pytest.approx(expected, abs=4.0 * (1.0 + shape) / math.sqrt(272 * 16) + 0.02)


def test_shape_does_not_depend_on_scale_or_order() -> None:
    log_weights = pareto_weights(0.4, M, 0).log()
    order = torch.randperm(M, generator=torch.Generator().manual_seed(1))
    assert pareto_shape(log_weights[order] + 800.0) == pytest.approx(pareto_shape(log_weights), rel=1e-9)


def test_bounded_weights_have_a_negative_or_small_shape() -> None:
    uniform = torch.rand(M, generator=torch.Generator().manual_seed(0))
    assert pareto_shape(uniform.log()) < -0.5  # the tail of a uniform density has shape -1
    assert pareto_shape(torch.zeros(M)) == 0.0
    assert pareto_shape(torch.full((M,), -5.0)) == 0.0


def test_weights_with_no_tail_to_fit_are_never_good() -> None:
    alone = torch.full((M,), -torch.inf)
    assert pareto_shape(alone) == math.inf
    alone[:3] = 0.0
    assert pareto_shape(alone) == math.inf
    assert pareto_shape(torch.full((M,), math.nan)) == math.inf
    assert pareto_shape(torch.randn(4)) == math.inf


def test_a_single_dominating_weight_is_seen() -> None:
    log_weights = torch.randn(M, generator=torch.Generator().manual_seed(0)) * 4.0
    assert pareto_shape(log_weights) > 0.7
