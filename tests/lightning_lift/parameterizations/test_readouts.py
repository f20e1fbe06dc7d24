import pytest
import torch

from lightning_lift.parameterizations.readouts import Readout, make_readout

READOUTS = [
    ("softplus", 1.0, None),
    ("softplus", 4.0, None),
    ("floored_relu", 1.0, 1e-3),
    ("exp", 1.0, None),
    ("square", 1.0, None),
]


@pytest.fixture(params=READOUTS, ids=lambda p: f"{p[0]}-{p[1]}")
def readout(request: pytest.FixtureRequest) -> Readout:
    return make_readout(*request.param)


def test_inverse_is_a_right_inverse_above_the_floor(readout: Readout) -> None:
    weights = torch.logspace(-5.9, 3, 200, dtype=torch.float64).clamp(min=readout.floor)
    torch.testing.assert_close(readout.value(readout.inverse(weights)), weights, rtol=1e-10, atol=0.0)


def test_below_the_floor_the_floor_comes_back(readout: Readout) -> None:
    weights = torch.tensor([0.0, readout.floor / 3], dtype=torch.float64)
    latent = readout.inverse(weights)
    assert torch.isfinite(latent).all()
    torch.testing.assert_close(readout.value(latent), torch.full_like(weights, readout.floor), rtol=1e-9, atol=0.0)


def test_slope_is_the_derivative(readout: Readout) -> None:
    low = 0.1 if isinstance(readout, type(make_readout("square"))) else -30.0
    latent = torch.linspace(low, 30.0, 101, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(readout.value(latent).sum(), latent)
    torch.testing.assert_close(slope, readout.slope(latent), rtol=1e-12, atol=1e-300)


def test_softplus_shoulder_is_where_the_design_says() -> None:
    softplus = make_readout("softplus")
    latent = torch.tensor(-2.944438979166440, dtype=torch.float64)
    assert float(softplus.slope(latent)) == pytest.approx(0.05, rel=1e-12)
    assert float(softplus.value(latent)) == pytest.approx(0.0512932943875505, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("softmax",), "'softmax'"),
        (("softplus", 0.0), "beta=0.0"),
        (("exp", 2.0), "beta=2.0"),
        (("softplus", 1.0, -1.0), "floor=-1.0"),
        (("exp", 1.0, 0.0), "floor=0"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_readout(*arguments)
