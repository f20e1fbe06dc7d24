import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from lightning_lift.diagnostics.escape_problems import EscapeProblem, ShoulderNoise, double_well, make_problem, shoulder

PROBLEMS = [double_well(1.0), double_well(0.3), shoulder(1.0), shoulder(2.0, 0.4, 3.0), shoulder(1.0, 1e-6)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.name}-{problem.barrier:g}")
def test_gradient_bottom_and_top(problem: EscapeProblem) -> None:
    grid = torch.linspace(problem.reflecting, problem.absorbing, 2001, dtype=torch.float64).requires_grad_()
    values = problem.value(grid)
    (gradient,) = torch.autograd.grad(values.sum(), grid)
    torch.testing.assert_close(problem.gradient(grid), gradient, rtol=1e-9, atol=1e-12)
    values = values.detach()
    bottom = problem.value(torch.tensor([problem.bottom], dtype=torch.float64))
    assert float(values.min()) == pytest.approx(float(bottom), abs=1e-9)
    after = values[grid.detach() >= problem.bottom]
    assert problem.barrier == pytest.approx(float(after.max() - values.min()), rel=1e-5)
    curvatures = [abs(problem.curvature_at(float(point))) for point in grid.detach()[1:-1:20]]
    assert problem.stiffness == pytest.approx(max(curvatures), rel=0.05)


@pytest.mark.parametrize(("sigma_s", "barrier"), [(0.05, 1.0), (0.01, 3.0), (0.5, 0.2)])
def test_shoulder_is_a_loss_seen_through_the_softplus(sigma_s: float, barrier: float) -> None:
    problem = shoulder(barrier, sigma_s)
    edge = torch.tensor([problem.absorbing], dtype=torch.float64)
    assert float(torch.sigmoid(edge)) == pytest.approx(sigma_s)
    assert problem.barrier == pytest.approx(barrier)
    grid = torch.linspace(problem.reflecting, problem.absorbing, 11, dtype=torch.float64)
    ratio = problem.gradient(grid) / torch.sigmoid(grid)
    torch.testing.assert_close(ratio, ratio[:1].expand(11))  # one slope of the loss in theta
    assert problem.slope_at(problem.absorbing) == pytest.approx(float(problem.gradient(grid).max()))


def test_the_default_edge_is_that_of_the_shoulder_statistics() -> None:
    assert make_problem("shoulder").absorbing == pytest.approx(-2.9444, abs=1e-4)


def seen_through_softplus(slope: float, curvature: float, latent: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss of the given first and second derivative in the weight at this latent."""
    here = softplus(latent)

    def loss(u: Tensor) -> Tensor:
        return slope * softplus(u) + 0.5 * curvature * (softplus(u) - here).square()

    return loss


def test_noise_of_a_latent_on_the_shoulder() -> None:
    """A scalar loss L(psi(latent)) with a jittering latent: the update's variance, by sampling, is the formula's."""
    slope, curvature, noise_std, jitter_std, correlation = 1.5, 0.7, 0.8, 0.6, -0.4
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(2, 400_000, generator=generator, dtype=torch.float64)
    noise = noise_std * draws[0]
    jitter = jitter_std * (correlation * draws[0] + math.sqrt(1.0 - correlation**2) * draws[1])
    for sigma_s in (1e-2, 1e-3):
        latent = torch.tensor(math.log(sigma_s / (1.0 - sigma_s)), dtype=torch.float64)
        hessian = sigma_s**2 * curvature + sigma_s * (1.0 - sigma_s) * slope
        assert float(torch.func.hessian(seen_through_softplus(slope, curvature, latent))(latent)) == pytest.approx(
            hessian, rel=1e-6
        )
        covariance = sigma_s * correlation * noise_std * jitter_std
        terms = ShoulderNoise(
            objective=noise_std**2,
            coupling=2.0 * hessian * covariance / sigma_s**2,
            jitter=(hessian * jitter_std / sigma_s) ** 2,
        )
        update = sigma_s * noise + hessian * jitter
        assert float(update.var()) == pytest.approx(terms.lifted(sigma_s), rel=0.02)
        assert terms.direct(sigma_s) == pytest.approx((sigma_s * noise_std) ** 2)
    # The constant has a limit: the order is the direct one's.
    limit = noise_std**2 + 2 * slope * correlation * noise_std * jitter_std + (slope * jitter_std) ** 2
    assert terms.lifted_constant == pytest.approx(limit, rel=5e-3)


def test_errors_name_the_value() -> None:
    with pytest.raises(ValueError, match=r"barrier=0\.0"):
        double_well(0.0)
    with pytest.raises(ValueError, match=r"sigma_s=1\.0"):
        shoulder(1.0, 1.0)
    with pytest.raises(ValueError, match="width=0"):
        shoulder(1.0, 0.05, 0.0)
    with pytest.raises(ValueError, match="'other' is not known"):
        make_problem("other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"coupling=-2"):
        ShoulderNoise(coupling=-2.0)
    with pytest.raises(ValueError, match=r"eta=0"):
        ShoulderNoise(eta=0.0)
