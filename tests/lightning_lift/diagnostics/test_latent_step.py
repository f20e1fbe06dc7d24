import math
from functools import partial

import pytest
import torch
from torch import nn

from lightning_lift.diagnostics import latent_of, latent_step
from lightning_lift.parameterizations import DirectSoftplus, IndependentBatch, Lift, ProjectedGradient
from tests.lightning_lift.callbacks.runs import small_data, small_model


def adam_step(model: nn.Module, batch: torch.Tensor, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent before and after one Adam step on a batch, without weight decay or projection."""
    before = latent_of(model, batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=1e-30)
    model.batch_loss(batch).backward()
    optimizer.step()
    return before, latent_of(model, batch)


def test_sizes_are_those_of_the_difference() -> None:
    before = torch.tensor([1.0, -2.0, 0.5, 0.0])
    after = before + torch.tensor([3.0, -4.0, 0.0, 0.0])
    sizes = latent_step(before, after, learning_rate=0.5)
    assert sizes == {"rms": 2.5, "max": 4.0, "rms_per_rate": 5.0, "max_per_rate": 8.0}
    assert latent_step(before, after) == {"rms": 2.5, "max": 4.0}
    assert math.isnan(latent_step(before, after, 0.0)["rms_per_rate"])


@pytest.mark.parametrize("gain", [1.0, 10.0])
def test_the_first_adam_step_of_a_direct_latent_is_the_rate_times_the_gain(gain: float) -> None:
    model = small_model(partial(DirectSoftplus, latent_gain=gain))
    (batch,) = small_data().probe_batches(1)
    sizes = latent_step(*adam_step(model, batch, 1e-3), learning_rate=1e-3)
    # Adam's first step is lr sign(g) exactly, for every number with a gradient.
    assert sizes["max_per_rate"] == pytest.approx(gain, rel=1e-3)
    assert sizes["rms_per_rate"] == pytest.approx(gain, rel=1e-2)


def test_the_first_adam_step_of_a_lift_is_the_rate_times_one_plus_the_code() -> None:
    # A code that does not move: the body is left out of the step, so the emission's arithmetic can be seen alone.
    model = small_model(partial(Lift, body_widths=(16, 16)))
    for parameter in model.parameterization.body.parameters():
        parameter.requires_grad_(False)
    (batch,) = small_data().probe_batches(1)
    model.train()
    with torch.no_grad():
        code = model.parameterization.code(batch).abs().sum().item()
    sizes = latent_step(*adam_step(model, batch, 1e-3), learning_rate=1e-3)
    assert code > 1.0
    assert sizes["max_per_rate"] == pytest.approx(1.0 + code, rel=1e-3)
    assert sizes["rms_per_rate"] == pytest.approx(1.0 + code, rel=1e-2)


def test_projected_weights_are_their_own_latent() -> None:
    model = small_model(ProjectedGradient)
    (batch,) = small_data().probe_batches(1)
    assert torch.equal(latent_of(model, batch), model.parameterization.flat_weights.detach())


def test_reading_the_latent_disturbs_nothing() -> None:
    model = small_model().eval()
    (batch,) = small_data().probe_batches(1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    latent = latent_of(model, batch)
    assert torch.equal(torch.rand(2), expected)
    assert not model.training
    assert not model.parameterization.training
    assert not latent.requires_grad
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert not torch.equal(latent, latent_of(model, batch)), "the reading is a copy, the weights have moved on"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bad_use_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\) and \(4,\)"):
        latent_step(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="one shape"):
        latent_step(torch.zeros(0), torch.zeros(0))

    class Bare:
        parameterization = None

    with pytest.raises(TypeError, match="Bare is no torch module"):
        latent_of(Bare(), torch.zeros(2, 1))


def test_a_fixed_batch_has_one_latent_whatever_batches_came_before() -> None:
    """Else the step of a lift that conditions on the batch before would hold that batch's influence."""
    model = small_model(partial(IndependentBatch, body_widths=(16, 16), slack_start=-2.0))
    fixed, *others = small_data().probe_batches(4)
    first = latent_of(model, fixed)
    for batch in others:
        model.parameterization.latent(batch)
        assert latent_step(first, latent_of(model, fixed))["max"] < 1e-5
