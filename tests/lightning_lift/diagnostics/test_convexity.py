import math

import pytest
import torch
from torch import Tensor

from lightning_lift.diagnostics import jensen_gap, least_eigenvalues, search_least_eigenvalue, worst_jensen_gap


class Bowl:
    """x^T M x / 2."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * ((x @ self.matrix.to(x)) * x).sum(1)

    def hessian(self, x: Tensor) -> Tensor:
        return self.matrix.to(x).expand(len(x), -1, -1)


class Dent(Bowl):
    """|x|^2 / 2 with a narrow dent: - depth * exp(-|x - c|^2 / 2)."""

    def __init__(self, centre: Tensor, depth: float) -> None:
        super().__init__(torch.eye(len(centre)))
        self.centre, self.depth = centre, depth

    def value(self, x: Tensor) -> Tensor:
        return super().value(x) - self.depth * torch.exp(-0.5 * (x - self.centre.to(x)).square().sum(1))

    def hessian(self, x: Tensor) -> Tensor:
        away = x - self.centre.to(x)
        bump = self.depth * torch.exp(-0.5 * away.square().sum(1))[:, None, None]
        return super().hessian(x) + bump * (torch.eye(x.shape[1]).to(x) - away[:, :, None] * away[:, None, :])


def points(count: int, dim: int = 2, scale: float = 3.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return scale * torch.randn(count, dim, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e3), (torch.float64, 1.0)])
def test_a_convex_function_has_no_gap_beyond_rounding(dtype: torch.dtype, scale: float) -> None:
    bowl = Bowl(torch.tensor([[2.0, 0.3], [0.3, 1.0]]))
    assert worst_jensen_gap(bowl, points(500, scale=scale, dtype=dtype)) <= 8 * torch.finfo(dtype).eps


def test_jensen_sees_a_concave_direction_and_a_local_dent() -> None:
    assert worst_jensen_gap(Bowl(torch.diag(torch.tensor([1.0, -0.01]))), points(500)) > 1e-5
    assert worst_jensen_gap(Dent(torch.tensor([1.0, 1.0]), 3.0), points(500)) > 1e-4
    assert math.isnan(worst_jensen_gap(Bowl(torch.full((2, 2), math.nan)), points(10)))


def test_jensen_gap_is_the_definition() -> None:
    x, y, t = points(5, dtype=torch.float64), points(5, dtype=torch.float64).flip(0), torch.linspace(0, 1, 5).double()
    bowl = Bowl(torch.eye(2))
    expected = -0.5 * t * (1 - t) * (x - y).square().sum(1)
    gap = jensen_gap(bowl, x, y, t) * (1.0 + bowl.value(x) + bowl.value(y))
    torch.testing.assert_close(gap, expected, rtol=1e-9, atol=1e-9)


def test_least_eigenvalues_of_a_quadratic() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    expected = torch.linalg.eigvalsh(matrix.double())[0]
    torch.testing.assert_close(least_eigenvalues(Bowl(matrix), points(3)), expected.expand(3))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_search_finds_the_bottom_of_a_dent(dim: int) -> None:
    # The least curvature is on the circle |x - c| = sqrt 3: 1 + depth e^(-3/2) (1 - 3).
    dent = Dent(torch.full((dim,), 1.5), 1.0)
    found = search_least_eigenvalue(dent, points(20, dim, 2.0), num_rounds=40)
    assert found.eigenvalue == pytest.approx(1.0 - 2.0 * math.exp(-1.5), abs=1e-3)
    assert (found.point - 1.5).norm().item() == pytest.approx(math.sqrt(3.0), abs=0.05)


def test_the_search_never_reports_less_than_strong_convexity() -> None:
    found = search_least_eigenvalue(Bowl(torch.diag(torch.tensor([0.25, 4.0]))), points(4))
    assert found.eigenvalue == pytest.approx(0.25, abs=1e-7)


def test_bad_use_is_refused() -> None:
    bowl = Bowl(torch.eye(2))
    with pytest.raises(ValueError, match="at least two"):
        worst_jensen_gap(bowl, points(1))
    with pytest.raises(ValueError, match="fractions must lie"):
        jensen_gap(bowl, points(2), points(2), torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match="needs"):
        jensen_gap(bowl, points(2), points(3), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="num_rounds=0"):
        search_least_eigenvalue(bowl, points(2), num_rounds=0)
    with pytest.raises(ArithmeticError, match="not finite"):
        least_eigenvalues(Bowl(torch.full((2, 2), math.nan)), points(2))
