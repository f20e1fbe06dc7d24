import pytest
import torch

from lightning_lift.metrics import EnergyDistance, MaximumMeanDiscrepancy, energy_distance, maximum_mean_discrepancy


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(30, 2, generator=generator), 1.0 + torch.randn(40, 2, generator=generator)


def test_batches_and_ranks_are_joined() -> None:
    x, y = pair()
    whole = energy_distance(x, y).value
    metric = EnergyDistance()
    for part, rows in zip(x.split(10), y.split(15), strict=True):
        metric.update(part, rows)
    assert metric.compute().item() == pytest.approx(whole, rel=1e-6)
    one, other = EnergyDistance(), EnergyDistance()
    one.update(x[:5], y[:20])
    other.update(x[5:], y[20:])
    one.merge_state(other)
    assert one.compute().item() == pytest.approx(whole, rel=1e-6)


def test_mmd_has_its_bandwidth_and_a_float32_value() -> None:
    x, y = pair()
    metric = MaximumMeanDiscrepancy(bandwidth=0.7)
    metric.update(x, y)
    assert metric.compute().dtype == torch.float32
    assert metric.compute().item() == pytest.approx(maximum_mean_discrepancy(x, y, 0.7).value, rel=1e-6)
    metric.reset()
    metric.update(x, y)
    assert metric.compute().item() != pytest.approx(maximum_mean_discrepancy(x, y).value, rel=1e-3)
