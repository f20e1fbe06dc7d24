import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_lift.flows import FlowMap, FlowStage, convex_conjugate, default_tolerance, implicit_inverse, invert
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of


def trained_like(dim: int, dtype: torch.dtype = torch.float64, **changes: Any) -> Potential:
    """A smooth ICNN with weights of order one, exactly representable in float32."""
    torch.manual_seed(0)
    arguments = {"divide_by_fan_in": True, "weight_init": "constant", "weight_init_value": 3.0, "bias_std": 1.0}
    spread = 2.0 if dim == 2 else 0.7
    return potential_of(
        ICNN(dim, (32, 32, 32), **{"strong_convexity": 0.05, "free_weight_std": spread, **arguments, **changes}).to(
            dtype
        )
    )


def normal(count: int, dim: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dim", "count"), [(1, 500), (2, 10_000), (21, 2_000)])
def test_float64_error_is_below_1e_9(dim: int, count: int) -> None:
    potential, x = trained_like(dim), normal(count, dim)
    with torch.no_grad():
        result = invert(potential, potential.gradient(x))
    assert result.converged.all()
    assert float((result.x - x).norm(dim=1).max()) <= 1e-9


@pytest.mark.parametrize(("dim", "count"), [(2, 10_000), (21, 2_000)])
def test_float32_residual_and_error_keep_their_bounds(dim: int, count: int) -> None:
    potential, exact, x = trained_like(dim, torch.float32), trained_like(dim), normal(count, dim)
    with torch.no_grad():
        y = exact.gradient(x).float()
        result = invert(potential, y, min_eigenvalue=True)
        solution = invert(exact, y.double(), start=x)
        hessian = torch.cat([exact.hessian(rows) for rows in solution.x.split(1000)])
        residual = (exact.gradient(result.x.double()) - y.double()).norm(dim=1)
    least = torch.linalg.eigvalsh(hessian)[:, 0]
    scale = 1.0 + y.double().norm(dim=1)
    error = (result.x.double() - solution.x).norm(dim=1)
    assert result.x.dtype == torch.float32 and result.min_eigenvalue is not None
    torch.testing.assert_close(result.min_eigenvalue.double(), least, rtol=1e-3, atol=1e-4)
    assert result.converged.all()
    assert (residual <= 1e-5 * scale).all()
    assert (error <= 10 * torch.finfo(torch.float32).eps * scale / least).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["newton", "newton_cg"])
def test_stiff_potentials_and_distant_points(method: Any, dtype: torch.dtype) -> None:
    """k = 1e-3, gradients of 1e3, and points so far out that the Hessian has fallen to k."""
    changes: dict[str, Any] = {"strong_convexity": 1e-3, "weight_init_value": 8.0, "free_weight_std": 4.0}
    potential, exact = trained_like(2, dtype, **changes), trained_like(2, **changes)
    x = torch.cat([normal(100, 2), 30.0 * normal(100, 2), 1e4 * normal(20, 2)])
    with torch.no_grad():
        y = exact.gradient(x)
        condition = torch.linalg.cond(exact.hessian(x))
        result = invert(potential, y.to(dtype), method=method)
        residual = (exact.gradient(result.x.double()) - y).norm(dim=1) / (1.0 + y.norm(dim=1))
    assert float(condition.max()) > 1e4  # else this tests nothing
    assert result.converged.all()
    # y itself was rounded.
    assert float(residual.max()) <= 1.2 * default_tolerance(dtype)


@pytest.mark.parametrize("activation", ["softplus", "gaussian_softplus"])
def test_newton_cg_equals_newton(activation: str) -> None:
    potential, y = trained_like(21, activation=activation), normal(100, 21)
    with torch.no_grad():
        exact, products = invert(potential, y, method="newton"), invert(potential, y, method="newton_cg")
    assert exact.converged.all() and products.converged.all()
    torch.testing.assert_close(products.x, exact.x, rtol=0.0, atol=1e-9)


def test_newton_cg_in_high_dimension_without_a_hessian(monkeypatch) -> None:
    dim = 300
    torch.manual_seed(0)
    potential = potential_of(ICNN(dim, (64, 64), strong_convexity=0.05, bias_std=1.0).double())
    monkeypatch.setattr(potential, "hessian", lambda x: pytest.fail("a Hessian was built"))
    x = normal(8, dim)
    with torch.no_grad():
        result = invert(potential, potential.gradient(x))
    assert result.converged.all()
    assert float((result.x - x).norm(dim=1).max()) <= 1e-9


def test_generic_networks_invert_in_closed_form() -> None:
    """grad F = s (x - mean) / sd^2: one Newton step."""
    potential = potential_of(Quadratic(3, mean=0.7, sd=2.0).double())
    y = normal(40, 3)
    result = invert(potential, y, min_eigenvalue=True)
    torch.testing.assert_close(result.x, 0.7 + 4.0 * y, rtol=1e-12, atol=1e-12)
    assert result.min_eigenvalue is not None
    torch.testing.assert_close(result.min_eigenvalue, torch.full((40,), 0.25, dtype=torch.float64))


def test_flagged_not_looped_where_y_is_not_finite() -> None:
    potential, x = trained_like(2), normal(40, 2)
    with torch.no_grad():
        y = potential.gradient(x)
        y[3, 0], y[7, 1] = torch.nan, torch.inf
        result = invert(potential, y)
    bad = [3, 7]
    assert result.x[bad].isnan().all() and result.residual[bad].isnan().all()
    assert not result.converged[bad].any() and not result.iterations[bad].any()
    good = torch.ones(40, dtype=torch.bool)
    good[bad] = False
    assert result.converged[good].all()
    torch.testing.assert_close(result.x[good], x[good], rtol=0.0, atol=1e-9)


def test_a_y_outside_the_range_is_flagged() -> None:
    """Without a quadratic term the gradient is bounded by the sum of the weights."""
    potential = trained_like(2, strong_convexity=0.0)
    with torch.no_grad():
        bound = float(potential.gradient(torch.tensor([[1e6, 0.0]], dtype=torch.float64))[0, 0])
        result = invert(potential, torch.tensor([[2.0 * bound, 0.0], [0.5, 0.5]], dtype=torch.float64))
    assert result.converged.tolist() == [False, True]
    assert float(result.residual[0]) >= 0.9 * bound


def test_weights_that_are_not_finite_are_flagged() -> None:
    potential = trained_like(2)
    broken = Potential(potential.network, {n: torch.full_like(t, torch.nan) for n, t in potential.weights.items()})
    with torch.no_grad():
        assert not invert(broken, normal(5, 2)).converged.any()


def test_too_few_iterations_are_flagged_and_the_residual_is_true() -> None:
    potential, x = trained_like(2), normal(40, 2)
    with torch.no_grad():
        y = potential.gradient(x)
        result = invert(potential, y, max_iterations=1)
        residual = (potential.gradient(result.x) - y).norm(dim=1)
    assert not result.converged.all()
    torch.testing.assert_close(result.residual, residual)
    assert torch.equal(result.converged, residual <= 1e-12 * (1.0 + y.norm(dim=1)))


def test_a_tolerance_that_cannot_be_reached_is_flagged() -> None:
    potential, y = trained_like(2), normal(40, 2)
    with torch.no_grad():
        result = invert(potential, y, tolerance=1e-18)
    assert not result.converged.all()
    assert float(result.residual.max()) < 1e-12


def test_the_batch_changes_the_result_by_no_more_than_the_tolerance() -> None:
    potential, y = trained_like(2), normal(4000, 2)
    with torch.no_grad():
        together, alone = invert(potential, y), invert(potential, y[100:101])
    torch.testing.assert_close(together.x[100:101], alone.x, rtol=0.0, atol=1e-10)


def test_a_start_at_the_solution_costs_nothing_and_shapes_are_kept() -> None:
    potential, x = trained_like(2, torch.float32), normal(40, 2, torch.float32)
    with torch.no_grad():
        y = potential.gradient(x)
        result = invert(potential, y, tolerance=1e-4, start=x)
        empty = invert(potential, y[:0], min_eigenvalue=True)
    assert not result.iterations.any() and torch.equal(result.x, x)
    assert empty.x.shape == (0, 2) and empty.converged.shape == (0,)
    assert result.min_eigenvalue is None


def test_under_autocast_and_inference_mode() -> None:
    potential, y = trained_like(2, torch.float32), normal(40, 2, torch.float32)
    expected = invert(potential, y).x
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert torch.equal(invert(potential, y).x, expected)


@pytest.mark.parametrize("method", ["newton", "newton_cg"])
def test_implicit_gradients_equal_those_of_the_closed_form(method: str) -> None:
    """x = mean + sd^2 y / s: dx/dy = sd^2 / s and dx/ds = -sd^2 y / s^2."""
    network = Quadratic(3, mean=0.7, sd=2.0).double()
    with torch.no_grad():
        network.stiffness.fill_(1.5)
    y = normal(6, 3).requires_grad_()
    direction = normal(6, 3, seed=2)
    result = implicit_inverse(potential_of(network), y, method=method)
    by_y, by_s = torch.autograd.grad((result.x * direction).sum(), [y, network.stiffness])
    torch.testing.assert_close(by_y, 4.0 / 1.5 * direction)
    torch.testing.assert_close(by_s, (-4.0 * y * direction).sum().detach() / 1.5**2)


@pytest.mark.parametrize("method", ["newton", "newton_cg"])
def test_implicit_gradients_equal_finite_differences(method: Any) -> None:
    torch.manual_seed(0)
    network = ICNN(3, (8, 8), strong_convexity="learned", actnorm=True, bias_std=1.0).double()
    y = normal(5, 3).requires_grad_()
    inputs = [y, *network.parameters()]

    def total() -> Tensor:
        return implicit_inverse(potential_of(network), y, method=method).x.sin().sum()

    gradients = torch.autograd.grad(total(), inputs)
    step = 1e-5
    for tensor, gradient in zip(inputs, gradients, strict=True):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            tensor += step * direction
            up = total()
            tensor -= 2 * step * direction
            down = total()
            tensor += step * direction
        slope = float((up - down) / (2 * step))
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_implicit_inverse_flags_rows_and_keeps_the_gradients_of_the_others() -> None:
    potential, y = trained_like(2), normal(6, 2)
    with torch.no_grad():
        expected = invert(potential, y).x
    weight = potential.weights["output_weight"]
    kept = implicit_inverse(potential, y[1:]).x.sum()
    (reference,) = torch.autograd.grad(kept, weight)
    y[0] = torch.nan
    y.requires_grad_()
    result = implicit_inverse(potential, y)
    assert result.converged.tolist() == [False, *[True] * 5]
    torch.testing.assert_close(result.x[1:], expected[1:], rtol=0.0, atol=1e-9)
    by_y, by_weight = torch.autograd.grad(result.x[result.converged].sum(), [y, weight])
    assert torch.isfinite(by_y).all() and not by_y[0].any()
    torch.testing.assert_close(by_weight, reference, rtol=1e-7, atol=1e-10)


def test_conjugate_of_a_quadratic_and_its_gradients() -> None:
    """F = s |x - m|^2 / (2 sd^2) has F*(y) = <m, y> + sd^2 |y|^2 / (2 s)."""
    network = Quadratic(3, mean=0.7, sd=2.0).double()
    y = normal(6, 3).requires_grad_()
    conjugate = convex_conjugate(potential_of(network), y)
    torch.testing.assert_close(conjugate.value, 0.7 * y.sum(1) + 2.0 * y.square().sum(1))
    by_y, by_s = torch.autograd.grad(conjugate.value.sum(), [y, network.stiffness])
    torch.testing.assert_close(by_y, 0.7 + 4.0 * y.detach())
    torch.testing.assert_close(by_s, -2.0 * y.detach().square().sum())
    assert conjugate.inverse.converged.all()


def test_fenchel_young_inequality() -> None:
    """F(x) + F*(y) >= <x, y>, with equality at y = grad F(x)."""
    potential, x = trained_like(2), normal(200, 2)
    with torch.no_grad():
        y = potential.gradient(x)
        value = convex_conjugate(potential, y).value
        torch.testing.assert_close(potential.value(x) + value, (x * y).sum(1), rtol=1e-10, atol=1e-10)
        gap = potential.value(x.flip(0)) + value - (x.flip(0) * y).sum(1)
    assert float(gap.min()) > -1e-10 and float(gap.max()) > 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": 0.0}, r"tolerance=0\.0"),
        ({"tolerance": math.nan}, "tolerance=nan"),
        ({"max_iterations": 0}, "max_iterations=0"),
        ({"method": "lbfgs"}, "method='lbfgs'"),
        ({"start": torch.zeros(3, 2)}, r"start has shape \(3, 2\)"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        invert(trained_like(2), normal(4, 2), **arguments)
    with pytest.raises(ValueError, match=r"expected \(N, 2\)"):
        invert(trained_like(2), normal(4, 3))


@pytest.mark.parametrize(("dim", "steepness"), [(1, 10.0), (1, 100.0), (2, 30.0), (8, 10.0)])
def test_a_flag_is_true_of_the_returned_point_in_float64(dim: int, steepness: float) -> None:
    torch.manual_seed(0)
    network = ICNN(dim, (16, 16), strong_convexity=0.02, bias_std=1.0, free_weight_std=1.0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(steepness)
    potential, y = potential_of(network), 3.0 * torch.randn(200, dim)
    exact = potential.to(torch.float64)
    for found in (invert(potential, y), FlowMap([FlowStage(potential)]).inverse(y)):
        residual = (exact.gradient(found.x.double()) - y.double()).norm(dim=1).detach()
        # y and the limit are float32: up to a few units of round-off in them
        assert torch.equal(found.converged, found.residual <= 1e-5 * (1.0 + y.norm(dim=1)))
        torch.testing.assert_close(found.residual.double(), residual, rtol=1e-5, atol=1e-12)
        assert (found.converged if found.found is None else found.found).all(), "each is the rounding of a solution"
    assert convex_conjugate(potential, y).inverse.converged.equal(invert(potential, y).converged)


@pytest.mark.parametrize("method", ["newton", "newton_cg"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_row_is_solved_at_its_own_context(method, dtype):
    torch.manual_seed(0)
    network = PICNN(4, (3,), (12, 10), strong_convexity=0.1)
    with torch.no_grad():
        for parameter in network.conditioner.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, u = 2.0 * torch.randn(200, 4, dtype=dtype), torch.randn(200, 3)
    potential = potential_of(network).at(u).to(dtype)
    y = potential.gradient(x).detach()
    found = invert(potential, y, method=method, min_eigenvalue=True)
    assert found.converged.all()
    assert (found.min_eigenvalue >= 0.1 - 1e-6).all()
    torch.testing.assert_close(found.residual, (potential.gradient(found.x) - y).norm(dim=1), rtol=0.1, atol=1e-5)
    alone = invert(potential.rows(slice(5, 6)), y[5:6], method=method)
    torch.testing.assert_close(found.x[5:6], alone.x, rtol=1e-4, atol=1e-4)
    error = (found.x - x).norm(dim=1) / (1.0 + x.norm(dim=1))
    assert error.max() < (1e-5 if dtype == torch.float32 else 1e-9)


def test_a_small_hessian_leaves_no_unflagged_error():
    torch.manual_seed(0)
    network = ICNN(3, (32, 32), activation="gaussian_softplus", strong_convexity=1e-3)
    potential = potential_of(network)
    y = potential.gradient(4.0 * torch.randn(2000, 3)).detach()
    exact = invert(potential.to(torch.float64), y.double()).x
    found = invert(potential, y)
    error = (found.x.double() - exact).norm(dim=1) / (1.0 + exact.norm(dim=1))
    assert found.converged.double().mean() > 0.99
    assert error[found.converged].max() < 1e-5
