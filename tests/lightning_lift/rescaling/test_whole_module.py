"""A whole module, with and without a parameterization: same function, same weights, same memory of the optimizer."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.rescaling import rescale_module_, transport_states_


def relu_model(parameterization: Any = ProjectedGradient, dim: int = 1, **network: Any) -> LogConcaveEBM:
    torch.manual_seed(0)
    settings = {"widths": (12, 8), "activation": "relu", "bias_std": 1.0} | network
    return LogConcaveEBM(
        dim, network=partial(ICNN, **{"strong_convexity": 0.02} | settings), parameterization=parameterization
    )


def values(module: LogConcaveEBM, x: Tensor) -> Tensor:
    return module.potential().value(x).detach()


@pytest.mark.parametrize(
    "parameterization", [ProjectedGradient, DirectSoftplus, partial(DirectSoftplus, latent_gain=5.0)]
)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("method", ["pathcond", "enorm"])
def test_function_is_preserved_and_convexity_too(parameterization: Any, dim: int, method: Any) -> None:
    module = relu_model(parameterization, dim).double()
    x = torch.randn(50, dim, dtype=torch.float64)
    before = values(module, x)
    old = {name: w.detach().clone() for name, w in module.parameterization.weights().items()}
    rescaling = rescale_module_(module, method, example_input=x)
    after = values(module, x)
    assert float((after - before).abs().max()) < 1e-12 * float(before.abs().max())
    assert rescaling.report.num_units == 20
    assert rescaling.report.objective_after < rescaling.report.objective_before
    assert rescaling.report.function_change["eval"] < 1e-12
    assert rescaling.raised == 0
    for name, weights in module.parameterization.weights().items():
        assert bool((weights >= 0).all())
        torch.testing.assert_close(weights, old[name] * rescaling.report.factors[name], rtol=1e-9, atol=0)


def test_zeros_of_projected_weights_stay_zeros() -> None:
    module = relu_model()
    with torch.no_grad():
        module.parameterization.flat_weights[::3] = 0.0
    zeros = module.parameterization.flat_weights == 0
    rescale_module_(module, example_input=torch.randn(5, 1))
    assert torch.equal(module.parameterization.flat_weights == 0, zeros)


@pytest.mark.parametrize("parameterization", [ProjectedGradient, partial(DirectSoftplus, latent_gain=3.0)])
def test_factors_are_what_divides_the_gradients(parameterization: Any) -> None:
    """The claim behind the transport of momentum, against autograd."""
    module = relu_model(parameterization, dim=2).double()
    x = torch.randn(30, 2, dtype=torch.float64)

    def gradients() -> dict[str, Tensor]:
        module.zero_grad()
        module.potential().value(x).square().mean().backward()
        return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}

    before = gradients()
    rescaling = rescale_module_(module, example_input=x)
    after = gradients()
    assert rescaling.untracked == ()
    assert set(rescaling.factors) <= set(before)
    for name, factor in rescaling.factors.items():
        torch.testing.assert_close(after[name], before[name] / factor, rtol=1e-7, atol=1e-12)


def test_transported_momentum_is_the_momentum_of_the_new_gradients() -> None:
    module = relu_model(DirectSoftplus, dim=2).double()
    x = torch.randn(30, 2, dtype=torch.float64)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        module.potential().value(x).square().mean().backward()
        optimizer.step()

    assert "no state" in transport_states_(module, [optimizer], rescale_module_(module, example_input=x))
    step()
    said = transport_states_(module, [optimizer], rescale_module_(module, "enorm", example_input=x))
    assert "first moments" in said
    carried = {p: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    optimizer.state.clear()
    step()
    for parameter, state in optimizer.state.items():
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(carried[parameter][key], state[key], rtol=1e-6, atol=1e-14)


def test_a_lift_is_refused() -> None:
    with pytest.raises(ValueError, match="Lift makes the weights from each batch"):
        rescale_module_(relu_model(Lift), example_input=torch.randn(5, 1))


def test_weights_that_the_parameterization_cannot_hold_undo_everything() -> None:
    module = relu_model(partial(ProjectedGradient, floor=0.2), widths=(64, 4))
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(RuntimeError, match="lower the floor"):
        rescale_module_(module, example_input=torch.randn(5, 1))
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))


def test_smooth_networks_are_left_alone_or_measured() -> None:
    x = torch.randn(20, 1)
    untouched = relu_model(activation="softplus")
    before = values(untouched, x)
    rescaling = rescale_module_(untouched, example_input=x)
    assert rescaling.report.num_units == 0
    torch.testing.assert_close(values(untouched, x), before, rtol=1e-6, atol=1e-6)
