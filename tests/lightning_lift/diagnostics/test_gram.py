import math

import pytest
import torch
from torch import Tensor

from lightning_lift.diagnostics.gram import centred, jackknife_error, paired_gram


def rows(size: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    latents, noise = torch.randn(2, size, dim, generator=generator, dtype=torch.float64)
    return 5.0 + latents, 0.5 * latents + noise


def covariance(latents: Tensor, gradients: Tensor, times: Tensor | None) -> Tensor:
    design = torch.ones(len(latents), 1, dtype=torch.float64)
    if times is not None:
        design = torch.cat([design, times.double().unsqueeze(1)], 1)
    residuals = [x - design @ torch.linalg.lstsq(design, x).solution for x in (latents, gradients)]
    return residuals[0].T @ residuals[1] / (len(latents) - design.shape[1])


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("block", [1, 3, 5])
def test_jackknife_equals_leaving_out_by_hand(timed: bool, block: int) -> None:
    latents, gradients = rows(17, 4)
    times = 100.0 + torch.arange(17) ** 1.5 if timed else None
    gram = paired_gram(latents, gradients, times)
    full = covariance(latents, gradients, times)
    assert gram.frobenius == pytest.approx(full.norm().item(), rel=1e-10)
    assert gram.trace == pytest.approx(full.trace().item(), rel=1e-10)
    norms, traces = [], []
    for out in torch.arange(17).tensor_split(17 // block):
        kept = [i for i in range(17) if i not in out.tolist()]
        without = covariance(latents[kept], gradients[kept], None if times is None else times[kept])
        norms.append(without.norm())
        traces.append(without.trace())
    errors = gram.jackknife(block)
    assert errors.frobenius == pytest.approx(jackknife_error(torch.stack(norms)), rel=1e-8)
    assert errors.trace == pytest.approx(jackknife_error(torch.stack(traces)), rel=1e-8)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    sample = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    without = (sample.sum() - sample) / 29
    assert jackknife_error(without) == pytest.approx((sample.std() / math.sqrt(30)).item(), rel=1e-12)


def test_a_line_in_time_is_taken_off() -> None:
    latents, gradients = rows(20, 6)
    times = torch.arange(20, dtype=torch.float64)
    slope = torch.linspace(-50.0, 50.0, 6, dtype=torch.float64)
    drifting = latents + times.unsqueeze(1) * slope
    level = paired_gram(latents, gradients, times)
    assert paired_gram(drifting, gradients, times).frobenius == pytest.approx(level.frobenius, rel=1e-9)
    assert paired_gram(drifting, gradients).frobenius > 5.0 * level.frobenius, "the drift is all that is seen"
    still = torch.ones(20, 6)
    assert torch.equal(centred(still, times), torch.zeros(20, 6, dtype=torch.float64))


def test_errors_match_the_spread_over_repetitions() -> None:
    # Rows l ~ N(0, I), g = l / 2 + N(0, I): the spread of the estimates over 120 repetitions is what the error says.
    estimates, errors = [], []
    for seed in range(120):
        gram = paired_gram(*rows(64, 3, seed))
        errors.append(list(gram.jackknife()))
        estimates.append([gram.trace, gram.frobenius])
    spread, stated = torch.tensor(estimates).std(0), torch.tensor(errors).square().mean(0).sqrt()
    # A standard deviation of 120 draws is known to 7 %; the jackknife errs on the side of too large.
    assert torch.allclose(stated / spread, torch.ones(2), atol=0.2)


def test_dependent_rows_need_blocks() -> None:
    # Rows that persist: l_t = 0.9 l_(t-1) + e, g likewise and independent. One row at a time understates the error.
    noise = torch.randn(2, 50, 240, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t in range(1, 240):
        noise[:, :, t] += 0.9 * noise[:, :, t - 1]
    grams = [paired_gram(latents, gradients) for latents, gradients in zip(*noise, strict=True)]
    traces = [gram.trace for gram in grams]
    single = [gram.jackknife().trace for gram in grams]
    blocked = [gram.jackknife(20).trace for gram in grams]
    spread = torch.tensor(traces).std().item()
    assert torch.tensor(single).square().mean().sqrt().item() < 0.5 * spread
    assert torch.tensor(blocked).square().mean().sqrt().item() == pytest.approx(spread, rel=0.3)


def test_the_null_is_what_noise_alone_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    latents, gradients = torch.randn(2, 64, 50, generator=generator, dtype=torch.float64)
    null = paired_gram(latents, gradients).permutation_null(200, torch.Generator().manual_seed(1))
    # E |S|_F^2 = tr Cov(l) tr Cov(g) / (B - 1) for independent rows.
    assert null.frobenius == pytest.approx(50.0 / math.sqrt(63.0), rel=0.1)


@pytest.mark.parametrize("block", [0, 9, 20])
def test_bad_blocks_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match=f"block={block} of 12 rows"):
        paired_gram(*rows(12, 2)).jackknife(block)


@pytest.mark.parametrize("times", [torch.zeros(12), torch.arange(11)])
def test_bad_times_are_refused(times: Tensor) -> None:
    with pytest.raises(ValueError, match="12 rows"):
        paired_gram(*rows(12, 2), times)
