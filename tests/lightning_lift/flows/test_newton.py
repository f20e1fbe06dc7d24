import torch

from lightning_lift.flows.newton import NewtonSolver, factorize, solve_cholesky
from lightning_lift.networks import ICNN
from tests.problems import potential_of


def test_factors_shift_what_is_not_positive_definite_and_nothing_else() -> None:
    good = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    singular = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    negative = torch.tensor([[1.0, 0.0], [0.0, -1e-3]])
    hessian = torch.stack([good, singular, negative, torch.full((2, 2), torch.nan)])
    factor = factorize(hessian)
    rebuilt = factor @ factor.transpose(1, 2)
    torch.testing.assert_close(rebuilt[0], good)
    torch.testing.assert_close(rebuilt[1], singular, rtol=0.0, atol=1e-4)
    assert torch.isfinite(rebuilt[:3]).all() and (rebuilt[2].diagonal() > 0).all()
    b = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(solve_cholesky(good.unsqueeze(0), b)[0], torch.linalg.solve(good, b[0]))


def test_kept_inverses_stay_close_to_the_true_ones() -> None:
    """Corrected along the steps, they serve to convergence without a second Hessian where the first start is close."""
    torch.manual_seed(0)
    potential = potential_of(ICNN(3, (16, 16), strong_convexity=0.1, bias_std=1.0).double())
    x = torch.randn(50, 3, dtype=torch.float64)
    with torch.no_grad():
        y = potential.gradient(x)
        solver = NewtonSolver(potential, y, 1e-12, "newton", x + 1e-3 * torch.randn_like(x))
        solver.solve(20)
        assert (solver.residual <= solver.limit).all()
        assert not solver._outdated.any()
        inverse = torch.linalg.inv(potential.hessian(x))
    assert float((solver.inverse - inverse).norm() / inverse.norm()) < 1e-2


def test_solved_rows_cost_no_iterations() -> None:
    torch.manual_seed(0)
    potential = potential_of(ICNN(2, (16, 16), strong_convexity=0.1).double())
    x = torch.randn(6, 2, dtype=torch.float64)
    with torch.no_grad():
        start = x.clone()
        start[3] += 5.0
        solver = NewtonSolver(potential, potential.gradient(x), 1e-10, "newton", start)
        solver.solve(50)
    assert solver.iterations[3] > 0 and solver.iterations.sum() == solver.iterations[3]


def test_a_known_solution_and_inverse_cost_one_look() -> None:
    torch.manual_seed(0)
    potential = potential_of(ICNN(3, (16, 16)))
    y = torch.randn(50, 3)
    first = NewtonSolver(potential, y, 1e-2, "newton")
    first.solve(50)
    again = NewtonSolver(potential, y, 1e-2, "newton", first.best, first.inverse)
    again.solve(50)
    assert int(again.iterations.sum()) == 0
    # nearby rows come in without another Hessian
    moved = NewtonSolver(potential, y + 0.01, 1e-2, "newton", first.best, first.inverse)
    moved.solve(50)
    assert (moved.residual <= moved.limit).all()
