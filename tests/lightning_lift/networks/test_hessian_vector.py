import pytest
import torch
from torch import Tensor

from lightning_lift.networks import ICNN, ConvexNetwork
from tests.problems import GumbelEnergy, potential_of

NETWORKS = {
    "one layer": lambda dim: ICNN(dim, (9,), bias_std=1.0),
    "deep": lambda dim: ICNN(dim, (9, 7, 8), divide_by_fan_in=True, free_weight_std=1.0, bias_std=1.0),
    "gaussian softplus": lambda dim: ICNN(dim, (9, 7), activation="gaussian_softplus", bias_std=1.0),
    "flow": lambda dim: ICNN(dim, (9, 7, 8), strong_convexity="learned", actnorm=True, bias_std=1.0),
    "generic": lambda dim: GumbelEnergy(dim, mean=0.3, sd=2.0),
}


def points(dim: int) -> Tensor:
    x = torch.randn(11, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[0], x[1], x[2] = 0.0, 5.0, -5.0
    return x


def build(name: str, dim: int) -> ConvexNetwork:
    torch.manual_seed(0)
    network = NETWORKS[name](dim).double()
    if name == "flow":
        network.initialize_actnorm_(points(dim), potential_of(network).weights)
    return network


@pytest.mark.parametrize("dim", [1, 2, 5, 21])
@pytest.mark.parametrize("name", NETWORKS)
def test_products_equal_the_hessian(name: str, dim: int) -> None:
    network, x = build(name, dim), points(dim)
    potential = potential_of(network)
    v = torch.randn(11, dim, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    value, gradient, hessian = potential.value_gradient_hessian(x)
    linearization = potential.linearize(x)
    torch.testing.assert_close(linearization.value, value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linearization.gradient, gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linearization(v), hessian @ v, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(potential.hessian_vector(x, v[..., 0]), (hessian @ v)[..., 0], rtol=1e-11, atol=1e-11)
    some = torch.tensor([4, 1])
    torch.testing.assert_close(linearization.select(some)(v[some]), (hessian @ v)[some], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(linearization.select(some).gradient, gradient[some], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["deep", "flow", "generic"])
def test_products_are_differentiable_in_weights_and_points(name: str) -> None:
    network, x = build(name, 3), points(3).requires_grad_()
    v = torch.randn(11, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    potential = potential_of(network)
    inputs = [x, *network.parameters()]
    ours = torch.autograd.grad(potential.hessian_vector(x, v).square().sum(), inputs, allow_unused=True)
    product = (potential.hessian(x) @ v.unsqueeze(2)).squeeze(2)
    theirs = torch.autograd.grad(product.square().sum(), inputs, allow_unused=True)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine is None) == (reference is None)
        if mine is not None:
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9 * float(reference.abs().max()))


@pytest.mark.parametrize("name", ["deep", "generic"])
def test_products_work_under_inference_mode(name: str) -> None:
    potential, x = potential_of(build(name, 2)), points(2)
    expected = potential.hessian_vector(x, x)
    with torch.inference_mode():
        torch.testing.assert_close(potential.hessian_vector(x, x), expected)


def test_autocast_is_off_inside_products() -> None:
    potential, x = potential_of(build("deep", 2).float()), points(2).float()
    expected = potential.linearize(x)(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(potential.linearize(x)(x), expected)


def test_relu_and_vectors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="gaussian_softplus"):
        potential_of(ICNN(2, (4,), activation="relu")).linearize(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"expected \(11, 2\[, m\]\)"):
        potential_of(build("deep", 2)).hessian_vector(points(2), points(3))
