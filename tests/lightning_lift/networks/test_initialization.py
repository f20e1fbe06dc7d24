import math

import pytest
import torch

from lightning_lift.networks.initialization import log_normal_, log_spaced_rows_, principled_moments


def test_log_normal_has_the_moments_asked_for() -> None:
    torch.manual_seed(0)
    draws = log_normal_(torch.empty(400_000, dtype=torch.float64), mean=0.5, variance=0.04)
    assert float(draws.mean()) == pytest.approx(0.5, abs=4 * 0.2 / math.sqrt(len(draws)))
    assert float(draws.var()) == pytest.approx(0.04, rel=0.02)
    assert (draws > 0).all()


@pytest.mark.parametrize("n", [1, 16, 512])
def test_principled_moments_centre_the_next_layer(n: int) -> None:
    """For units with mean m = sqrt(1 / 2 pi) (relu of unit Gaussians), n * mean * m + bias = 0."""
    mean, variance, bias = principled_moments(n)
    assert variance == 1 / n
    assert n * mean / math.sqrt(2 * math.pi) + bias == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 10, 256])
def test_log_spaced_rows_have_the_stated_norms_and_directions(dim: int) -> None:
    torch.manual_seed(0)
    rows = log_spaced_rows_(torch.empty(512, dim))
    norms = rows.norm(dim=1).sort().values
    expected = torch.logspace(-0.5, 1.5, 512) / dim**0.5
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)
    assert float(norms.square().mean()) == pytest.approx(109.0 / dim, rel=0.02)
    mean = (rows / rows.norm(dim=1, keepdim=True)).mean(0)
    assert float(mean.norm()) < 4.0 / 512**0.5
