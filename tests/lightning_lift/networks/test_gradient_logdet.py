from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, vmap

from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.potential import Potential
from tests.problems import GumbelEnergy, Quadratic, potential_of

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # vmap of torch's own

DIMS = [1, 2, 5, 21]
NETWORKS: dict[str, Callable[[int], ICNN]] = {
    "fixed k": lambda dim: ICNN(dim, (16, 12, 8), strong_convexity=0.05, bias_std=0.3),
    "gaussian": lambda dim: ICNN(dim, (12, 16), activation="gaussian_softplus", strong_convexity=0.05, bias_std=0.3),
    "learned": lambda dim: ICNN(dim, (12, 16), strong_convexity="learned", divide_by_fan_in=True, bias_std=0.3),
    "actnorm": lambda dim: ICNN(dim, (16, 12, 8), strong_convexity="learned", actnorm=True, bias_std=0.3),
    "all": lambda dim: ICNN(
        dim,
        (8, 12, 16, 8),
        activation="gaussian_softplus",
        strong_convexity="learned",
        actnorm=True,
        divide_by_fan_in=True,
        bias_std=0.3,
    ),
    "one layer": lambda dim: ICNN(dim, (16,), strong_convexity="learned", actnorm=True),
}


def make(name: str, dim: int) -> tuple[ICNN, Tensor]:
    """A float64 network, its free scalars and ActNorms off their start, and points: 0, far out, and random ones."""
    torch.manual_seed(0)
    network = NETWORKS[name](dim).double()
    points = 2.0 * torch.randn(12, dim, dtype=torch.float64)
    network.initialize_actnorm_(points, {})
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim <= 1:
                parameter.add_(0.1 * torch.rand_like(parameter))
    special = torch.tensor([[0.0], [50.0], [-50.0]], dtype=torch.float64).expand(3, dim)
    return network, torch.cat([special, points])


def by_autograd(network: ConvexNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same two results from ``forward`` alone, by automatic differentiation."""

    def energy(parameters: dict[str, Tensor], point: Tensor) -> Tensor:
        return functional_call(network, parameters, (point.unsqueeze(0),)).squeeze(0)

    parameters = dict(network.named_parameters())
    gradient = vmap(grad(energy, argnums=1), in_dims=(None, 0))(parameters, x)
    hessians = vmap(hessian(energy, argnums=1), in_dims=(None, 0))(parameters, x)
    return gradient, torch.linalg.slogdet(hessians).logabsdet


def flow_loss(gradient: Tensor, logdet: Tensor) -> Tensor:
    return (0.5 * gradient.square().sum(1) - logdet).mean()


def weighted_loss(gradient: Tensor, logdet: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 2.0, len(logdet), dtype=logdet.dtype)
    return (weights * (torch.cos(gradient).sum(1) + torch.tanh(0.1 * logdet))).sum()


LOSSES = {"mean": flow_loss, "weighted": weighted_loss, "logdet only": lambda gradient, logdet: logdet.sum()}


def gradients(network: ConvexNetwork, x: Tensor, results: tuple[Tensor, Tensor], loss: str) -> dict[str, Tensor]:
    names, parameters = zip(*network.named_parameters(), strict=True)
    found = torch.autograd.grad(LOSSES[loss](*results), (x, *parameters), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if slope is None else slope
        for name, tensor, slope in zip(("x", *names), (x, *parameters), found, strict=True)
    }


def assert_equal(ours: dict[str, Tensor], reference: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    for name, expected in reference.items():
        scale = float(expected.abs().max())
        torch.testing.assert_close(ours[name], expected, rtol=tolerance, atol=tolerance * max(scale, 1e-6), msg=name)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_results_and_all_gradients_equal_autograd_in_float64(name: str, dim: int) -> None:
    network, x = make(name, dim)
    x.requires_grad_()
    reference, ours = by_autograd(network, x), network.gradient_logdet(x, {}, 4)
    for mine, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    for loss in ("mean", "weighted"):
        expected = gradients(network, x, by_autograd(network, x), loss)
        assert_equal(gradients(network, x, network.gradient_logdet(x, {}, 4), loss), expected)
    assert all(bool(slope.abs().max() > 0) for slope in expected.values()), "nothing may be checked against zeros only"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("chunk_size", [1, 4, 15, 100])
def test_chunked_equals_unchunked(chunk_size: int, loss: str) -> None:
    network, x = make("actnorm", 3)
    x.requires_grad_()
    whole = gradients(network, x, network.gradient_logdet(x, {}), loss)
    assert_equal(gradients(network, x, network.gradient_logdet(x, {}, chunk_size), loss), whole, 1e-12)


def test_a_weighted_loss_and_a_mean_take_two_ways_to_the_same_sums() -> None:
    """Equal weights, made unequal by one rounding, leave the way of the common gradient."""
    network, x = make("actnorm", 3)
    nearly = torch.ones(len(x), dtype=torch.float64)
    nearly[0] += 1e-15
    found = []
    for weights in (torch.ones_like(nearly), nearly):
        _, logdet = network.gradient_logdet(x, {}, 4)
        found.append(torch.autograd.grad((weights * logdet).sum(), list(network.parameters()), allow_unused=True))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


def test_float32_is_as_close_to_float64_as_its_rounding() -> None:
    network, x = make("actnorm", 21)
    exact = network.gradient_logdet(x, {})
    rounded = network.float().gradient_logdet(x.float(), {})
    for mine, expected in zip(rounded, exact, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus, lambda: Lift(emit="all")])
def test_weights_with_a_graph_of_their_own(parameterization: Callable[[], ProjectedGradient]) -> None:
    torch.manual_seed(0)
    network = ICNN(2, (8, 8), strong_convexity="learned", actnorm=True).double()
    bound = parameterization().bind(network)
    x = torch.randn(6, 2, dtype=torch.float64)
    slopes = []
    for form in (ICNN.gradient_logdet, ConvexNetwork.gradient_logdet):
        loss = flow_loss(*form(network, x, bound.weights(x)))
        parameters = [*network.parameters(), *bound.parameters()]
        slopes.append(torch.autograd.grad(loss, parameters))
    for mine, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-11)


def test_stacked_networks_pass_the_gradient_on() -> None:
    first, x = make("actnorm", 3)
    second, _ = make("gaussian", 3)

    def total(form: Callable[[ICNN, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        y, one = form(first, x[3:])
        y, two = form(second, y)
        return flow_loss(y, one + two)

    parameters = [*first.parameters(), *second.parameters()]
    ours = torch.autograd.grad(total(lambda network, points: network.gradient_logdet(points, {})), parameters)
    expected = torch.autograd.grad(total(by_autograd), parameters)
    for mine, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)


def test_a_second_differentiation_is_right() -> None:
    """``create_graph=True`` leaves the hand-written backward for one that can be differentiated again."""
    network, x = make("actnorm", 2)
    parameters = list(network.parameters())
    found = []
    for results in (network.gradient_logdet(x, {}), by_autograd(network, x)):
        first = torch.autograd.grad(weighted_loss(*results), parameters, create_graph=True, allow_unused=True)
        size = sum(slope.square().sum() for slope in first if slope is not None)
        found.append(torch.autograd.grad(size, parameters, allow_unused=True))
    for mine, reference in zip(*found, strict=True):
        assert (mine is None) == (reference is None) or not (reference if mine is None else mine).any()
        if mine is not None and reference is not None:
            torch.testing.assert_close(mine, reference, rtol=1e-8, atol=1e-8)


def test_the_backward_can_be_run_twice() -> None:
    network, x = make("actnorm", 2)
    loss = flow_loss(*network.gradient_logdet(x, {}))
    once = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)
    twice = torch.autograd.grad(loss, list(network.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize("frozen", ["input_weight", "hidden_weight", "raw_strong_convexity"])
def test_frozen_parameters_get_no_gradient(frozen: str) -> None:
    network, x = make("actnorm", 2)
    x.requires_grad_()
    full = gradients(network, x, network.gradient_logdet(x, {}), "mean")
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(frozen not in name)
    flow_loss(*network.gradient_logdet(x, {})).backward()
    for name, parameter in network.named_parameters():
        if frozen in name:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, full[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode: type) -> None:
    network, x = make("actnorm", 3)
    expected = network.gradient_logdet(x, {})
    with mode():
        for mine, reference in zip(network.gradient_logdet(x.clone(), {}), expected, strict=True):
            assert not mine.requires_grad
            torch.testing.assert_close(mine, reference.detach(), rtol=1e-12, atol=1e-12)


def test_no_points_give_no_results_and_zero_gradients() -> None:
    network, x = make("actnorm", 3)
    gradient, logdet = network.gradient_logdet(x[:0], {})
    assert gradient.shape == (0, 3) and logdet.shape == (0,)
    (gradient.sum() + logdet.sum()).backward()
    assert all(not p.grad.any() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("network", [NETWORKS["actnorm"](2), GumbelEnergy(2)], ids=["closed form", "fallback"])
def test_points_that_are_not_finite_give_nan_in_their_own_rows_only(network: ConvexNetwork, bad: float) -> None:
    x = torch.randn(5, 2)
    x[1, 0] = bad
    gradient, logdet = network.gradient_logdet(x, {})
    assert torch.isnan(logdet).tolist() == [False, True, False, False, False]
    assert torch.isfinite(gradient[[0, 2, 3, 4]]).all()
    slopes = torch.autograd.grad(flow_loss(gradient, logdet), list(network.parameters()))
    assert any(torch.isnan(slope).any() for slope in slopes), "a run that diverges must not go on with finite gradients"


@pytest.mark.parametrize("form", [ICNN.gradient_logdet, ConvexNetwork.gradient_logdet])
def test_a_hessian_that_is_not_positive_definite_gives_nan(form: Callable[..., tuple[Tensor, Tensor]]) -> None:
    network = ICNN(2, (4,), strong_convexity=0.0)
    with torch.no_grad():
        network.layers[0].input_weight[:, 1].zero_()  # flat along the second input
    gradient, logdet = form(network, torch.zeros(3, 2), {})
    assert torch.isnan(logdet).all() and torch.isfinite(gradient).all()
    slopes = torch.autograd.grad(gradient.sum(), network.layers[0].bias)
    assert torch.isfinite(slopes[0]).all(), "a log-determinant that the loss does not read must not spoil its gradient"


def test_gumbel_by_the_fallback_is_closed_form() -> None:
    network = GumbelEnergy(3, mean=1.0, sd=0.5).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    z = (x - 1.0) / 0.5
    for chunk_size in (None, 2):
        gradient, logdet = potential_of(network).gradient_logdet(x, chunk_size)
        torch.testing.assert_close(gradient, (1 - torch.exp(-z)) / 0.5)
        torch.testing.assert_close(logdet, (-z - 2 * torch.log(torch.tensor(0.5))).sum(1))


def test_the_backward_is_not_touched_by_autocast() -> None:
    network = NETWORKS["actnorm"](3)
    potential, x = potential_of(network), torch.randn(6, 3)
    expected = torch.autograd.grad(flow_loss(*potential.gradient_logdet(x)), list(network.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(flow_loss(*potential.gradient_logdet(x)), list(network.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("network", [ICNN(2, (4, 4)), Quadratic(2)], ids=["closed form", "fallback"])
def test_wrong_use_is_refused(network: ConvexNetwork) -> None:
    with pytest.raises(ValueError, match="chunk_size=0"):
        network.gradient_logdet(torch.zeros(1, 2), {}, 0)
    with pytest.raises(ValueError, match=r"expected \(N, 2\)"):
        network.gradient_logdet(torch.zeros(1, 3), {})


def test_relu_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="gaussian_softplus"):
        potential_of(ICNN(2, (4,), activation="relu")).gradient_logdet(torch.zeros(1, 2))


def test_memory_of_an_evaluation_is_bounded_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken in blocks where no backward follows; the blocks join to the same results."""
    from lightning_lift.networks import gradient_logdet as hot_path

    network, x = make("actnorm", 3)
    expected = network.gradient_logdet(x, {})
    monkeypatch.setattr(hot_path, "_BLOCK_BYTES", 4 * 8 * 36)  # four rows of 36 units in float64
    seen = []
    original = hot_path._forward

    def counted(activation: object, rows: Tensor, *rest: object, **named: object) -> object:
        seen.append(len(rows))
        return original(activation, rows, *rest, **named)

    monkeypatch.setattr(hot_path, "_forward", counted)
    with torch.no_grad():
        found = Potential(network, dict(network.named_parameters())).gradient_logdet(x)
    assert seen == [4, 4, 4, 3]
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, reference.detach(), rtol=1e-12, atol=1e-12)
