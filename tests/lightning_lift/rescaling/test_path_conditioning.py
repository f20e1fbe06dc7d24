"""The coordinate descent: never rises, ends at the generic optimum, and by layer as by unit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from lightning_lift.rescaling import UnitGraph, build_unit_graph, path_conditioning, path_kernel_diagonal
from lightning_lift.rescaling.block_descent import DescentState
from lightning_lift.rescaling.path_conditioning import _Steps
from tests.lightning_lift.rescaling.rescaling_networks import SUPPORTED, build, mlp

CASES = sorted(SUPPORTED)


def problem(name: str) -> tuple[UnitGraph, dict[str, Tensor]]:
    model, x = build(name)
    graph = build_unit_graph(model, x)
    return graph, path_kernel_diagonal(graph.trace)


def incidence(graph: UnitGraph, diagonal: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """B (p, H) and g (p,) written out from the definition."""
    rows, values = [], []
    for name, g in diagonal.items():
        block = torch.zeros(g.numel(), graph.num_units + 1, dtype=torch.float64)
        if name in graph.uses:
            index = torch.arange(g.numel())
            block[index, graph.uses[name].incoming.expand(g.shape).reshape(-1)] -= 1.0
            block[index, graph.uses[name].outgoing.expand(g.shape).reshape(-1)] += 1.0
        rows.append(block[:, :-1])
        values.append(g.reshape(-1))
    return torch.cat(rows), torch.cat(values)


def objective(u: Tensor, B: Tensor, g: Tensor) -> Tensor:
    return len(g) * torch.log((g * torch.exp(B @ u)).sum()) - (B @ u).sum()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("update", ["layer", "unit"])
def test_never_rises_in_a_step(name: str, update: str) -> None:
    if (name, update) == ("resnet", "unit"):
        pytest.skip("seconds; its layers are checked")
    graph, diagonal = problem(name)
    B, g = incidence(graph, diagonal)
    steps = _Steps(len(g))
    state = DescentState(graph, diagonal, 1.0, update)
    value = float(objective(state.log_scales, B, g))
    for _ in range(2):
        for block in state.blocks:
            getattr(steps, update)(state, block)
            after = float(objective(state.log_scales, B, g))
            assert after <= value + 1e-12 * abs(value)
            assert steps.objective(state) == pytest.approx(after, rel=1e-12)
            value = after


@pytest.mark.parametrize("name", [c for c in CASES if c != "resnet"])
def test_optimum_equals_a_generic_solver(name: str) -> None:
    graph, diagonal = problem(name)
    found = path_conditioning(graph, diagonal, tolerance=1e-10, max_sweeps=2000)
    B, g = incidence(graph, diagonal)
    u = found.log_scales.clone().requires_grad_()
    objective(u, B, g).backward()
    assert u.grad is not None
    assert float(u.grad.abs().max()) < 1e-6
    assert found.largest_gradient < 1e-6
    assert found.converged

    Bn, gn = B.numpy(), g.numpy()

    def value(v: np.ndarray) -> tuple[float, np.ndarray]:
        e = gn * np.exp(Bn @ v)
        return len(gn) * np.log(e.sum()) - (Bn @ v).sum(), len(gn) * (Bn.T @ e) / e.sum() - Bn.sum(0)

    def curvature(v: np.ndarray) -> np.ndarray:
        e = gn * np.exp(Bn @ v)
        e = e / e.sum()
        mean = Bn.T @ e
        return len(gn) * ((Bn * e[:, None]).T @ Bn - np.outer(mean, mean))

    generic = minimize(value, np.zeros(graph.num_units), jac=True, hess=curvature, method="trust-exact",
                       options={"gtol": 1e-9, "maxiter": 2000})  # fmt: skip
    assert found.objective[-1] <= generic.fun + 1e-9 * abs(generic.fun)
    np.testing.assert_allclose(found.log_scales.numpy(), generic.x, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_layers_and_single_units_reach_the_same_scales(name: str) -> None:
    graph, diagonal = problem(name)
    if graph.num_units > 50:
        pytest.skip("covered by the benchmark")
    by_layer = path_conditioning(graph, diagonal, 1e-11, 2000, "layer")
    by_unit = path_conditioning(graph, diagonal, 1e-11, 2000, "unit")
    torch.testing.assert_close(by_layer.log_scales, by_unit.log_scales, rtol=0, atol=1e-8)


def test_two_moons_network_converges_within_2000_sweeps() -> None:
    torch.manual_seed(0)
    model = mlp(2, 64, 64, 64, 64, 2)
    graph = build_unit_graph(model, torch.ones(1, 2))
    diagonal = path_kernel_diagonal(graph.trace)
    found = path_conditioning(graph, diagonal, tolerance=1e-10, max_sweeps=2000)
    assert found.converged
    assert found.largest_gradient < 1e-6
    default = path_conditioning(graph, diagonal)
    assert default.sweeps == 10
    left = default.objective[-1] - found.objective[-1]
    assert 0.0 < left < 0.1 * (default.objective[0] - found.objective[-1])  # ten sweeps: most of the way, not all


def test_units_of_a_layer_that_share_an_entry_are_moved_one_by_one() -> None:
    """x + W x: an entry of W reads and feeds units of the same layer."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.a(x))
            return self.c(torch.relu(x + self.b(x)))

    torch.manual_seed(0)
    model = Skip().double()
    graph = build_unit_graph(model, torch.ones(1, 2, dtype=torch.float64))
    diagonal = path_kernel_diagonal(graph.trace)
    state = DescentState(graph, diagonal, 1.0, "layer")
    assert graph.num_units == 4
    assert [len(b.units) for b in state.blocks] == [1, 1, 1, 1]
    B, g = incidence(graph, diagonal)
    torch.testing.assert_close(state.balance, -B.sum(0))
    found = path_conditioning(graph, diagonal, 1e-11, 2000)
    assert found.objective[-1] == pytest.approx(float(objective(found.log_scales, B, g)), rel=1e-12)
    assert found.largest_gradient < 1e-6


def test_a_unit_without_paths_keeps_its_scale() -> None:
    torch.manual_seed(0)
    model = mlp(3, 4, 4, 1).double()
    model[0].weight.data[1] = 0.0
    model[0].bias.data[1] = 0.0
    model[4].weight.data[:, 2] = 0.0
    graph = build_unit_graph(model, torch.ones(1, 3, dtype=torch.float64))
    found = path_conditioning(graph, path_kernel_diagonal(graph.trace), 1e-10, 500)
    assert found.inactive.tolist() == [1, 4 + 2]
    assert bool((found.log_scales[found.inactive] == 0).all())
    assert bool(torch.isfinite(found.log_scales).all())


@pytest.mark.parametrize(("arguments", "message"), [((-1.0, 10), "tolerance=-1"), ((1e-2, -1), "max_sweeps=-1")])
def test_arguments_are_checked(arguments: tuple[float, int], message: str) -> None:
    graph, diagonal = problem("mlp")
    with pytest.raises(ValueError, match=message):
        path_conditioning(graph, diagonal, *arguments)


def test_no_sweep_leaves_the_scales() -> None:
    graph, diagonal = problem("mlp")
    found = path_conditioning(graph, diagonal, max_sweeps=0)
    assert found.sweeps == 0
    assert len(found.objective) == 1
    assert float(found.log_scales.abs().max()) == 0.0
