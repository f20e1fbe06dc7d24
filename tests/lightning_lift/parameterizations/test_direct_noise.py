import copy

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectNoise, DirectSoftplus, Parameterization
from lightning_lift.parameterizations.direct_noise import latent_std, row_hashes
from lightning_lift.testing import ParameterizationContract


class TestDirectNoise(ParameterizationContract):
    trains_on_other_weights = True

    def make(self) -> Parameterization:
        return DirectNoise(latent_noise=0.3)


class TestScheduledNoiseWithGain(ParameterizationContract):
    trains_on_other_weights = True

    def make(self) -> Parameterization:
        return DirectNoise(latent_noise=[[0, 1.0], [4, 0.1]], latent_gain=10.0)


def bound(latent_noise: float | list[list[float]] = 0.5, seed: int = 0, **arguments: float) -> DirectNoise:
    torch.manual_seed(seed)
    return DirectNoise(latent_noise, **arguments).bind(ICNN(2, (32, 32)))


def test_noise_is_standard_normal_times_the_std_in_the_latents_units() -> None:
    noisy = bound(0.5, latent_gain=10.0)
    clean = noisy.latent(None)
    noise = torch.stack([noisy.latent(torch.randn(8, 2)) - clean for _ in range(200)]).detach().double()
    count = noise.numel()
    # standard errors of mean, variance and fourth moment of count normals
    assert abs(noise.mean()) < 4 * 0.5 / count**0.5
    assert abs(noise.var() / 0.25 - 1) < 4 * (2 / count) ** 0.5
    assert abs((noise**4).mean() / 0.5**4 - 3) < 4 * (96 / count) ** 0.5
    shared = noise @ noise.T / noise.shape[1] / 0.25 - torch.eye(200)
    assert float(shared.fill_diagonal_(0).abs().max()) < 6 / noise.shape[1] ** 0.5, "noise of two batches is related"


def test_one_batch_has_one_noise_and_evaluation_none() -> None:
    noisy, direct = bound(), DirectSoftplus().bind(ICNN(2, (32, 32)))
    batch = torch.randn(8, 2)
    assert torch.equal(noisy.latent(batch), noisy.latent(batch.clone()))
    assert torch.equal(noisy.latent(batch), noisy.latent(batch.flip(0))), "the order of the rows is no information"
    assert not torch.equal(noisy.latent(batch), noisy.latent(batch + 1e-6))
    direct.raw_latent.data.copy_(noisy.raw_latent)
    assert torch.equal(noisy.eval().latent(batch), direct.latent(batch))
    assert torch.equal(bound(0.0).latent(batch), noisy.latent(batch))


def test_row_hashes_tell_rows_apart_and_their_bits_are_fair() -> None:
    rows = torch.arange(4096.0)[:, None] * torch.tensor([[1.0, 0.0]]) + torch.tensor([[0.0, 1.0]])
    hashes = torch.cat([row_hashes(rows), row_hashes(rows.flip(1))])
    assert hashes.unique().numel() == 2 * 4096 - 1  # the row (1, 1) is its own mirror image
    ones = torch.stack([(hashes >> bit & 1).double().mean() for bit in range(64)])
    assert float((ones - 0.5).abs().max()) < 5 * 0.5 / 8192**0.5
    assert torch.equal(row_hashes(rows.double()), row_hashes(rows))


def test_gradient_of_the_latent_is_that_of_direct() -> None:
    noisy = bound(latent_gain=3.0)
    rates = torch.randn(noisy.num_weights)
    (noisy.latent(torch.randn(8, 2)) @ rates).backward()
    torch.testing.assert_close(noisy.raw_latent.grad, 3.0 * rates)


def test_the_seed_is_the_runs() -> None:
    batch = torch.randn(8, 2)
    one, again, other = (bound(seed=seed).latent(batch) - bound(seed=seed).latent(None) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert float((one - other).detach().std()) > 0.5


def test_schedule_is_linear_between_its_pairs_and_constant_outside() -> None:
    noisy = bound([[2, 1.0], [4, 0.5], [5, 0.0]])
    found = []
    for _ in range(7):
        found.append(noisy.noise_std)
        noisy.after_step_()
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.75, 0.5, 0.0, 0.0])


def test_state_carries_seed_and_step() -> None:
    noisy = bound([[0, 1.0], [10, 0.0]])
    for _ in range(3):
        noisy.after_step_()
    other = bound([[0, 1.0], [10, 0.0]], seed=5)
    other.load_state_dict(copy.deepcopy(noisy.state_dict()))
    batch = torch.randn(8, 2)
    assert torch.equal(other.latent(batch), noisy.latent(batch))


def test_matched_std_has_the_total_variance_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(50, generator=generator)
    rows = 3.0 + spread * torch.randn(4000, 50, generator=generator)
    expected = float(spread.square().mean().sqrt())
    error = 0.5 * (2 / 4000 * spread.pow(4).sum() / spread.square().sum().square()) ** 0.5
    assert latent_std(rows) == pytest.approx(expected, rel=4 * float(error))
    with pytest.raises(ValueError, match="at least 2 batches"):
        latent_std(rows[:1])


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (-0.1, "latent_noise=-0.1"),
        (float("inf"), "latent_noise=inf"),
        ([], "pairs"),
        ([[0.0]], "pairs"),
        ([[0, 0.1], [0, 0.2]], "increase"),
        ([[0, float("nan")]], "finite"),
    ],
)
def test_bad_noise_is_named(noise: float | list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DirectNoise(noise)
