import math

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift, ProjectedGradient
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of


def test_logdet_of_a_quadratic_is_closed_form() -> None:
    potential = potential_of(Quadratic(5, sd=0.5))
    torch.testing.assert_close(potential.logdet(torch.randn(3, 5)), torch.full((3,), 5 * math.log(4.0)))


def test_logdet_equals_slogdet_of_the_hessian_in_float64() -> None:
    torch.manual_seed(0)
    potential = potential_of(ICNN(4, (16, 16), strong_convexity=0.1).double())
    x = torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(potential.logdet(x), torch.linalg.slogdet(potential.hessian(x)).logabsdet)


def test_gradient_logdet_agrees_with_the_hessian_and_runs_in_float32_under_autocast() -> None:
    potential = potential_of(ICNN(3, (8, 8), strong_convexity="learned", actnorm=True))
    x = torch.randn(5, 3)
    expected = potential.gradient(x), torch.linalg.slogdet(potential.hessian(x)).logabsdet
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = potential.gradient_logdet(x, chunk_size=2)
        assert potential.gradient_logdet(x.bfloat16())[1].dtype == torch.float32
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, reference)


def test_gradient_logdet_refuses_points_of_the_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"expected \(N, 3\)"):
        potential_of(ICNN(3, (4,))).gradient_logdet(torch.zeros(2, 4))


def test_pieces_agree_with_the_single_sweep() -> None:
    potential = potential_of(ICNN(3, (8, 8)))
    x = torch.randn(5, 3)
    value, gradient, hessian = potential.value_gradient_hessian(x)
    torch.testing.assert_close(potential.value(x), value)
    torch.testing.assert_close(potential.gradient(x), gradient)
    torch.testing.assert_close(potential.hessian(x), hessian)


def test_value_under_replaced_weights_is_that_of_the_sweep() -> None:
    """functional_call and the closed form must read the same tensors, the emitted free ones too."""
    network = ICNN(2, (8, 8))
    lift = Lift(emit="all", slack_start=-1.0).bind(network)
    x = torch.randn(5, 2)
    potential = Potential(network, lift.weights(x))
    torch.testing.assert_close(potential.value(x), potential.value_gradient(x)[0])


def test_runs_in_float32_under_autocast() -> None:
    potential = potential_of(ICNN(3, (8, 8)))
    x = torch.randn(5, 3)
    expected = potential.hessian(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(potential.hessian(x), expected)
        assert potential.value(x.bfloat16()).dtype == torch.float32
        assert torch.isfinite(potential.logdet(x)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"output_weight": None}, "missing .*output_weight"), ({"otput_weight": torch.ones(4)}, "unknown .*otput_weight")],
)
def test_misspelt_or_missing_weights_are_refused(change: dict, message: str) -> None:
    network = ICNN(1, (4, 4))
    weights = ProjectedGradient().bind(network).weights() | change
    weights = {name: tensor for name, tensor in weights.items() if tensor is not None}
    with pytest.raises(KeyError, match=message):
        Potential(network, weights)


def test_calling_a_bound_network_itself_says_what_to_do() -> None:
    network = ICNN(1, (4, 4))
    ProjectedGradient().bind(network)
    with pytest.raises(RuntimeError, match="Potential"):
        network(torch.zeros(1, 1))
