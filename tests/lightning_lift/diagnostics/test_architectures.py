from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.diagnostics import TrailingWindow, architecture_reading, collect
from lightning_lift.parameterizations import DirectSoftplus, Lift
from lightning_lift.parameterizations.controls import NoBody, NoSlack
from lightning_lift.parameterizations.other_batches import IndependentBatch
from tests.lightning_lift.callbacks.runs import small_data, small_model
from tests.lightning_lift.diagnostics.test_probe import Quadratic, batches

WIDTHS = {"body_widths": (16, 16)}
ARCHITECTURES = {
    "direct": DirectSoftplus,
    "slack only": partial(NoBody, **WIDTHS),
    "body only": partial(NoSlack, **WIDTHS),
    "full lift": partial(Lift, **WIDTHS, slack_start=-2.0),
}


def trained(parameterization: object, steps: int = 30, rate: float = 3e-3) -> nn.Module:
    model = small_model(parameterization)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for batch in small_data().probe_batches(steps, seed=11):
        optimizer.zero_grad()
        model.batch_loss(batch).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_four_architectures_read_as_measured(name: str) -> None:
    reading = architecture_reading(trained(ARCHITECTURES[name]), small_data().probe_batches(64))
    latent_gradient, slack = reading.probe.latent_gradient, reading.probe.slack
    moves = name in ("body only", "full lift")
    assert latent_gradient.is_roundoff is not moves
    assert (slack is None) is (name in ("direct", "body only"))
    assert (reading.movement is None) is not moves
    if slack is not None:
        assert slack.is_roundoff is not moves
    if moves:
        assert latent_gradient.p_value < 0.05
        assert latent_gradient.frobenius > 0.0
        assert latent_gradient.objective_frobenius > 0.0


def test_an_independent_batch_leaves_the_latents_own_movement() -> None:
    reading = architecture_reading(trained(partial(IndependentBatch, **WIDTHS, slack_start=-2.0)), probes())
    latent_gradient = reading.probe.latent_gradient
    assert latent_gradient.p_value < 0.05, "the total does not vanish"
    assert latent_gradient.objective_p_value > 0.05, "the objective part is consistent with zero"
    assert latent_gradient.objective_trace == pytest.approx(0.0, abs=3.0 * latent_gradient.objective_trace_error)
    movement = reading.movement
    assert movement is not None
    assert movement.rest_p_value > 0.05, "the total is Cov(latent) H within its error"
    assert movement.rest_trace == pytest.approx(0.0, abs=3.0 * movement.rest_trace_error)
    assert movement.explained_frobenius > 2.0 * movement.rest_null_frobenius
    lift = architecture_reading(trained(ARCHITECTURES["full lift"]), probes()).movement
    assert lift is not None
    assert lift.rest_p_value < 0.05, "the lift's own batch leaves more than the movement"


def probes() -> list[Tensor]:
    return list(small_data().probe_batches(64, seed=5))


def test_movement_is_the_full_matrix_product_on_a_quadratic() -> None:
    task, own = Quadratic(), batches(24)
    rows = collect(task, own)
    movement = architecture_reading(task, own, num_permutations=20).movement
    assert movement is not None
    left = rows.latents - rows.latents.mean(0)
    explained = left.T @ left @ task.H / 23
    total = left.T @ (rows.gradients - rows.gradients.mean(0)) / 23
    assert movement.explained_frobenius == pytest.approx(explained.norm().item(), rel=1e-9)
    assert movement.explained_trace == pytest.approx(explained.trace().item(), rel=1e-9)
    assert movement.rest_frobenius == pytest.approx((total - explained).norm().item(), rel=1e-9)
    assert movement.rest_trace == pytest.approx((total - explained).trace().item(), rel=1e-9)
    # Same batch in weights and loss: what is left is the objective part, and it is no noise.
    assert movement.rest_p_value < 0.05


def test_agreement_is_in_joint_standard_errors() -> None:
    model, window = trained(ARCHITECTURES["full lift"]), TrailingWindow()
    for step, batch in enumerate(small_data().probe_batches(40, seed=2)):
        window.record(model, batch, step)
    reading = architecture_reading(model, small_data().probe_batches(40, seed=3), window.read(num_permutations=20), 20)
    scores = reading.agreement()
    assert set(scores) == {f"{r}/{n}" for r in ("latent_gradient", "slack") for n in ("trace", "frobenius")}
    assert all(abs(score) < 3.0 for score in scores.values()), "the same iterate"
    one, two = reading.probe.slack, reading.window.slack
    expected = (two.trace - one.trace) / (one.trace_error**2 + two.trace_error**2) ** 0.5
    assert scores["slack/trace"] == pytest.approx(expected)
    plain = reading.as_dict()
    assert plain["probe/slack"]["num_batches"] == 40
    without = architecture_reading(trained(DirectSoftplus, 1), probes()[:3], num_permutations=2)
    assert without.agreement() == {}
    assert without.as_dict()["movement"] is None
    assert without.as_dict()["probe/slack"] is None
