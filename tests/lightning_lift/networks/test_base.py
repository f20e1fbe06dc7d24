import pytest
import torch

from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.testing import NetworkContract
from tests.problems import GumbelEnergy, Quadratic, potential_of


class TestQuadraticThroughTheFallback(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return Quadratic(dim, mean=0.5, sd=2.0)


def test_fallback_equals_the_closed_form_of_a_gumbel_energy() -> None:
    network = GumbelEnergy(3, mean=1.0, sd=0.5).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    value, gradient, hessian = potential_of(network).value_gradient_hessian(x)
    z = (x - 1.0) / 0.5
    torch.testing.assert_close(value, (z + torch.exp(-z)).sum(1))
    torch.testing.assert_close(gradient, (1 - torch.exp(-z)) / 0.5)
    torch.testing.assert_close(hessian, torch.diag_embed(torch.exp(-z) / 0.25))


def test_fallback_is_differentiable_in_the_weights() -> None:
    network = Quadratic(2).double()
    weights = {"stiffness": torch.tensor(3.0, dtype=torch.float64, requires_grad=True)}
    hessian = network.derivatives(torch.ones(4, 2, dtype=torch.float64), weights).hessian
    assert hessian is not None
    (slope,) = torch.autograd.grad(hessian.diagonal(dim1=1, dim2=2).sum(), weights["stiffness"])
    assert float(slope) == pytest.approx(8.0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("network", [Quadratic(2), ICNN(2, (8, 8))], ids=["fallback", "closed form"])
def test_derivatives_work_where_autograd_is_off(mode: type, network: ConvexNetwork) -> None:
    x = torch.randn(4, 2)
    expected = potential_of(network).value_gradient_hessian(x)
    with mode():
        found = potential_of(network).value_gradient_hessian(x.clone())
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two.detach())


@pytest.mark.parametrize("order", [0, 3])
def test_other_orders_are_refused(order: int) -> None:
    with pytest.raises(ValueError, match=f"order={order}"):
        Quadratic(1).derivatives(torch.zeros(1, 1), {}, order)
