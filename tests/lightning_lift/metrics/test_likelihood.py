import copy
import math
import pickle

import pytest
import torch
from torchmetrics import Metric, MetricCollection

from lightning_lift.metrics import NegativeLogLikelihood, NegativeLogLikelihoodStandardError


def sample(size: int = 1000) -> torch.Tensor:
    return -3.0 + torch.randn(size, generator=torch.Generator().manual_seed(1))


def test_mean_and_standard_error_over_uneven_batches() -> None:
    log_prob = sample()
    metrics = MetricCollection({"nll": NegativeLogLikelihood(), "error": NegativeLogLikelihoodStandardError()})
    for piece in log_prob.split([1, 7, 500, 492]):
        metrics.update(piece)
    result = metrics.compute()
    assert result["nll"].item() == pytest.approx(-log_prob.double().mean().item(), rel=1e-6)
    assert result["error"].item() == pytest.approx(log_prob.double().std().item() / math.sqrt(1000), rel=1e-5)
    assert len(metrics.compute_groups) == 1, "the two metrics should share one state"


@pytest.mark.parametrize("metric", [NegativeLogLikelihood, NegativeLogLikelihoodStandardError])
def test_two_halves_equal_the_whole(metric: type[Metric]) -> None:
    log_prob = sample(601)
    halves, whole = [metric(), metric()], metric()
    for half, piece in zip(halves, log_prob.split([600, 1]), strict=True):
        half.update(piece)
    whole.update(log_prob)
    # What a reduction over two ranks does with the gathered states.
    merged = halves[0]._reductions["moments"](torch.stack([half.moments for half in halves]))
    torch.testing.assert_close(merged, whole.moments, rtol=1e-5, atol=0.0)
    halves[0].merge_state(halves[1])
    torch.testing.assert_close(halves[0].compute(), whole.compute(), rtol=1e-5, atol=0.0)


def test_forward_returns_the_batch_value_and_keeps_the_sum() -> None:
    metric = NegativeLogLikelihood()
    assert metric(torch.tensor([1.0, 3.0])).item() == pytest.approx(-2.0)
    assert metric(torch.tensor([5.0])).item() == pytest.approx(-5.0)
    assert metric.compute().item() == pytest.approx(-3.0)


def test_zero_density_is_an_infinite_likelihood_and_nan_stays_nan() -> None:
    metric = NegativeLogLikelihood()
    for piece in (torch.tensor([1.0, -torch.inf]), torch.tensor([2.0]), torch.empty(0)):
        metric.update(piece)
    assert metric.compute().item() == math.inf
    metric.update(torch.tensor([math.nan]))
    assert metric.compute().isnan()


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_undefined_before_enough_rows() -> None:
    nll, error = NegativeLogLikelihood(), NegativeLogLikelihoodStandardError()
    assert nll.compute().isnan()
    error.update(torch.tensor([1.0]))
    assert error.compute().isnan()


def test_states_are_float32_and_survive_copy_and_reset() -> None:
    metric = NegativeLogLikelihood()
    metric.update(sample().double())
    assert metric.moments.dtype == torch.float32
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert other.compute() == metric.compute()
    metric.reset()
    metric.update(torch.tensor([2.0]))
    assert metric.compute().item() == -2.0


def test_a_column_of_log_densities_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 1\)"):
        NegativeLogLikelihood().update(torch.zeros(3, 1))
