import math

import pytest
import torch

from lightning_lift.metrics.two_sample import energy_distance, maximum_mean_discrepancy


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_energy_distance_by_hand() -> None:
    x = torch.tensor([[0.0], [2.0]])
    y = torch.tensor([[1.0], [4.0]])
    # cross pairs 1, 4, 1, 2; within 2 and 3
    assert energy_distance(x, y).value == pytest.approx(2 * 2.0 - 2.0 - 3.0)
    assert math.isnan(energy_distance(x, y).standard_error)


def test_energy_distance_of_shifted_normals() -> None:
    """Against the closed form in one dimension: 2 E|N(s, 2)| - 2 E|N(0, 2)|."""
    shift = 0.5
    folded = 2.0 / math.sqrt(math.pi) * math.exp(-(shift**2) / 4.0) + shift * math.erf(shift / 2.0)
    expected = 2.0 * folded - 4.0 / math.sqrt(math.pi)
    x = torch.randn(2000, 1, generator=generator(0))
    found = energy_distance(x + shift, torch.randn(3000, 1, generator=generator(1)))
    assert found.value == pytest.approx(expected, abs=4.0 * found.standard_error)
    assert found.standard_error < 0.2 * expected


def test_mmd_of_shifted_normals() -> None:
    """E k = sqrt(h^2 / (h^2 + 2)) exp(-s^2 / (2 (h^2 + 2))) for normals a shift s apart."""
    shift, bandwidth = 1.0, 1.5
    variance = bandwidth**2 + 2.0
    expected = 2.0 * bandwidth / math.sqrt(variance) * (1.0 - math.exp(-(shift**2) / (2.0 * variance)))
    x, y = torch.randn(2000, 1, generator=generator(0)), torch.randn(2000, 1, generator=generator(1))
    found = maximum_mean_discrepancy(x + shift, y, bandwidth)
    assert found.value == pytest.approx(expected, abs=4.0 * found.standard_error)


@pytest.mark.parametrize("distance", [energy_distance, maximum_mean_discrepancy])
@pytest.mark.parametrize("shift", [0.0, 0.1, 0.6])
def test_the_standard_error_is_the_spread_over_repetitions(distance, shift) -> None:  # type: ignore[no-untyped-def]
    """For equal distributions, where the first order vanishes, for far ones, and between."""
    source = generator(2)
    found = []
    for _ in range(250):
        x, y = torch.randn(60, 2, generator=source), torch.randn(90, 2, generator=source)
        found.append(distance(x + shift, y))
    values = torch.tensor([result.value for result in found])
    errors = torch.tensor([result.standard_error for result in found])
    # The spread of 250 values is known to 5 %.
    assert float(errors.square().mean().sqrt() / values.std()) == pytest.approx(1.0, abs=0.2)
    if shift == 0.0:
        assert abs(float(values.mean())) < 4.0 * float(values.std()) / math.sqrt(len(values))


def test_scaling_and_near_neighbours() -> None:
    x, y = torch.randn(50, 3, generator=generator(0)), 1.0 + torch.randn(40, 3, generator=generator(1))
    one, other = energy_distance(x, y), energy_distance(10.0 * x, 10.0 * y)
    assert other.value == pytest.approx(10.0 * one.value, rel=1e-5)
    assert other.standard_error == pytest.approx(10.0 * one.standard_error, rel=1e-5)
    assert maximum_mean_discrepancy(x, y).value == pytest.approx(
        maximum_mean_discrepancy(10.0 * x, 10.0 * y).value, rel=1e-5
    )
    far = energy_distance(1e4 + 1e-2 * x.double(), 1e4 + 1e-2 * y.double())
    assert far.value == pytest.approx(1e-2 * one.value, rel=1e-4)


def test_wrong_input_is_refused() -> None:
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"\(N, D\) and \(M, D\)"):
        energy_distance(x, torch.zeros(4, 3))
    with pytest.raises(ValueError, match="at least two"):
        energy_distance(x, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="bandwidth=0"):
        maximum_mean_discrepancy(torch.randn(4, 2), x)
    with pytest.raises(ValueError, match="bandwidth=-1"):
        maximum_mean_discrepancy(torch.randn(4, 2), torch.randn(4, 2), -1.0)
