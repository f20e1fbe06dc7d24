"""The identity on a quadratic loss, where it is exact, and its remainder on others."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.diagnostics import collect, hessian_products, noise_directions, update_noise
from lightning_lift.diagnostics.update_noise import split_noise, split_noise_trace
from lightning_lift.parameterizations import DirectSoftplus, Lift
from tests.lightning_lift.callbacks.runs import small_data, small_model

DIM, WEIGHTS, ROWS = 3, 6, 8


class Linear(nn.Module):
    """latent = slack + A mean(batch)."""

    slack_gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.slack = nn.Parameter(torch.randn(WEIGHTS, generator=generator, dtype=torch.float64))
        self.emission = nn.Parameter(torch.randn(WEIGHTS, DIM, generator=generator, dtype=torch.float64))

    def latent(self, batch: Tensor | None = None) -> Tensor:
        return self.slack + self.emission @ batch.mean(0)


class Task(nn.Module):
    """loss = latent^T H latent / 2 + latent^T C mean(batch) + quartic sum latent^4 / 4."""

    def __init__(self, quartic: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.parameterization = Linear()
        root = torch.randn(WEIGHTS, WEIGHTS, generator=generator, dtype=torch.float64)
        self.H = root @ root.T
        self.C = torch.randn(WEIGHTS, DIM, generator=generator, dtype=torch.float64)
        self.quartic = quartic

    def batch_loss(self, batch: Tensor, latent: Tensor | None = None) -> Tensor:
        latent = self.parameterization.latent(batch) if latent is None else latent
        quadratic = 0.5 * latent @ self.H @ latent + latent @ self.C @ batch.mean(0)
        return quadratic + 0.25 * self.quartic * latent.pow(4).sum()


def batches(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64) for _ in range(count)]


def covariance(a: Tensor, b: Tensor) -> Tensor:
    return (a - a.mean(0)).T @ (b - b.mean(0)) / (len(a) - 1)


def test_the_identity_is_exact_on_a_quadratic_loss() -> None:
    task, probes = Task(), batches(16)
    rows = collect(task, probes)
    readings = update_noise(task, probes, with_trace=True)
    assert [reading.direction for reading in readings] == ["gradient", "noise", "latent", "random", "trace"]
    sigma0 = covariance(rows.latents, rows.objective_gradients)
    sigma = covariance(rows.latents, rows.gradients)
    spread = covariance(rows.latents, rows.latents)
    matrices = {
        "total": covariance(rows.gradients, rows.gradients),
        "objective": covariance(rows.objective_gradients, rows.objective_gradients),
        "coupling": task.H @ sigma0 + sigma0.T @ task.H,
        "jitter": task.H @ spread @ task.H,
        "coupling_total": task.H @ sigma + sigma.T @ task.H,
    }
    directions = noise_directions(rows)
    for reading in readings:
        e = directions.get(reading.direction)
        expected = {name: m.trace() if e is None else e @ m @ e for name, m in matrices.items()}
        for name, value in expected.items():
            assert getattr(reading, name) == pytest.approx(value.item(), rel=1e-9), (reading.direction, name)
        assert abs(reading.remainder) <= 1e-9 * reading.total
        assert reading.total == pytest.approx(reading.objective + reading.coupling + reading.jitter, rel=1e-9)
        assert reading.coupling_total == pytest.approx(reading.coupling + 2.0 * reading.jitter, rel=1e-9)


def test_the_remainder_of_another_loss_is_reported() -> None:
    quartic = update_noise(Task(0.5), batches(16), with_trace=True)
    assert all(abs(reading.remainder) > 1e-3 * reading.total for reading in quartic)
    for reading in quartic:
        parts = reading.objective + reading.coupling + reading.jitter + reading.remainder
        assert reading.total == pytest.approx(parts, rel=1e-9)
    # A latent that hardly moves sees a quadratic: the remainder falls faster than the jitter.
    still = Task(0.5)
    with torch.no_grad():
        still.parameterization.emission.mul_(1e-3)
    small, large = update_noise(still, batches(16), with_trace=True)[-1], quartic[-1]
    assert abs(small.remainder) / small.jitter < 0.05 * abs(large.remainder) / large.jitter


def test_population_values_within_three_standard_errors() -> None:
    task = Task()
    A = task.parameterization.emission.detach()
    e = torch.nn.functional.one_hot(torch.tensor(2), WEIGHTS).double()
    # mean(batch) ~ N(0, I / ROWS): Sigma0 = A C^T / ROWS, Cov(l) = A A^T / ROWS, Cov(g0) = C C^T / ROWS.
    expected = {
        "objective": (e @ task.C @ task.C.T @ e) / ROWS,
        "coupling": 2.0 * (e @ task.H @ A @ task.C.T @ e) / ROWS,
        "jitter": (e @ task.H @ A @ A.T @ task.H @ e) / ROWS,
    }
    (reading,) = update_noise(task, batches(64, 5), {"third": 7.0 * e})
    for name, value in expected.items():
        assert getattr(reading, name) == pytest.approx(value.item(), abs=3.0 * getattr(reading, f"{name}_error"))
        assert getattr(reading, f"{name}_error") < 0.5 * abs(value.item())


def test_errors_are_those_of_leaving_a_batch_out() -> None:
    g, o, j = torch.randn(3, 9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    readings = split_noise(g, o, j, ("a", "b"))
    coupling = []
    for i in range(9):
        kept = [k for k in range(9) if k != i]
        coupling.append(2.0 * covariance(o[kept], j[kept])[1, 1])
    without = torch.stack(coupling)
    expected = ((without - without.mean()).square().sum() * 8 / 9).sqrt().item()
    assert readings[1].coupling_error == pytest.approx(expected, rel=1e-10)
    trace = split_noise_trace(g, o, j)
    assert trace.coupling == pytest.approx(sum(reading.coupling for reading in readings), rel=1e-12)
    assert "coupling" in str(trace)


def test_hessian_products_equal_the_full_hessian_of_a_real_model() -> None:
    model = small_model(partial(Lift, body_widths=(16, 16), slack_start=-2.0)).double()
    probes = [batch.double() for batch in small_data().probe_batches(3)]
    at = model.parameterization.slack.detach()
    vectors = torch.randn(2, len(at), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    products = hessian_products(model, probes, at, vectors)
    model.train()

    def loss(latent: Tensor) -> Tensor:
        return torch.stack([model.batch_loss(batch, latent) for batch in probes]).mean()

    full = torch.autograd.functional.hessian(loss, at)
    torch.testing.assert_close(products, vectors @ full, rtol=1e-8, atol=1e-12)


def test_groups_of_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_lift.diagnostics import latent_hessian

    model, probes = small_model().double(), [b.double() for b in small_data().probe_batches(5)]
    at = model.parameterization.slack.detach()
    vectors = torch.ones(1, len(at), dtype=torch.float64)
    whole = hessian_products(model, probes, at, vectors)
    monkeypatch.setattr(latent_hessian, "_MOST_ROWS", 70)
    torch.testing.assert_close(hessian_products(model, probes, at, vectors), whole, rtol=1e-9, atol=1e-12)


def test_a_direct_latent_has_objective_noise_alone() -> None:
    model = small_model(DirectSoftplus)
    for reading in update_noise(model, small_data().probe_batches(8), with_trace=True):
        assert reading.direction != "latent", "a latent that does not move has no direction"
        assert reading.objective == reading.total > 0.0
        assert reading.coupling == reading.jitter == reading.remainder == 0.0


def test_a_lift_in_training_has_all_parts() -> None:
    model = small_model()
    trace = update_noise(model, small_data().probe_batches(48), with_trace=True)[-1]
    assert trace.jitter > 3.0 * trace.jitter_error > 0.0
    assert trace.total == pytest.approx(trace.objective + trace.coupling + trace.jitter + trace.remainder, rel=1e-5)
    assert not model.parameterization.slack.grad


def test_bad_use_is_refused() -> None:
    task = Task()
    with pytest.raises(ValueError, match="'zero' has shape"):
        update_noise(task, batches(4), {"zero": torch.zeros(WEIGHTS)})
    with pytest.raises(ValueError, match="do not fit a latent"):
        hessian_products(task, batches(3), torch.zeros(WEIGHTS), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no batches"):
        hessian_products(task, [], torch.zeros(WEIGHTS), torch.zeros(2, WEIGHTS))
    with pytest.raises(ValueError, match="at least 3 batches"):
        update_noise(task, batches(2))
    with pytest.raises(ValueError, match="diverged"):
        update_noise(task, [torch.full((2, DIM), torch.nan, dtype=torch.float64)] * 3, {"e": torch.ones(WEIGHTS)})
