import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Parameterization
from lightning_lift.testing import ParameterizationContract


class TestDirectSoftplus(ParameterizationContract):
    def make(self) -> Parameterization:
        return DirectSoftplus()


class TestLatentGain(ParameterizationContract):
    def make(self) -> Parameterization:
        return DirectSoftplus(latent_gain=10.0)


class TestExp(ParameterizationContract):
    def make(self) -> Parameterization:
        return DirectSoftplus(readout="exp")


class TestSquare(ParameterizationContract):
    def make(self) -> Parameterization:
        return DirectSoftplus(readout="square")


class TestFlooredRelu(ParameterizationContract):
    def make(self) -> Parameterization:
        return DirectSoftplus(readout="floored_relu", floor=1e-3)


def test_the_latent_moves_gain_times_as_far_under_adam() -> None:
    moved = {}
    for gain in (1.0, 10.0):
        torch.manual_seed(0)
        direct = DirectSoftplus(latent_gain=gain).bind(ICNN(1, (8, 8)))
        before = direct.latent().detach().clone()
        optimizer = torch.optim.Adam(direct.parameters(), lr=1e-3)
        direct.weights()["output_weight"].sum().backward()
        optimizer.step()
        moved[gain] = float((direct.latent() - before)[-8:].abs().mean())
    assert moved[1.0] == pytest.approx(1e-3, rel=1e-3)
    assert moved[10.0] == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("gain", [0.0, -1.0, float("inf")])
def test_bad_gain_is_named(gain: float) -> None:
    with pytest.raises(ValueError, match=f"latent_gain={gain}"):
        DirectSoftplus(latent_gain=gain)
