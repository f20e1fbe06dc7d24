import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_lift.diagnostics import CrossCovarianceResult, gram, read_cross_covariance


def rows(size: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latents, noise, objective = torch.randn(3, size, dim, generator=generator, dtype=torch.float64)
    return 5.0 + latents, 0.3 * latents.roll(1, 1) + noise - 2.0, objective


def brute_force(latents: Tensor, gradients: Tensor) -> Tensor:
    left, right = latents - latents.mean(0), gradients - gradients.mean(0)
    return left.T @ right / (len(latents) - 1)


@pytest.mark.parametrize(("size", "dim"), [(16, 5), (12, 40)])
@pytest.mark.parametrize("block", [7, 1 << 16])
def test_gram_reading_equals_the_full_matrix(size: int, dim: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "COLUMNS", block)
    latents, gradients, objective = rows(size, dim)
    reading = read_cross_covariance(latents, gradients, objective, num_permutations=5)
    full, part = brute_force(latents, gradients), brute_force(latents, objective)
    for value, expected in [
        (reading.trace, full.trace()),
        (reading.frobenius, full.norm()),
        (reading.asymmetry, (full - full.T).norm() / full.norm()),
        (reading.objective_trace, part.trace()),
        (reading.objective_frobenius, part.norm()),
        (reading.remainder_trace, (full - part).trace()),
        (reading.remainder_frobenius, (full - part).norm()),
        (reading.latent_norm, latents.norm()),
        (reading.gradient_norm, gradients.norm()),
        (reading.mu_eff, full.trace() / (dim * latents.abs().max() ** 2)),
    ]:
        assert value == pytest.approx(expected.item(), rel=1e-10)
    assert not reading.is_roundoff


def test_permutation_p_values_equal_those_of_full_matrices() -> None:
    latents, gradients, _ = rows(9, 4, seed=3)
    reading = read_cross_covariance(latents, gradients, num_permutations=60, seed=11)
    generator = torch.Generator().manual_seed(11)
    full = brute_force(latents, gradients)
    norm_hits = trace_hits = 0
    for _ in range(60):
        shuffled = brute_force(latents, gradients[torch.randperm(9, generator=generator)])
        norm_hits += (shuffled.norm() >= full.norm()).item()
        trace_hits += (shuffled.trace().abs() >= full.trace().abs()).item()
    assert reading.p_value == (1 + norm_hits) / 61
    assert reading.p_value_trace == (1 + trace_hits) / 61


def test_independent_rows_give_uniform_p_values_and_coupled_rows_small_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    independent, coupled = [], []
    for seed in range(60):
        latents, gradients = torch.randn(2, 16, 8, generator=generator)
        independent.append(read_cross_covariance(latents, gradients, num_permutations=39, seed=seed).p_value)
        # Antisymmetric coupling: the trace is about zero, the matrix is not.
        turned = torch.cat([latents[:, 4:], -latents[:, :4]], 1)
        coupled.append(read_cross_covariance(latents, turned, num_permutations=39, seed=seed))
    p = torch.tensor(independent)
    assert p.mean().item() == pytest.approx(0.5125, abs=3.0 / math.sqrt(12 * 60))  # uniform on 1/40 ... 1
    assert max(reading.p_value for reading in coupled) == 1 / 40
    assert sum(reading.p_value_trace > 0.05 for reading in coupled) > 40
    assert all(reading.asymmetry > 1.4 for reading in coupled)


def test_symmetric_and_antisymmetric_extremes_of_the_asymmetry() -> None:
    base = torch.randn(20, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    other = torch.randn(20, 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([base, other], 1) - torch.cat([base, other], 1).mean(0))[0]
    same = read_cross_covariance(basis, basis, num_permutations=1)
    turned = read_cross_covariance(basis, torch.stack([basis[:, 1], -basis[:, 0]], 1), num_permutations=1)
    assert same.asymmetry == pytest.approx(0.0, abs=1e-7)
    assert turned.asymmetry == pytest.approx(2.0, abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 8), st.integers(1, 6), st.integers(0, 10_000))
def test_asymmetry_is_between_0_and_2_and_p_in_range(size: int, dim: int, seed: int) -> None:
    latents, gradients, _ = rows(size, dim, seed)
    reading = read_cross_covariance(latents.float(), gradients.float(), num_permutations=9)
    assert 0.0 <= reading.asymmetry <= 2.0
    assert abs(reading.trace) <= reading.frobenius * math.sqrt(dim) * (1 + 1e-9)
    assert 0.1 <= reading.p_value <= 1.0
    assert all(isinstance(value, int | float) for value in reading.as_dict().values())


@pytest.mark.parametrize("size", [3, 63, 64])
def test_a_latent_that_does_not_move_reads_exactly_zero(size: int) -> None:
    latent = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    gradients = torch.randn(size, 50, generator=torch.Generator().manual_seed(3))
    reading = read_cross_covariance(latent.expand(size, 50), gradients, gradients)
    assert reading.is_roundoff
    assert reading.frobenius == reading.trace == reading.asymmetry == 0.0
    assert reading.p_value == reading.p_value_trace == 1.0


def test_float32_jitter_is_roundoff_and_a_real_movement_is_not() -> None:
    generator = torch.Generator().manual_seed(4)
    latent = 1.0 + torch.rand(1, 200, generator=generator)
    gradients = 1.0 + torch.randn(64, 200, generator=generator)
    jitter = torch.randint(-1, 2, (64, 200), generator=generator)
    still = read_cross_covariance(latent * (1.0 + jitter * 1.2e-7), gradients)
    moving = read_cross_covariance(latent + 1e-3 * gradients, gradients)
    assert still.is_roundoff
    assert still.frobenius > 0.0
    assert not moving.is_roundoff
    assert moving.p_value < 0.05


def test_two_readings_are_kept_apart_in_print() -> None:
    latents, gradients, _ = rows(8, 3)
    reading = read_cross_covariance(latents, gradients)
    text = str(CrossCovarianceResult(reading, None))
    assert "slack: no slack" in text
    assert "latent_gradient: |S|_F" in text
    assert math.isnan(reading.objective_trace)
    zero = read_cross_covariance(torch.zeros(4, 2), torch.ones(4, 2))
    assert math.isnan(zero.mu_eff)
    assert "round-off zero" in str(zero)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"latents": torch.zeros(2, 3), "gradients": torch.zeros(2, 3)}, "at least 3"),
        ({"gradients": torch.zeros(5, 4)}, r"\(5, 4\)"),
        ({"num_permutations": 0}, "num_permutations=0"),
        ({"latents": torch.full((5, 3), math.nan)}, "latents hold numbers that are not finite"),
        ({"objective_gradients": torch.full((5, 3), math.inf)}, "objective_gradients hold"),
    ],
)
def test_bad_rows_are_refused(change: dict[str, Tensor], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_cross_covariance(**({"latents": torch.zeros(5, 3), "gradients": torch.ones(5, 3)} | change))
