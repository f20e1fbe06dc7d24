import inspect

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, LearnedCode, Lift, NoBody, NoSlack, Parameterization
from lightning_lift.parameterizations.body import standardize_code
from lightning_lift.testing import ParameterizationContract


class TestNoSlack(ParameterizationContract):
    matched_start = False
    has_right_inverse = False

    def make(self) -> Parameterization:
        return NoSlack(body_widths=(16, 8))


class TestNoBody(ParameterizationContract):
    def make(self) -> Parameterization:
        return NoBody()


class TestNoBodyWithEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return NoBody(emission_width=4, slack_gain=10.0, emit="all")


class TestLearnedCode(ParameterizationContract):
    def make(self) -> Parameterization:
        return LearnedCode(body_widths=(16, 8))


class TestLearnedCodeWithEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return LearnedCode(body_widths=(16, 8), emission_width=12, emit="all", standardize_summary=False)


def bound(made: Parameterization) -> Parameterization:
    torch.manual_seed(0)
    return made.bind(ICNN(2, (8, 8)))


def test_no_slack_is_the_lift_without_slack() -> None:
    one, two = bound(NoSlack()), bound(Lift(use_slack=False))
    batch = torch.randn(10, 2)
    assert one.slack is None
    assert torch.equal(one.latent(batch), two.latent(batch))
    assert float(one.latent(batch).detach().std()) > 0.1, "the published start: a random emission"


def test_no_slack_takes_every_argument_of_a_lift_but_those_of_the_slack() -> None:
    of_slack = {"use_slack", "slack_gain", "slack_start", "slack_std"}
    lift, no_slack = (inspect.signature(kind).parameters for kind in (Lift, NoSlack))
    assert {name: p for name, p in lift.items() if name not in of_slack} == dict(no_slack)


@pytest.mark.parametrize("gain", [1.0, 10.0])
def test_no_body_is_direct_with_its_gain(gain: float) -> None:
    one, two = bound(NoBody(slack_gain=gain)), bound(DirectSoftplus(latent_gain=gain))
    rates = torch.randn(one.num_weights)
    for part in (one, two):
        (part.latent(torch.randn(4, 2)) @ rates).backward()
        assert len(list(part.parameters())) == 1
        torch.optim.Adam(part.parameters(), lr=1e-2).step()
    assert torch.equal(one.latent(), two.latent())
    assert not one.needs_calibration
    assert torch.equal(one.eval().latent(), two.latent())


def test_no_body_needs_its_slack() -> None:
    with pytest.raises(ValueError, match="use_slack=False"):
        bound(NoBody(use_slack=False))


def test_the_learned_code_takes_the_lifts_way_from_the_lifts_start() -> None:
    learned, lift = bound(LearnedCode(slack_start=-2.0)), bound(Lift(slack_start=-2.0))
    assert isinstance(learned, LearnedCode)
    assert isinstance(lift, Lift)
    code = standardize_code(learned.free_code)
    torch.testing.assert_close(learned.latent(), learned.slack + learned.emission(code))
    # Its start has the scale of the lift's code: other standard normal rows under the same body.
    code = lift.body(torch.randn(4096, 2)).mean(0)
    assert float((learned.free_code - code).detach().norm() / code.detach().norm()) < 0.2
    assert torch.equal(learned.emission.weight, lift.emission.weight)


def test_the_learned_code_depends_on_no_batch_and_trains() -> None:
    learned = bound(LearnedCode(slack_start=-2.0))
    one, two = learned.latent(torch.randn(4, 2)), learned.latent(torch.randn(9, 2))
    assert torch.equal(one, two)
    learned.calibrate([])
    assert torch.equal(learned.eval().latent(), one)
    learned.latent().square().sum().backward()
    assert learned.free_code.grad is not None
    assert float(learned.free_code.grad.norm()) > 0
    assert not any(name.startswith("body") for name, _ in learned.named_parameters())
