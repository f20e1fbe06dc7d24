"""ENorm ends where squared incoming and outgoing weights are equal."""

from __future__ import annotations

import copy

import pytest
import torch

from lightning_lift.rescaling import build_unit_graph, equinormalization, rescale_, rescale_factors
from lightning_lift.rescaling.apply import apply_factors_
from tests.lightning_lift.rescaling.rescaling_networks import SUPPORTED, build


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_minimum_by_autograd(name: str) -> None:
    model, x = build(name)
    graph = build_unit_graph(model, x)
    squared = {n: p.detach().square() for n, p in model.named_parameters()}
    found = equinormalization(graph, squared, tolerance=1e-12, max_sweeps=3000)
    assert all(b <= a * (1 + 1e-12) for a, b in zip(found.objective, found.objective[1:], strict=False))

    u = torch.cat([found.log_scales, torch.zeros(1, dtype=torch.float64)]).requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for n, p in squared.items():
        change = (u[graph.uses[n].incoming] - u[graph.uses[n].outgoing]) if n in graph.uses else torch.zeros(())
        total = total + (p * torch.exp(change)).sum()
    total.backward()
    assert u.grad is not None
    assert float(u.grad[:-1].abs().max()) < 1e-8 * float(total)
    assert found.objective[-1] == pytest.approx(float(total), rel=1e-12)

    scaled = copy.deepcopy(model)
    apply_factors_(scaled, rescale_factors(graph, found.log_scales))
    assert sum(float(p.square().sum()) for p in scaled.parameters()) == pytest.approx(float(total), rel=1e-10)


def test_two_layers_in_closed_form() -> None:
    """One hidden layer: a single step balances every unit."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).double()
    report = rescale_(model, "enorm", example_input=torch.randn(2, 3, dtype=torch.float64))
    into = model[0].weight.square().sum(1) + model[0].bias.square()
    torch.testing.assert_close(into, model[2].weight.square().sum(0))
    assert report.sweeps == 2  # the second one finds nothing to move
