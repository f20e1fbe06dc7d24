import mpmath
import pytest
import torch

from lightning_lift.networks.activations import make_activation

POINTS = [0.0, 1e-8, -1e-8, 1.0, -1.0, 5.0, -5.0, 19.9, 20.1, 30.0, -30.0, 50.0, -50.0]


def reference(name: str, x: float) -> tuple[float, float, float, float]:
    with mpmath.workdps(60):
        x = mpmath.mpf(x)
        if name == "softplus":
            s = 1 / (1 + mpmath.exp(-x))
            return float(mpmath.log1p(mpmath.exp(x))), float(s), float(s * (1 - s)), float(s * (1 - s) * (1 - 2 * s))
        phi, cdf = mpmath.npdf(x), mpmath.ncdf(x)
        return float(x * cdf + phi), float(cdf), float(phi), float(-x * phi)


@pytest.mark.parametrize("name", ["softplus", "gaussian_softplus"])
@pytest.mark.parametrize("x", POINTS)
def test_value_and_derivatives_equal_a_high_precision_reference(name: str, x: float) -> None:
    activation = make_activation(name)
    point = torch.tensor(x, dtype=torch.float64)
    value, first, second, third = reference(name, x)
    # The Gaussian value cancels far out on the left: absolute accuracy there.
    assert float(activation.value(point)) == pytest.approx(value, rel=1e-12, abs=1e-15)
    assert float(activation.first(point)) == pytest.approx(first, rel=1e-12, abs=1e-300)
    assert float(activation.second(point)) == pytest.approx(second, rel=1e-12, abs=1e-300)
    assert float(activation.third(point)) == pytest.approx(third, rel=1e-12, abs=1e-16 * second)


@pytest.mark.parametrize("name", ["softplus", "gaussian_softplus"])
def test_autograd_of_the_value_is_the_closed_form(name: str) -> None:
    activation = make_activation(name)
    x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(activation.value(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    torch.testing.assert_close(first, activation.first(x), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(second, activation.second(x), rtol=1e-12, atol=1e-15)
    (third,) = torch.autograd.grad(activation.second(x).sum(), x)
    torch.testing.assert_close(third, activation.third(x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["softplus", "gaussian_softplus"])
def test_the_ways_of_the_hot_path_give_the_same_numbers(name: str, dtype: torch.dtype) -> None:
    activation = make_activation(name)
    x = torch.cat(
        [torch.tensor([*POINTS, 79.9, 80.1, 1e4, -1e4], dtype=dtype), torch.linspace(-90, 90, 997, dtype=dtype)]
    )
    out = torch.full_like(x, torch.nan)
    activation.value_into(x, out)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out, activation.value(x), rtol=4 * eps, atol=4 * eps)
    for together, alone in zip(
        activation.derivatives(x), (activation.first(x), activation.second(x), activation.third(x)), strict=True
    ):
        assert torch.equal(together, alone) and torch.isfinite(together).all()


@pytest.mark.parametrize("name", ["softplus", "gaussian_softplus", "relu"])
def test_convex_and_non_decreasing(name: str) -> None:
    x = torch.linspace(-60, 60, 4001, dtype=torch.float64)
    value = make_activation(name).value(x)
    assert (value.diff() >= -1e-15).all()
    assert (value.diff().diff() >= -1e-14 * 60).all()


def test_relu_has_no_second_derivative() -> None:
    relu = make_activation("relu")
    assert relu.first(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 1.0]
    with pytest.raises(NotImplementedError, match="softplus"):
        relu.second(torch.zeros(1))
    with pytest.raises(NotImplementedError, match="softplus"):
        relu.third(torch.zeros(1))


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'tanh'.*softplus"):
        make_activation("tanh")
