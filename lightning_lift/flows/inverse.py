"""The inverse of the gradient of a convex function: x with grad F(x) = y, solved point by point."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_lift.flows.conjugate_gradients import conjugate_gradients
from lightning_lift.flows.logdet import choose_logdet
from lightning_lift.flows.newton import NewtonMethod, NewtonSolver, rows_at_once, solve_cholesky
from lightning_lift.networks.base import check_points
from lightning_lift.potential import Potential

InverseMethod = Literal["auto", "newton", "newton_cg"]

_INVERSES_AT_ONCE = 1 << 23  # numbers in the inverse Hessians of the rows that are solved together
_MIN_REFERENCES, _MAX_REFERENCES, _ROWS_PER_REFERENCE = 16, 512, 8
_DISTANCE = 0.2  # of the tolerance, relative to 1 + |x|: what float32 may leave between x and the solution
_FINER = 1e-3  # of the tolerance: where float64 takes over
_ROUGH_TOLERANCE = 1e-2  # of the float32 solve that starts one in float64


class InverseResult(NamedTuple):
    """Solutions of grad F(x) = y, with what is known of each.

    A point with ``converged`` False is not a solution: look at the flag before using ``x``.

    Attributes:
        x: shape (N, D); NaN where y is not finite.
        converged: residual <= tolerance * (1 + |y|), shape (N,), boolean.
        residual: |grad F(x) - y| of this very x, in float64 where the device has it, shape (N,). Where F is strongly
            convex with constant k, |x - x*| <= residual / k.
        iterations: Newton iterations of each point, shape (N,), integer.
        min_eigenvalue: smallest eigenvalue of the Hessian at x, shape (N,); None unless asked for.
        found: where x is a solution or the rounding of one, shape (N,), boolean: with a steep gradient no number of
            this precision may be one itself; None: ``converged``.
    """

    x: Tensor
    converged: Tensor
    residual: Tensor
    iterations: Tensor
    min_eigenvalue: Tensor | None = None
    found: Tensor | None = None


class ConvexConjugate(NamedTuple):
    """F*(y) = max_x <x, y> - F(x), with the solve behind it.

    Attributes:
        value: shape (N,); its gradient in y is x. To be used only where ``inverse.converged``.
        inverse: the maximisers.
    """

    value: Tensor
    inverse: InverseResult


def newton_method(dim: int, method: InverseMethod = "auto") -> NewtonMethod:
    """The way in which points of a dimension are solved.

    Args:
        dim: D.
        method: ``auto`` for Hessians where they can be had, products with them above (see ``choose_logdet``).
    """
    if method == "auto":
        return "newton" if choose_logdet(dim) == "exact" else "newton_cg"
    return method


def default_tolerance(dtype: torch.dtype) -> float:
    """The tolerance of the residual relative to 1 + |y|: 1e-5 in float32, 1e-12 in float64."""
    return 1e-12 if dtype == torch.float64 else 1e-5


@torch.no_grad()
def invert(
    potential: Potential,
    y: Tensor,
    tolerance: float | None = None,
    max_iterations: int = 100,
    method: InverseMethod = "auto",
    start: Tensor | None = None,
    min_eigenvalue: bool = False,
) -> InverseResult:
    """The x with grad F(x) = y, each point by damped Newton steps on F(x) - <x, y>, without gradient.

    See ``NewtonSolver``. In float64 the way is gone in float32 first; what float32 cannot solve to well below the
    tolerance is solved in float64 and rounded. Points that are done cost nothing more. The result depends on the other
    points of the batch by no more than the tolerance allows: many rows start from the solutions of a few.

    Args:
        potential: F, strictly convex.
        y: shape (N, D). Solved in its precision (at least float32), which the weights must share.
        tolerance: of the residual relative to 1 + |y|; None for ``default_tolerance``.
        max_iterations: Newton iterations at most; a point that needs more is flagged.
        method: ``newton``, ``newton_cg``, or ``auto``, by the dimension (see ``choose_logdet``).
        start: first x, shape (N, D); None for 0.
        min_eigenvalue: whether to return the smallest eigenvalue of the Hessian at each solution.

    Raises:
        ValueError: a wrong shape, a tolerance that is not positive, fewer than one iteration, an unknown method.
    """
    check_points(y, potential.dim)
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(f"tolerance={tolerance}: must be positive, or None for the default of the precision.")
    if max_iterations < 1:
        raise ValueError(f"max_iterations={max_iterations}: Newton's method needs at least one.")
    if method not in ("auto", "newton", "newton_cg"):
        raise ValueError(f"method={method!r} is not known; choose 'auto', 'newton' or 'newton_cg'.")
    if start is not None and start.shape != y.shape:
        raise ValueError(f"start has shape {tuple(start.shape)}: expected that of y, {tuple(y.shape)}.")
    target = y if y.dtype in (torch.float32, torch.float64) else y.float()
    relative = default_tolerance(target.dtype) if tolerance is None else tolerance
    with torch.autocast(device_type=y.device.type, enabled=False):
        size = max(1, _INVERSES_AT_ONCE // potential.dim**2)
        solver = newton_method(potential.dim, method)
        pieces = []
        for begin in range(0, max(len(target), 1), size):
            rows = slice(begin, begin + size)
            first = None if start is None else start[rows]
            pieces.append(_invert_together(potential.rows(rows), target[rows], first, relative, max_iterations, solver))
        x, converged, residual, iterations, found = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        result = InverseResult(x, converged, residual, iterations, found=found)
        if min_eigenvalue:
            result = result._replace(min_eigenvalue=_least_eigenvalue(potential, result.x))
    return result


def _invert_together(
    potential: Potential, y: Tensor, start: Tensor | None, tolerance: float, max_iterations: int, method: NewtonMethod
) -> tuple[Tensor, ...]:
    """x, converged, residual, iterations and found of rows whose inverse Hessians fit into memory together."""
    if y.dtype == torch.float64 and method == "newton":
        # Float32 does most of the way at a fraction of the price; its Hessians then serve to refine in float64.
        rough = _solve(potential.to(torch.float32), y.float(), start, _ROUGH_TOLERANCE, max_iterations, method)
        solver = NewtonSolver(potential, y, tolerance, method, start)
        solver.refine(rough)
        solver.solve(max_iterations)
    else:
        solver = _solve(potential, y, start, tolerance, max_iterations, method)
    found = solver.residual <= solver.limit
    if y.dtype == torch.float32 and y.device.type != "mps":
        found = _polish(solver, tolerance, max_iterations)
    finite = torch.isfinite(y).all(1)
    x = torch.where(finite.unsqueeze(1), solver.best, torch.nan)
    residual = torch.where(finite, solver.residual, torch.nan)
    return x, residual <= solver.limit, residual, solver.iterations, found


def _polish(solver: NewtonSolver, tolerance: float, max_iterations: int) -> Tensor:
    """Solve in float64 those rows that float32 leaves short of the goal and round them; the rows that were found.

    Every residual becomes that of the float32 point in float64: measured in float32, one near round-off is luck. Where
    the Hessian is small, a small residual is still a large distance from the solution: such rows are solved too.
    """
    potential = solver.potential.to(torch.float64)
    short = solver.residual > solver.goal
    gap = _gap(potential, solver.best, solver.y)
    solver.residual = gap.norm(dim=1).to(solver.y)
    short |= solver.distance(gap.to(solver.y)) > _DISTANCE * tolerance * (1.0 + solver.best.norm(dim=1))
    found: Tensor = solver.residual <= solver.limit
    rows = ((short | ~found) & torch.isfinite(solver.residual)).nonzero().squeeze(1)
    if len(rows):
        some = potential.rows(rows)
        finer = _FINER * tolerance
        fine = NewtonSolver(some, solver.y[rows].double(), finer, solver.method, solver.best[rows].double())
        fine.solve(max_iterations)
        rounded = fine.best.to(solver.best)
        residual = _gap(some, rounded, solver.y[rows]).norm(dim=1).to(rounded)
        solved = fine.residual <= solver.limit[rows]
        better = (residual < solver.residual[rows]) | (solved & (~found[rows] | (residual <= solver.limit[rows])))
        solver.best[rows[better]], solver.residual[rows[better]] = rounded[better], residual[better]
        solver.iterations[rows] += fine.iterations
        found[rows] |= solved
    return found


def _gap(potential: Potential, x: Tensor, y: Tensor) -> Tensor:
    """grad F(x) - y in the potential's float64: shape (N, D)."""
    parts = [slice(start, start + 1024) for start in range(0, max(len(x), 1), 1024)]
    gradients = [potential.rows(part).gradient(x[part].double()) for part in parts]
    return torch.cat(gradients) - y.double()


def _solve(
    potential: Potential,
    y: Tensor,
    start: Tensor | None,
    tolerance: float,
    max_iterations: int,
    method: NewtonMethod,
) -> NewtonSolver:
    """A solver that is done; a few rows are solved first, and the others start from the nearest of them."""
    solver = NewtonSolver(potential, y, tolerance, method, None if start is None else start.to(y))
    count = min(_MAX_REFERENCES, len(y) // _ROWS_PER_REFERENCE)
    if start is None and method == "newton" and count >= _MIN_REFERENCES and potential.is_shared:
        # Spread over the rows, whatever their order.
        some = torch.arange(count, device=y.device) * (len(y) // count)
        references = NewtonSolver(potential, y[some], tolerance, method)
        references.solve(max_iterations)
        solver.start_near(references)
    solver.solve(max_iterations)
    return solver


def _least_eigenvalue(potential: Potential, x: Tensor) -> Tensor:
    finite = torch.isfinite(x).all(1)
    least = torch.full_like(x[:, 0], torch.nan)
    piece = rows_at_once(x.shape[1])
    for rows in finite.nonzero().squeeze(1).split(piece):
        hessian = potential.rows(rows).hessian(x[rows])
        # MPS has no eigenvalues; they are small matrices.
        least[rows] = torch.linalg.eigvalsh(hessian.cpu() if x.device.type == "mps" else hessian)[:, 0].to(least)
    return least


def implicit_inverse(potential: Potential, y: Tensor, **options: Any) -> InverseResult:
    """``invert``, with x differentiable in y and in the weights by the implicit function theorem.

    From grad F(x) = y: dx = H^-1 (dy - d grad F at x fixed). Once differentiable. Rows that did not converge have the
    derivative at their x, which is not that of the inverse: look at the flags.

    Args:
        potential: F.
        y: shape (N, D).
        **options: of ``invert``.
    """
    result = invert(potential, y.detach(), **options)
    x = result.x
    finite = torch.isfinite(x).all(1, keepdim=True)
    # Rows that are not finite must not reach the solver, nor poison the gradients of the weights.
    inner = torch.where(finite, x, 0.0)
    gap = torch.where(finite, y.to(x) - potential.gradient(inner), 0.0)
    correction: Tensor = _InverseHessian.apply(  # type: ignore[no-untyped-call]
        gap, potential, inner, options.get("method", "auto")
    )
    # The value stays that of the solver: only the derivative of the correction is wanted.
    return result._replace(x=x + (correction - correction.detach()))


class _InverseHessian(torch.autograd.Function):
    """gap -> H^-1 gap at fixed x, in the backward pass alone: forwards nothing is solved."""

    @staticmethod
    def forward(ctx: Any, gap: Tensor, potential: Potential, x: Tensor, method: InverseMethod) -> Tensor:
        ctx.potential, ctx.method = potential, method
        ctx.save_for_backward(x)
        return torch.zeros_like(gap)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        with torch.autocast(device_type=x.device.type, enabled=False):
            if newton_method(x.shape[1], ctx.method) == "newton_cg":
                tolerance = math.sqrt(default_tolerance(x.dtype))
                solved = conjugate_gradients(ctx.potential.linearize(x), cotangent, tolerance, 4 * x.shape[1] + 20)
                return solved.solution, None, None, None
            piece = rows_at_once(x.shape[1])
            slices = [slice(start, start + piece) for start in range(0, max(len(x), 1), piece)]
            parts = [solve_cholesky(ctx.potential.rows(rows).hessian(x[rows]), cotangent[rows]) for rows in slices]
        return torch.cat(parts), None, None, None


def convex_conjugate(potential: Potential, y: Tensor, **options: Any) -> ConvexConjugate:
    """F*(y) = max_x <x, y> - F(x), differentiable in y and in the weights.

    By the envelope theorem the maximiser is constant to first order: the gradient in y is x, and that in the weights
    is -dF at x. The error of the value is of second order in that of x.

    Args:
        potential: F.
        y: shape (N, D).
        **options: of ``invert``.
    """
    inverse = invert(potential, y.detach(), **options)
    value = (inverse.x * y).sum(1) - potential.value(inverse.x)
    return ConvexConjugate(value, inverse)
