import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

from lightning_lift.networks import PICNN, ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.potential import Potential
from lightning_lift.testing import NetworkContract
from tests.problems import potential_of

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # vmap of torch's own


class TestContract(NetworkContract):
    dims = (1, 3)

    def make(self, dim: int) -> ConvexNetwork:
        return moved(PICNN(dim, (2, 2), (16, 12, 8), context_width=9))


class TestMonotoneAndEmbedded(NetworkContract):
    dims = (2, 4)

    def make(self, dim: int) -> ConvexNetwork:
        image = lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.SiLU())  # noqa: E731
        return moved(
            PICNN(
                dim, (1, 5, 5), (12, 8), 9, 0.0, image, "gaussian_softplus", 0.1, increasing=[dim - 1], decreasing=[0]
            )
        )

    def test_slopes_keep_their_signs_at_every_context(self) -> None:
        network = self.make(3).double()
        context = 3.0 * torch.randn(2000, 1, 5, 5, dtype=torch.float64)
        slopes = potential_of(network).at(context).gradient(10.0 * torch.randn(2000, 3, dtype=torch.float64))
        assert (slopes[:, 0] <= 0.0).all()
        assert (slopes[:, 2] >= 0.0).all()
        assert (slopes[:, 1] < 0.0).any()
        assert (slopes[:, 1] > 0.0).any()


def moved(network: PICNN) -> PICNN:
    """With every scale and shift away from its start."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("conditioner"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def energy_of_equation_3(network: PICNN, parameters: dict[str, Tensor], x: Tensor, u: Tensor) -> Tensor:
    """One point at one context, from the parameters alone, softplus written -logsigmoid(-a)."""

    def positive(raw: Tensor) -> Tensor:
        return -F.logsigmoid(-(raw + math.log(math.e - 1.0)))

    def linear(name: str, v: Tensor) -> Tensor:
        product = parameters[f"conditioner.{name}.weight"] @ v
        return product + parameters.get(f"conditioner.{name}.bias", torch.zeros_like(product))

    depth, dim = len(network.layers), network.dim
    u, z = u.flatten(), None
    for i in range(depth):
        layer = {name: parameters.get(f"layers.{i}.{name}") for name in ("hidden_weight", "input_weight", "bias")}
        width = len(layer["bias"])
        head = linear(f"heads.{i}", u)
        pre = layer["input_weight"] @ (x * (1.0 + head[:dim])) + head[dim : dim + width] + layer["bias"]
        if z is not None:
            pre = pre + layer["hidden_weight"] / len(z) @ (z * positive(head[dim + width :]))
        z = -F.logsigmoid(-pre)
        u = F.silu(linear(f"layers.{i}", u))
    head = linear(f"heads.{depth}", u)
    scale, k = (-F.logsigmoid(-10.0 * parameters[f"raw_{name}"]) for name in ("output_scale", "strong_convexity"))
    slope = scale * parameters["output_input_weight"] + head[:dim]
    convex = scale * parameters["output_weight"] / len(z) @ (z * positive(head[dim + 1 :]))
    return convex + slope @ x + 0.5 * k * x @ x + head[dim]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("widths", [(64,) * 4, (16, 8, 12), (10,)])
def test_everything_equals_autograd_of_equation_3_in_float64(widths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = moved(PICNN(10, (2, 5), widths)).double()
    parameters = dict(network.named_parameters())
    count = 20
    x = torch.cat([torch.zeros(1, 10), 50.0 * torch.ones(1, 10), torch.randn(count - 2, 10)]).double()
    u = torch.randn(count, 2, 5, dtype=torch.float64)
    x.requires_grad_()

    def energy(parameters: dict[str, Tensor], point: Tensor, entry: Tensor) -> Tensor:
        return energy_of_equation_3(network, parameters, point, entry)

    def of_rows(function: Callable[..., Tensor]) -> Tensor:
        return vmap(function, in_dims=(None, 0, 0))(parameters, x, u)

    value, gradient, hessians = (of_rows(f) for f in (energy, grad(energy, 1), hessian(energy, 1)))
    logdet = torch.linalg.slogdet(hessians).logabsdet
    potential = potential_of(network).at(u)
    for found, expected in zip(potential.value_gradient_hessian(x), (value, gradient, hessians), strict=True):
        assert relative(found, expected) < 1e-12
    ours = potential.gradient_logdet(x, chunk_size=7)
    assert relative(ours[0], gradient) < 1e-12
    assert relative(ours[1], logdet) < 1e-9
    vectors = torch.randn(count, 10, 2, dtype=torch.float64)
    assert relative(potential.hessian_vector(x, vectors), hessians @ vectors) < 1e-12
    some = torch.tensor([3, 1])
    assert relative(potential.linearize(x).select(some)(vectors[some]), (hessians @ vectors)[some]) < 1e-12
    cotangent = torch.randn(count, 10, dtype=torch.float64)
    leaves = [*parameters.values(), x]
    for weight in (torch.ones(count, dtype=torch.float64), torch.rand(count, dtype=torch.float64)):
        losses = [(cotangent * g).sum() + (weight * d).sum() for g, d in (ours, (gradient, logdet))]
        mine, theirs = (torch.autograd.grad(loss, leaves, retain_graph=True) for loss in losses)
        for a, b in zip(mine, theirs, strict=True):
            assert relative(a, b) < 1e-9 if b.abs().max() > 1e-12 else bool((a.abs() < 1e-12).all())
    twice = [
        torch.autograd.grad(g.square().sum() + d.sum(), x, create_graph=True)[0] for g, d in (ours, (gradient, logdet))
    ]
    again = [torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)[0] for first in twice]
    assert relative(*again) < 1e-9


def test_one_context_for_all_points_is_that_context_at_each() -> None:
    torch.manual_seed(0)
    network = moved(PICNN(3, (2,), (8, 6))).double()
    x, u = torch.randn(30, 3, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)
    one, each = potential_of(network).at(u), potential_of(network).at(u.expand(30, 2))
    torch.testing.assert_close(one.value_gradient_hessian(x), each.value_gradient_hessian(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.gradient_logdet(x), each.gradient_logdet(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.rows(slice(4)).value(x[:4]), each.rows(slice(4)).value(x[:4]))
    torch.testing.assert_close(network(x, u), one.value(x))


def test_rows_and_precision_go_with_their_contexts() -> None:
    torch.manual_seed(0)
    network = moved(PICNN(3, (2,), (8, 6)))
    x, u = torch.randn(9, 3), torch.randn(9, 2)
    potential, rows = potential_of(network).at(u), torch.tensor([7, 0])
    torch.testing.assert_close(potential.rows(rows).value(x[rows]), potential.value(x)[rows])
    double = potential.to(torch.float64)
    assert double.rows(rows).hessian(x[rows].double()).dtype == torch.float64
    torch.testing.assert_close(double.value(x.double()).float(), potential.value(x))


def test_it_starts_as_the_icnn_of_each_row_with_scales_of_one() -> None:
    torch.manual_seed(0)
    network = PICNN(2, (3,), (8, 6))
    bound = network.bind_context(torch.randn(5, 3), {})
    torch.testing.assert_close(bound.unit_scales, torch.ones(5, 14))
    torch.testing.assert_close(bound.input_scales, torch.ones(5, 2, 2))


@pytest.mark.parametrize("factory", [ProjectedGradient, DirectSoftplus, lambda: Lift(emit="all"), Lift])
def test_every_parameterization_binds_to_it(factory: Callable[[], Lift]) -> None:
    torch.manual_seed(0)
    network = PICNN(2, (3,), (6, 5), embedding=lambda: nn.Linear(3, 4))
    x, u = torch.randn(7, 2), torch.randn(7, 3)
    bound = factory().bind(network, 5)
    weights = bound.weights(torch.cat([x, u], 1))
    potential = Potential(network, weights, u)
    (potential.value(x).sum() + potential.logdet(x).sum()).backward()
    parts = [*network.parameters(), *bound.parameters()]
    assert parts
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in parts if p.requires_grad)


def test_dropout_acts_on_the_context_in_training_alone() -> None:
    torch.manual_seed(0)
    network = PICNN(2, (3,), (6, 5), context_dropout=0.5)
    with torch.no_grad():
        network.conditioner.heads[1].weight.normal_()
    x, u = torch.randn(7, 2), torch.randn(7, 3)
    assert not torch.equal(network(x, u), network(x, u))
    bound = potential_of(network).at(u)  # one mask a binding
    assert torch.equal(bound.value(x), bound.value(x))
    network.eval()
    assert torch.equal(network(x, u), network(x, u))


def test_a_flow_reaches_every_parameter() -> None:
    network = PICNN(2, (3,), (6, 5))  # a parameter without a gradient stops distributed training
    _, logdet = potential_of(network).at(torch.randn(7, 3)).gradient_logdet(torch.randn(7, 2))
    found = torch.autograd.grad(logdet.sum(), list(network.parameters()), allow_unused=True)
    assert all(gradient is not None for gradient in found)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_a_context_of_nothing_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs at least one number of context.*ICNN"):
        PICNN(2, shape)


def test_a_call_without_its_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an entry for each of its 5 points.*none given"):
        PICNN(2, (3,))(torch.zeros(5, 2))
