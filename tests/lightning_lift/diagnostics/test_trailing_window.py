import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.diagnostics import (
    ProbeRows,
    Reading,
    TrailingWindow,
    collect,
    probe_cross_covariance,
    read_cross_covariance,
    read_window,
)
from lightning_lift.parameterizations import DirectSoftplus, Lift
from tests.lightning_lift.callbacks.runs import small_data, small_model
from tests.lightning_lift.diagnostics.test_probe import Quadratic, batches


@pytest.fixture(scope="module")
def many() -> tuple[Quadratic, ProbeRows]:
    """Rows of 4096 batches of the linear body with quadratic loss, drawn once and shared out."""
    task = Quadratic()
    return task, collect(task, batches(4096, 6))


def train(model: nn.Module, batches: list[Tensor], rate: float, warm_up: int = 0) -> TrailingWindow:
    """SGD steps on the batches, with the rows of those after the warm-up."""
    window = TrailingWindow()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for step, batch in enumerate(batches):
        if step >= warm_up:
            window.record(model, batch, step)
        optimizer.zero_grad()
        model.batch_loss(batch).backward()
        optimizer.step()
    return window


def lift_model(seed: int = 0) -> nn.Module:
    return small_model(partial(Lift, body_widths=(16, 16), slack_start=-2.0))


def agree(one: Reading, two: Reading) -> list[float]:
    """Differences in units of their joint standard errors: trace and norm."""
    pairs = [("trace", "trace_error"), ("frobenius", "frobenius_error")]
    return [abs(getattr(one, v) - getattr(two, v)) / math.hypot(getattr(one, e), getattr(two, e)) for v, e in pairs]


def test_rows_are_those_of_the_training_steps() -> None:
    model, batches = lift_model(), list(small_data().probe_batches(4))
    window = TrailingWindow()
    slack = model.parameterization.slack
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(batches):
        window.record(model, batch, step)
        optimizer.zero_grad()
        latent = model.parameterization.latent(batch)
        model.batch_loss(batch, latent).backward()
        assert torch.equal(window.latents[-1], latent.detach())
        torch.testing.assert_close(window.slack_gradients[-1], slack.grad, rtol=1e-6, atol=1e-9)
        optimizer.step()
    assert window.steps == [0, 1, 2, 3]
    assert not torch.equal(window.latents[0], window.latents[1])


def test_it_agrees_with_the_probe_at_a_nearly_frozen_iterate() -> None:
    model, data = lift_model(), small_data()
    train(model, list(data.probe_batches(30, seed=1)), 1e-2)
    window = train(model, list(data.probe_batches(64, seed=2)), 1e-7).read()
    probe = probe_cross_covariance(model, data.probe_batches(64, seed=3))
    for name in ("latent_gradient", "slack"):
        trailing, fixed = getattr(window, name), getattr(probe, name)
        assert max(agree(trailing, fixed)) < 3.0
        assert trailing.p_value < 0.05
        assert fixed.p_value < 0.05
        # The agreement says something: the errors are well below what is read.
        assert trailing.frobenius_error < 0.5 * trailing.frobenius
        assert math.isnan(trailing.objective_trace)


def test_both_estimators_have_the_closed_form_as_their_limit() -> None:
    # latent = b + A z, g = H latent + C z, z ~ N(0, I / 8): Sigma = (A A^T H + A C^T) / 8 at every iterate.
    task = Quadratic()
    A, H, C = task.parameterization.emission.detach().clone(), task.H, task.C
    expected = (A @ A.T @ H + A @ C.T) / 8
    window = train(task, batches(64, 4), 1e-9).read().latent_gradient
    probe = probe_cross_covariance(task, batches(64, 5)).latent_gradient
    for reading in (window, probe):
        assert reading.trace == pytest.approx(expected.trace().item(), abs=3.0 * reading.trace_error)
    assert max(agree(window, probe)) < 3.0


@pytest.mark.parametrize("estimator", ["probe", "window"])
def test_mean_squared_error_falls_as_one_over_the_rows(estimator: str, many: tuple[Quadratic, ProbeRows]) -> None:
    task, rows = many
    A, H, C = task.parameterization.emission.detach(), task.H, task.C
    expected = (A @ A.T @ H + A @ C.T) / 8
    errors, sizes = [], [16, 32, 64, 128, 256]
    for size in sizes:
        squared = []
        for latents, gradients in zip(rows.latents.split(size), rows.gradients.split(size), strict=True):
            design = torch.ones(size, 1, dtype=torch.float64)
            if estimator == "window":
                times = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
                design = torch.cat([design, times.unsqueeze(1)], 1)
            residual = latents - design @ torch.linalg.lstsq(design, latents).solution
            matrix = residual.T @ gradients / (size - design.shape[1])
            squared.append((matrix - expected).square().sum().item())
        # The product's reading, which never forms the matrix, is of this very one.
        reading = read_window(range(size), latents, gradients, None, estimator == "window", 1).latent_gradient
        assert reading.frobenius == pytest.approx(matrix.norm().item(), rel=1e-9)
        assert reading.trace == pytest.approx(matrix.trace().item(), rel=1e-9)
        errors.append(sum(squared) / len(squared))
    x, y = torch.tensor(sizes).double().log(), torch.tensor(errors).double().log()
    slope = ((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) @ (x - x.mean()))
    # The 16 estimates of 256 rows give their mean square to about 20 %.
    assert slope.item() == pytest.approx(-1.0, abs=0.12)
    # E |S - Sigma|_F^2 = (tr Cov(l) tr Cov(g) + tr(Sigma Sigma)) / (B - 1) for Gaussian rows.
    G = H @ A + C
    stated = ((A @ A.T).trace() * (G @ G.T).trace() / 64 + (expected @ expected).trace()) / 15
    assert errors[0] == pytest.approx(stated.item(), rel=0.25)


def test_stated_errors_cover_the_closed_form_at_64_batches(many: tuple[Quadratic, ProbeRows]) -> None:
    task, rows = many
    A, H, C = task.parameterization.emission.detach(), task.H, task.C
    traces = {"trace": ((A @ A.T @ H + A @ C.T) / 8).trace().item(), "objective_trace": (A @ C.T / 8).trace().item()}
    scores: dict[str, list[float]] = {name: [] for name in traces}
    for latents, gradients in zip(rows.latents.split(64), rows.gradients.split(64), strict=True):
        # At the mean latent of these 64: g - H (l - mean), exactly, as the loss is quadratic.
        objective = gradients - (latents - latents.mean(0)) @ H
        reading = read_cross_covariance(latents, gradients, objective, 1)
        for name, expected in traces.items():
            scores[name].append((getattr(reading, name) - expected) / getattr(reading, f"{name}_error"))
    for name, values in scores.items():
        z = torch.tensor(values)
        assert abs(values[0]) < 3.0, name
        assert z.abs().max().item() < 3.9, name  # 64 draws: beyond 3.9 with probability below 1 %
        assert z.std().item() == pytest.approx(1.0, abs=0.3), name
        assert (z.abs() < 3.0).double().mean().item() >= 0.96, name


def test_detrending_takes_the_drift_out() -> None:
    model, data = lift_model(), small_data()
    rows = collect(model, data.probe_batches(48, seed=9))
    steps = list(range(100, 148))
    drift = torch.linspace(-1.0, 1.0, 48).unsqueeze(1)
    latents = rows.latents + 5.0 * drift
    gradients = rows.gradients + 2.0 * drift
    straight = read_window(steps, rows.latents, rows.gradients).latent_gradient
    drifting = read_window(steps, latents, gradients).latent_gradient
    raw = read_window(steps, latents, gradients, detrend=False).latent_gradient
    assert drifting.frobenius == pytest.approx(straight.frobenius, rel=1e-3)
    assert raw.frobenius > 100.0 * straight.frobenius


def test_a_still_direct_latent_is_roundoff_zero_without_slack() -> None:
    model, data = small_model(DirectSoftplus), small_data()
    result = train(model, list(data.probe_batches(16)), 0.0).read()
    assert result.slack is None
    assert result.latent_gradient.is_roundoff
    assert result.latent_gradient.gradient_norm > 0.0


def test_a_resume_keeps_the_rows(tmp_path: object) -> None:
    model, data = lift_model(), small_data()
    window = train(model, list(data.probe_batches(8)), 1e-3)
    torch.save(window.state_dict(), tmp_path / "state.pt")
    again = TrailingWindow()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    # As text: the objective part is NaN, which does not equal itself.
    assert repr(again.read(num_permutations=5)) == repr(window.read(num_permutations=5))
    window.clear()
    assert len(window) == 0
    assert len(again) == 8


def test_bad_use_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        TrailingWindow().read()
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="increasing"):
        read_window([0, 1, 1, 2, 3], rows, rows)
    with pytest.raises(ValueError, match="at least 4"):
        read_window([0, 1, 2], rows[:3], rows[:3])
