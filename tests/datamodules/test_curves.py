import math

import pytest
import torch

from lightning_lift.datamodules.curves import curve_nodes, panel_rule


def circle(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t.cos(), t.sin()], dim=1)


def test_panel_rule_integrates() -> None:
    nodes, weights = panel_rule(-1.0, 4.0, 3)
    assert nodes.shape == weights.shape == (96,)
    assert bool((nodes.diff() > 0).all()) and float(nodes[0]) > -1.0 and float(nodes[-1]) < 4.0
    assert float((weights * nodes.exp()).sum()) == pytest.approx(math.e**4 - math.e**-1, rel=1e-14)


def test_nodes_are_fine_enough_for_the_noise() -> None:
    points, weights = curve_nodes(circle, lambda t: torch.full_like(t, 0.5 / math.pi), 0.0, 2.0 * math.pi, 0.05)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-14) and bool((weights > 0).all())
    assert float(points.norm(dim=1).max()) == pytest.approx(1.0)
    assert float(points.diff(dim=0).norm(dim=1).max()) < 0.05
    finer, _ = curve_nodes(circle, lambda t: torch.full_like(t, 0.5 / math.pi), 0.0, 2.0 * math.pi, 0.005)
    assert 8 < finer.shape[0] / points.shape[0] < 12


def test_weights_follow_the_density_of_the_parameter() -> None:
    points, weights = curve_nodes(circle, lambda t: 2.0 * t / math.pi**2, 0.0, math.pi, 0.1)
    # E cos t and E sin t of the density 2 t / pi^2
    mean = (weights[:, None] * points).sum(dim=0)
    assert mean.tolist() == pytest.approx([-4.0 / math.pi**2, 2.0 / math.pi], abs=1e-13)
