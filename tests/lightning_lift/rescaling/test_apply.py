"""Factors go into the parameters in place; the optimizer's memory follows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightning_lift.rescaling import build_unit_graph, rescale_factors, transport_optimizer_state_
from lightning_lift.rescaling.apply import apply_factors_
from tests.lightning_lift.rescaling.rescaling_networks import SkipICNN, mlp


def random_factors(model: nn.Module, dim: int, spread: float = 1.0) -> dict[str, torch.Tensor]:
    graph = build_unit_graph(model, torch.ones(1, dim, dtype=next(model.parameters()).dtype))
    torch.manual_seed(3)
    return rescale_factors(graph, spread * torch.randn(graph.num_units))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_identity_dtype_and_sign_stay(dtype: torch.dtype) -> None:
    model = SkipICNN().to(dtype)
    before = {n: (id(p), p.data_ptr(), p.detach().clone()) for n, p in model.named_parameters()}
    apply_factors_(model, random_factors(model, 3, 3.0))
    moved = 0
    for name, parameter in model.named_parameters():
        identity, pointer, values = before[name]
        assert (id(parameter), parameter.data_ptr(), parameter.dtype) == (identity, pointer, dtype)
        assert torch.equal(parameter.sign(), values.sign())
        moved += int((parameter != values).sum())
    assert moved > 0
    assert all(bool((w >= 0).all()) for w in [*model.hidden, model.out])


def test_convention() -> None:
    """Incoming weights and bias times e^{u/2}, outgoing times e^{-u/2}."""
    model = mlp(1, 1, 1)
    graph = build_unit_graph(model, torch.ones(1, 1))
    factors = rescale_factors(graph, torch.tensor([2.0]))
    assert factors["0.weight"].item() == pytest.approx(torch.e)
    assert factors["0.bias"].item() == pytest.approx(torch.e)
    assert factors["2.weight"].item() == pytest.approx(1 / torch.e)
    with pytest.raises(ValueError, match=r"expected \(1,\)"):
        rescale_factors(graph, torch.zeros(2))
    with pytest.raises(ValueError, match="not finite"):
        rescale_factors(graph, torch.tensor([float("nan")]))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimizer_state_is_that_of_the_rescaled_history(name: str) -> None:
    """Frozen weights (lr 0): the state after k steps, carried over, is the state of the rescaled network's k steps."""
    arguments = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5, "eps": 1e-16}}.get(name, {})
    torch.manual_seed(0)
    one = mlp(3, 5, 4, 2).double()
    other = copy.deepcopy(one)
    factors = random_factors(one, 3)
    apply_factors_(other, factors)
    optimizers = [getattr(torch.optim, name)(m.parameters(), lr=0.0, **arguments) for m in (one, other)]
    for _ in range(3):
        x = torch.randn(8, 3, dtype=torch.float64)
        for model, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    apply_factors_(one, factors)
    unknown = transport_optimizer_state_(one, optimizers[0], factors)
    assert unknown == ()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        for key, value in optimizers[0].state[p].items():
            torch.testing.assert_close(value, optimizers[1].state[q][key], rtol=1e-9, atol=1e-12)


def test_unknown_state_is_named() -> None:
    model = mlp(2, 3, 1)
    factors = random_factors(model, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        optimizer.state[parameter]["curvature"] = torch.ones_like(parameter)
    assert transport_optimizer_state_(model, optimizer, factors) == ("curvature",)
