import warnings
from typing import Any

import pytest
import torch
from nflows.distributions import StandardNormal
from nflows.flows import Flow
from nflows.transforms import CompositeTransform, InverseTransform, ReversePermutation
from torch import Tensor
from torch.func import jacrev, vmap

from lightning_lift.flows import FlowMap, FlowStage
from lightning_lift.flows.nflows_adapter import (
    ConvexPotentialTransform,
    base_to_data,
    draw_samples,
    make_flow,
    to_data,
    to_noise,
)
from lightning_lift.modules.frozen import FrozenEnergy
from lightning_lift.networks import ICNN
from lightning_lift.networks.actnorm import Normalization
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of

KINDS: tuple[Any, ...] = ("maf", "realnvp", "rq_nsf_coupling", "rq_nsf_autoregressive")


def icnn(dim: int = 3, seed: int = 0, **options: Any) -> ICNN:
    torch.manual_seed(seed)
    start = {"widths": (16, 16), "strong_convexity": 0.1, "weight_init": "folded_normal", "divide_by_fan_in": False}
    return ICNN(dim, **start | options)


def rows(count: int = 20, dim: int = 3, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# -- convex potentials as transforms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parameterization", [DirectSoftplus, ProjectedGradient])
def test_the_logdet_is_that_of_the_jacobian_and_the_inverse_inverts(parameterization: Any) -> None:
    transform = ConvexPotentialTransform(icnn(), parameterization).double()
    x = rows()
    y, logdet = transform(x)
    jacobian = vmap(jacrev(lambda point: transform.flow_map().map(point[None])[0]))(x)
    torch.testing.assert_close(logdet, torch.linalg.slogdet(jacobian)[1], rtol=1e-9, atol=1e-9)
    back, minus = transform.inverse(y)
    torch.testing.assert_close(back, x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(minus, -logdet, rtol=1e-8, atol=1e-8)


def test_a_quadratic_in_closed_form() -> None:
    transform = ConvexPotentialTransform(potential_of(Quadratic(2, mean=1.0, sd=0.5)))
    x = rows(5, 2, dtype=torch.float32)
    y, logdet = transform(x)
    torch.testing.assert_close(y, (x - 1.0) / 0.25)
    torch.testing.assert_close(logdet, torch.full((5,), 2.0 * torch.tensor(4.0).log().item()))


def test_the_inverse_is_differentiable_in_points_and_weights() -> None:
    """Against central differences, through two blocks with a scale between them."""
    torch.manual_seed(0)
    first, second = (potential_of(icnn(2, seed).double()) for seed in (0, 1))
    log_scale = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    center, shift = torch.tensor([[0.1, 0.4], [-0.2, 0.3]], dtype=torch.float64)
    flow_map = FlowMap([FlowStage(first), FlowStage(second, Normalization(center, log_scale, shift))])
    transform = ConvexPotentialTransform(flow_map)
    target, direction = rows(4, 2), rows(4, 2, seed=2)

    def value(y: Tensor) -> Tensor:
        x, logdet = transform.inverse(y)
        return (x * direction).sum() + logdet.sum()

    y = target.clone().requires_grad_()
    gradient, by_scale = torch.autograd.grad(value(y), [y, log_scale])
    step = 1e-5
    with torch.no_grad():
        expected = (value(target + step * direction) - value(target - step * direction)) / (2.0 * step)
        torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-6, atol=1e-6)
        values = []
        for sign in (1.0, -1.0):
            log_scale[0] += sign * step
            values.append(value(target))
            log_scale[0] -= sign * step
    torch.testing.assert_close(by_scale[0], (values[0] - values[1]) / (2.0 * step), rtol=1e-6, atol=1e-6)


def test_it_composes_and_trains_in_a_flow_of_nflows() -> None:
    torch.manual_seed(0)
    blocks = [ConvexPotentialTransform(icnn(2, seed, strong_convexity=0.2, widths=(8, 8))) for seed in (0, 1)]
    flow = Flow(CompositeTransform([blocks[0], ReversePermutation(2), blocks[1]]), StandardNormal([2]))
    x = 0.3 * rows(128, 2, dtype=torch.float32) + 1.0
    optimizer = torch.optim.Adam(flow.parameters(), 3e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5
    # The density integrates to one over the plane.
    line = torch.linspace(-3.0, 5.0, 121)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    with torch.no_grad():
        mass = float(flow.log_prob(grid).double().exp().sum()) * (8.0 / 120) ** 2
        samples = flow.sample(300)
    assert mass == pytest.approx(1.0, abs=2e-3)
    assert samples.mean(0) == pytest.approx(x.mean(0), abs=0.15)
    image, logdet = InverseTransform(flow._transform).inverse(samples)
    torch.testing.assert_close(flow._transform.inverse(image)[0].detach(), samples, rtol=1e-3, atol=1e-3)
    assert logdet.shape == (300,)


def test_projection_keeps_stored_weights_nonnegative() -> None:
    transform = ConvexPotentialTransform(icnn(), ProjectedGradient)
    parameterization = transform.parameterization
    assert parameterization is not None
    with torch.no_grad():
        for parameter in parameterization.parameters():
            parameter.sub_(1.0)
    assert not parameterization.is_feasible()
    transform.project_()
    assert parameterization.is_feasible()


def test_a_frozen_network_is_wrapped_as_it_is_and_moves_with_the_flow() -> None:
    network = icnn()
    expected = potential_of(network).gradient(rows(dtype=torch.float32))
    transform = ConvexPotentialTransform(FrozenEnergy(potential_of(network)))
    assert not list(transform.parameters())
    torch.testing.assert_close(transform(rows(dtype=torch.float32))[0], expected)
    assert transform.double()(rows())[0].dtype == torch.float64


def test_a_missed_tolerance_raises_or_gives_nan() -> None:
    potential = potential_of(icnn().double())
    y = rows()
    y[3] = torch.nan
    with pytest.raises(RuntimeError, match="missed its tolerance at 1 of 20"):
        ConvexPotentialTransform(potential).inverse(y)
    x, logdet = ConvexPotentialTransform(potential, on_failure="nan").inverse(y)
    wrong = torch.arange(20) == 3
    assert bool(x[wrong].isnan().all()) and bool(logdet[wrong].isnan().all())
    torch.testing.assert_close(potential.gradient(x[~wrong]), y[~wrong], rtol=1e-9, atol=1e-9)


def test_what_is_no_invertible_map_is_refused() -> None:
    with pytest.raises(ValueError, match="conditions on the data batch"):
        ConvexPotentialTransform(icnn(), Lift)
    with pytest.raises(ValueError, match="not twice differentiable"):
        ConvexPotentialTransform(icnn(activation="relu"))
    with pytest.raises(TypeError, match="Linear is no convex potential"):
        ConvexPotentialTransform(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="on_failure='ignore'"):
        ConvexPotentialTransform(icnn(), on_failure="ignore")  # type: ignore[arg-type]
    assert isinstance(ConvexPotentialTransform(icnn()).flow_map().stages[0].potential, Potential)


# -- baselines --------------------------------------------------------------------------------------------------------


def small(kind: Any, dim: int, **options: Any) -> Flow:
    torch.manual_seed(0)
    flow = make_flow(kind, dim, num_layers=3, hidden_features=16, num_blocks=1, **options)
    with torch.no_grad():  # away from the near-identity start
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return flow.eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dim", "batch_norm"), [(2, False), (5, True)])
def test_every_kind_is_a_bijection_with_its_jacobians_logdet(kind: Any, dim: int, batch_norm: bool) -> None:
    flow = small(kind, dim, batch_norm=batch_norm).double()
    x = 1.5 * rows(8, dim)
    noise, logdet = to_noise(flow, x)
    expected = []
    for point in x:
        jacobian = torch.autograd.functional.jacobian(lambda p: to_noise(flow, p[None])[0][0], point)
        expected.append(torch.linalg.slogdet(jacobian)[1])
    torch.testing.assert_close(logdet, torch.stack(expected), rtol=1e-8, atol=1e-8)
    back, minus = to_data(flow, noise)
    torch.testing.assert_close(back, x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(minus, -logdet, rtol=1e-5, atol=1e-5)
    log_prob = -0.5 * noise.square().sum(1) - 0.5 * dim * torch.tensor(2.0 * torch.pi).log() + logdet
    torch.testing.assert_close(flow.log_prob(x), log_prob, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["maf", "rq_nsf_autoregressive"])
def test_one_column(kind: Any) -> None:
    flow = small(kind, 1).double()
    x = torch.linspace(-60.0, 60.0, 20001, dtype=torch.float64)[:, None]
    with torch.no_grad():
        assert float(flow.log_prob(x).exp().sum()) * 120.0 / 20000 == pytest.approx(1.0, abs=1e-3)


def test_a_coupling_density_can_be_sharper_than_its_base() -> None:
    torch.manual_seed(0)
    flow = make_flow("realnvp", 2, num_layers=2, hidden_features=16)
    x = 0.05 * rows(256, 2, dtype=torch.float32)
    optimizer = torch.optim.Adam(flow.parameters(), 3e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        optimizer.step()
    entropy = 1.0 + torch.tensor(2.0 * torch.pi).log() + 2.0 * torch.tensor(0.05).log()
    assert float(loss.detach()) == pytest.approx(float(entropy), abs=0.15)


def test_an_evaluation_before_the_first_step_with_batch_norm_is_moderate() -> None:
    torch.manual_seed(0)
    flow = make_flow("maf", 4, batch_norm=True).eval()
    with torch.no_grad():
        assert float(-flow.log_prob(rows(200, 4, dtype=torch.float32)).mean()) < 50.0


def test_draws_have_a_seed_of_their_own_and_follow_the_density() -> None:
    flow = small("rq_nsf_coupling", 2)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = draw_samples(flow, 4000, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, draw_samples(flow, 4000, torch.Generator().manual_seed(3)))
    assert not torch.equal(one, draw_samples(flow, 4000, torch.Generator().manual_seed(4)))
    noise, _ = to_noise(flow, one)
    assert noise.mean(0).abs().max().item() < 4.0 / 4000**0.5
    torch.testing.assert_close(torch.cov(noise.T), torch.eye(2), rtol=0.0, atol=0.1)


def test_float64_takes_over_where_float32_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = small("rq_nsf_coupling", 2)
    noise = rows(50, 2, dtype=torch.float32)
    expected = to_data(flow, noise)[0].detach()
    layer = type(flow._transform._transforms[-1])
    inverse = layer.inverse

    def only_float64(self: Any, inputs: Tensor, context: Any = None) -> Any:
        assert inputs.dtype == torch.float64  # as nflows asserts that a discriminant is not negative
        return inverse(self, inputs, context)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "inverse", only_float64)
        found = base_to_data(flow, noise)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        next(flow.parameters()).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="not finite at 10 of 10 draws"):
        draw_samples(flow, 10, torch.Generator().manual_seed(0))


def test_no_deprecated_solver_and_no_float64_buffer() -> None:
    flow = small("rq_nsf_coupling", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_samples(flow, 5, torch.Generator().manual_seed(0))
    assert all(buffer.dtype != torch.float64 for buffer in flow.buffers())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "glow"}, "flow 'glow' is unknown"),
        ({"kind": "realnvp", "dim": 1}, "one column: choose maf"),
        ({"kind": "rq_nsf_coupling", "dim": 1}, "one column: choose maf"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"num_blocks": True}, "num_blocks=True"),
        ({"tail_bound": 0.0}, "tail_bound=0.0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"num_bins": 1000}, "at most 999"),
        ({"mixing": "householder"}, "mixing='householder'"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_flow(**{"kind": "rq_nsf_coupling", "dim": 2} | arguments)
