"""ADMM on nonnegative least squares, whose solution scipy knows, and on a density."""

import copy
import functools
import math

import lightning as L
import pytest
import scipy.optimize
import torch
from torch import Tensor

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import ADMM, Parameterization, ProjectedGradient
from lightning_lift.testing import ParameterizationContract

ROWS = 200


class TestADMM(ParameterizationContract):
    trains_on_other_weights = True

    def make(self) -> Parameterization:
        return ADMM()


class TestADMMWithInnerSteps(ParameterizationContract):
    trains_on_other_weights = True

    def make(self) -> Parameterization:
        return ADMM(rho=10.0, inner_steps=3)


def bound(parameterization: Parameterization) -> Parameterization:
    torch.manual_seed(0)
    return parameterization.bind(ICNN(1, (4, 4)).double())


def problem(size: int) -> tuple[Tensor, Tensor]:
    """A and y of f(w) = |A w - y|^2 / 2, with curvatures from 0.5 to 1.8; about half of the solution is zero."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(ROWS, size, generator=generator, dtype=torch.float64) / ROWS**0.5
    return matrix, matrix @ torch.randn(size, generator=generator, dtype=torch.float64)


def objective(weights: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (matrix @ weights - target).square().sum()


def descend(parameterization: Parameterization, rate: float, steps: int, every: int = 0) -> list[Tensor]:
    """Gradient descent as a module makes it; gives the feasible weights after every so many steps."""
    matrix, target = problem(parameterization.num_weights)
    optimizer = torch.optim.SGD(parameterization.parameters(), lr=rate)
    seen = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = objective(parameterization.latent(matrix), matrix, target)
        penalty = parameterization.penalty()
        (loss if penalty is None else loss + penalty).backward()
        optimizer.step()
        parameterization.after_step_()
        if every and step % every == 0:
            seen.append(copy.deepcopy(parameterization).eval().latent().detach())
    return seen


@pytest.mark.parametrize("inner_steps", [1, 4])
@pytest.mark.parametrize("rho", [0.3, 1.0, 10.0])
def test_fixed_points_meet_the_optimality_conditions_of_projected_gradient(rho: float, inner_steps: int) -> None:
    admm = bound(ADMM(rho, inner_steps))
    assert isinstance(admm, ADMM)
    matrix, target = problem(admm.num_weights)
    largest = float(torch.linalg.eigvalsh(matrix.T @ matrix)[-1])
    descend(admm, 1.0 / (largest + rho), 450 * inner_steps)
    weights = admm.eval().latent().detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(weights, matrix, target), weights)
    weights = weights.detach()
    assert (weights >= 0).all()
    assert gradient.min() >= -1e-6
    assert (weights * gradient).abs().max() <= 1e-6
    assert gradient[weights > 0].abs().max() <= 1e-6
    assert admm.residual() <= 1e-6
    torch.testing.assert_close(-rho * admm.dual.detach(), gradient, rtol=0.0, atol=1e-6)
    solution = torch.from_numpy(scipy.optimize.nnls(matrix.numpy(), target.numpy())[0])
    assert 3 <= int((solution == 0).sum()) <= admm.num_weights - 3, "the constraint must matter, and not everywhere"
    torch.testing.assert_close(weights, solution, rtol=0.0, atol=1e-5)


def test_the_stiff_limit_is_projected_gradient() -> None:
    """With steps of 1/rho, v follows projected gradient with the same steps, up to O(1/rho^2) at equal time."""
    gaps = []
    for rho in (20.0, 200.0):
        steps = int(4.0 * rho)
        one = descend(bound(ADMM(rho)), 1.0 / rho, steps, every=steps // 8)
        two = descend(bound(ProjectedGradient()), 1.0 / rho, steps, every=steps // 8)
        assert float((two[-1] - two[0]).abs().max()) > 0.1
        gaps.append(max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True)))
    assert gaps[1] < 1e-4
    assert gaps[0] / gaps[1] == pytest.approx(100.0, rel=0.3)


def test_training_is_free_and_evaluation_feasible() -> None:
    admm = bound(ADMM())
    assert isinstance(admm, ADMM)
    with torch.no_grad():
        admm.flat_weights.sub_(1.0)
    admm.after_step_()
    batch = torch.zeros(3, 1)
    assert float(admm.latent(batch).detach().min()) < 0
    assert admm.is_feasible()
    for weights in (admm.latent(None), admm.eval().latent(batch)):
        assert float(weights.detach().min()) >= 0


def test_projecting_at_the_start_of_a_resumed_run_leaves_the_primal() -> None:
    admm = bound(ADMM())
    assert isinstance(admm, ADMM)
    with torch.no_grad():
        admm.flat_weights.sub_(1.0)
    admm.after_step_()
    before = copy.deepcopy(admm.state_dict())
    admm.project_()
    assert all(torch.equal(t, before[n]) for n, t in admm.state_dict().items() if isinstance(t, Tensor))


def test_feasible_copy_and_dual_wait_for_the_inner_steps() -> None:
    admm = bound(ADMM(inner_steps=3))
    assert isinstance(admm, ADMM)
    start = admm.feasible_weights.detach().clone()
    moved = []
    for _ in range(6):
        with torch.no_grad():
            admm.flat_weights.add_(0.1)
        admm.after_step_()
        moved.append(float((admm.feasible_weights - start).detach().mean()))
    assert moved == pytest.approx([0.0, 0.0, 0.3, 0.3, 0.3, 0.6])


def test_only_the_primal_is_trained() -> None:
    admm = bound(ADMM())
    assert [name for name, p in admm.named_parameters() if p.requires_grad] == ["flat_weights"]
    assert not list(admm.buffers())


@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_trains_gumbel_to_a_finite_total_variation(rho: float) -> None:
    L.seed_everything(0, verbose=False)
    network = functools.partial(ICNN, widths=[16, 16], weight_init="folded_normal")
    module = LogConcaveEBM(1, network, functools.partial(ADMM, rho=rho), learning_rate=1e-2)
    data = GumbelDataModule(batch_size=128, batches_per_epoch=300, num_val=64, num_test=512)
    trainer = L.Trainer(
        max_epochs=1,
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    assert isinstance(module.parameterization, ADMM)
    assert module.parameterization.is_feasible()
    metrics = trainer.test(module, datamodule=data, verbose=False)[0]
    assert math.isfinite(metrics["test/total_variation"])
    assert metrics["test/total_variation"] < 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rho": 0.0}, "rho=0.0"), ({"rho": math.inf}, "rho=inf"), ({"inner_steps": 0}, "inner_steps=0")],
)
def test_bad_arguments_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADMM(**arguments)
