import pytest
import torch
from torch import Tensor

from lightning_lift.flows import conjugate_gradients
from lightning_lift.networks.hessian_vector import Linearization


class Matrices(Linearization):
    """Given matrices, with a count of the rows that were multiplied."""

    def __init__(self, matrices: Tensor, counted: list[int] | None = None) -> None:
        self.matrices, self.counted = matrices, [] if counted is None else counted
        self.value, self.gradient = matrices[:, 0, 0], matrices[:, 0]

    def multiply(self, v: Tensor) -> Tensor:
        self.counted.append(len(v))
        return self.matrices @ v

    def select(self, rows: Tensor) -> "Matrices":
        return Matrices(self.matrices[rows], self.counted)


def with_eigenvalues(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(*eigenvalues.shape, eigenvalues.shape[-1], generator=generator).double())
    return (q * eigenvalues.unsqueeze(1).double()) @ q.transpose(1, 2)


def test_solutions_residuals_and_flags() -> None:
    matrices = with_eigenvalues(torch.linspace(0.05, 5.0, 20).repeat(7, 1))
    b = torch.randn(7, 20, 3, generator=torch.Generator().manual_seed(1)).double()
    solved = conjugate_gradients(Matrices(matrices), b, 1e-10, 60)
    torch.testing.assert_close(solved.solution, torch.linalg.solve(matrices, b), rtol=1e-7, atol=1e-7)
    assert solved.converged.all() and not solved.broken.any()
    residual = (b - matrices @ solved.solution).norm(dim=1) / b.norm(dim=1)
    torch.testing.assert_close(solved.residual, residual, rtol=1e-3, atol=1e-15)
    one = conjugate_gradients(Matrices(matrices), b[..., 0], 1e-10, 60)
    assert one.solution.shape == (7, 20) and one.residual.shape == one.converged.shape == (7,)
    torch.testing.assert_close(one.solution, solved.solution[..., 0], rtol=1e-7, atol=1e-7)


def test_each_system_stops_by_itself_and_leaves_the_work() -> None:
    """k distinct eigenvalues take k iterations; here 1, 2, 4 and 8."""
    rows = [torch.tensor([1.0 + i % k for i in range(16)]) for k in (1, 2, 4, 8)]
    product = Matrices(with_eigenvalues(torch.stack(rows)))
    b = torch.randn(4, 16, generator=torch.Generator().manual_seed(1)).double()
    solved = conjugate_gradients(product, b, 1e-9, 50)
    assert solved.iterations.tolist() == [1, 2, 4, 8]
    assert solved.converged.all()
    # The last count is the residual of all of them.
    assert product.counted == [4, 4, 2, 2, 1, 1, 1, 1, 4]


def test_what_has_not_converged_says_so() -> None:
    matrices = with_eigenvalues(torch.logspace(-4, 2, 30).repeat(2, 1))
    matrices[1] = torch.eye(30)
    b = torch.randn(2, 30, generator=torch.Generator().manual_seed(1)).double()
    solved = conjugate_gradients(Matrices(matrices), b, 1e-8, 5)
    assert solved.converged.tolist() == [False, True]
    assert float(solved.residual[0]) > 1e-8
    assert solved.iterations.tolist() == [5, 1]


def test_matrices_that_are_not_positive_definite_and_nan_are_broken() -> None:
    matrices = torch.eye(3).double().repeat(3, 1, 1)
    matrices[0, 0, 0], matrices[1, 0, 0] = -5.0, torch.nan
    solved = conjugate_gradients(Matrices(matrices), torch.ones(3, 3).double(), 1e-8, 10)
    assert solved.broken.tolist() == [True, True, False]
    assert solved.converged.tolist() == [False, False, True]


def test_tolerance_by_point_and_a_zero_right_hand_side() -> None:
    matrices = with_eigenvalues(torch.logspace(-2, 1, 30).repeat(3, 1))
    b = torch.randn(1, 30, generator=torch.Generator().manual_seed(1)).double().repeat(3, 1)
    b[2] = 0.0
    matrices[1] = matrices[0]
    solved = conjugate_gradients(Matrices(matrices), b, torch.tensor([1e-1, 1e-8, 1e-8]), 200)
    assert solved.converged.all()
    assert 0 < int(solved.iterations[0]) < int(solved.iterations[1])
    assert int(solved.iterations[2]) == 0 and not solved.solution[2].any()


def test_coefficients_are_the_lanczos_matrix() -> None:
    """Run to the end, T has the eigenvalues of H, and e_1^T T e_1 = b^T H b / |b|^2."""
    eigenvalues = torch.tensor([[0.5, 1.0, 2.0, 4.0, 7.0], [1.0, 1.0, 1.0, 3.0, 3.0]])
    matrices = with_eigenvalues(eigenvalues)
    b = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)).double()
    solved = conjugate_gradients(Matrices(matrices), b, 1e-12, 5)
    main, side = solved.diagonal[:, 0], solved.off_diagonal[:, 0]
    tridiagonal = torch.diag_embed(main) + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    torch.testing.assert_close(torch.linalg.eigvalsh(tridiagonal[0]), eigenvalues[0].double(), rtol=1e-9, atol=0.0)
    quotient = (b * (matrices @ b.unsqueeze(2)).squeeze(2)).sum(1) / b.square().sum(1)
    torch.testing.assert_close(main[:, 0], quotient)
    # The second system is exhausted after two iterations: the rest is the identity, cut off.
    assert solved.iterations.tolist() == [5, 2]
    assert (main[1, 2:] == 1).all() and not side[1, 1:].any()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="max_iterations=0"):
        conjugate_gradients(Matrices(torch.eye(2).unsqueeze(0)), torch.ones(1, 2), 1e-3, 0)
    with pytest.raises(ValueError, match="do not fit"):
        conjugate_gradients(Matrices(torch.eye(2).unsqueeze(0)), torch.ones(1, 3), 1e-3, 5)
