"""Damped Newton iterations on a batch of convex problems, each with its own step, line search and stop."""

import math
from typing import Literal

import torch
from torch import Tensor

from lightning_lift.flows.conjugate_gradients import conjugate_gradients
from lightning_lift.potential import Potential

NewtonMethod = Literal["newton", "newton_cg"]

_SUFFICIENT_DECREASE = 0.1  # Armijo's constant
_MAX_HALVINGS = 40
_PATIENCE = 4  # iterations at round-off without half the residual
_GOOD_CONTRACTION = 0.5  # of the residual: an old Hessian that still gives it is kept
_FAST_CONTRACTION = 0.02  # one that needs no correction
_GOAL = 0.05  # of the tolerance; of the default one in float32, that is about 4 eps (1 + |y|)
_VALUES_AT_ONCE = 1024  # rows; what stays in the cache of a CPU


class NewtonSolver:
    """Minimise F(x) - <x, y> in x, row by row, to grad F(x) = y.

    ``newton`` takes the Hessian, and keeps its inverse, corrected by what each step shows, for as long as it serves;
    ``newton_cg`` takes products with the Hessian alone (Nocedal & Wright, Numerical Optimization, 2006, chapters 3, 7).
    The step is halved until F falls enough. Rows that are done leave the work.

    Args:
        potential: F.
        y: shape (N, D).
        tolerance: of the residual relative to 1 + |y|.
        method: ``newton`` or ``newton_cg``.
        start: first x, shape (N, D); None for 0.
        inverse: inverse Hessians to begin with, shape (N, D, D), such as an earlier solver's of these rows; kept for as
            long as they serve. None to take them at ``start``.

    Attributes:
        inverse: of the Hessian near each x, shape (N, D, D); (N, 0, 0) for ``newton_cg``.
        best: the x with the smallest residual so far, shape (N, D).
        residual: |grad F(best) - y|, shape (N,).
        limit: tolerance * (1 + |y|), shape (N,).
        iterations: shape (N,).
    """

    def __init__(
        self,
        potential: Potential,
        y: Tensor,
        tolerance: float,
        method: NewtonMethod,
        start: Tensor | None = None,
        inverse: Tensor | None = None,
    ) -> None:
        self.potential, self.y, self.method = potential, y, method
        scale = 1.0 + y.norm(dim=1)
        self.limit = tolerance * scale
        # Past the tolerance, one more step mostly gains a few digits; at round-off it gains nothing.
        self.goal = torch.maximum(_GOAL * self.limit, 4.0 * torch.finfo(y.dtype).eps * scale).minimum(self.limit)
        self.iterations = torch.zeros_like(self.limit, dtype=torch.long)
        self.piece = rows_at_once(y.shape[1])
        size = y.shape[1] if method == "newton" else 0
        self.inverse = y.new_zeros(len(y), size, size) if inverse is None else inverse
        self._outdated = torch.full_like(self.limit, inverse is None, dtype=torch.bool)
        if start is None:
            self._place(torch.zeros_like(y[:1]), torch.zeros_like(self.iterations))
        else:
            self._place(start)

    def _place(self, x: Tensor, index: Tensor | None = None) -> None:
        """Start each row from x, or from one row of x; the map is evaluated once at each row of x, where it is one."""
        if index is not None and not self.potential.is_shared:
            x, index = x[index], None
        value, slope = self._evaluate(x)
        if index is not None:
            x, value, slope = x[index], value[index], slope[index]
        self.x, self.best = x.clone(), x.clone()
        self.value, self.gradient = value - (x * self.y).sum(1), slope - self.y
        self.residual = self.gradient.norm(dim=1)

    def refine(self, other: "NewtonSolver") -> None:
        """Start from the solutions of the same rows in lower precision, with inverse Hessians in that precision."""
        usable = other.residual <= other.limit
        rows = usable.nonzero().squeeze(1)
        other.x[rows] = other.best[rows]
        other._refresh(rows)
        self._place(torch.where(usable.unsqueeze(1), other.best.to(self.x), self.x))
        self.iterations += other.iterations
        self.inverse.copy_(other.inverse)
        self._outdated = ~usable

    def distance(self, gap: Tensor) -> Tensor:
        """How far ``best`` with these residuals (N, D) is from the solutions, by its Hessian; 0 without: (N,)."""
        if self.method != "newton":
            return torch.zeros_like(self.residual)
        self.x = self.best.clone()
        self._refresh(torch.arange(len(gap), device=gap.device))
        distance: Tensor = (self.inverse @ gap.unsqueeze(2)).squeeze(2).norm(dim=1)
        return distance

    def start_near(self, other: "NewtonSolver") -> None:
        """Start each row from the solved row of another problem whose y is nearest, and its inverse Hessian."""
        solved = (other.residual <= other.limit).nonzero().squeeze(1)
        if not len(solved):
            return
        known = other.y[solved]
        nearest = torch.cat([torch.cdist(rows, known).argmin(1) for rows in self.y.split(4096)])
        self._place(other.best[solved], nearest)
        self.inverse = other.inverse[solved[nearest]]
        self._outdated = other._outdated[solved[nearest]]

    def _evaluate(self, x: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """F and its gradient, at points of these rows or of all."""
        if not len(x):
            return x.sum(1), x
        potential = self.potential if rows is None else self.potential.rows(rows)
        parts = [slice(start, start + _VALUES_AT_ONCE) for start in range(0, len(x), _VALUES_AT_ONCE)]
        pieces = [potential.rows(part).value_gradient(x[part]) for part in parts]
        value, gradient = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        return value, gradient

    def solve(self, max_iterations: int) -> None:
        """Iterate until every row is at its goal, makes no more progress, or has had its iterations."""
        idle = torch.zeros_like(self.iterations)
        # Comparisons are false for NaN: rows that are not finite never enter.
        rows = ((self.residual > self.goal) & (self.residual < math.inf)).nonzero().squeeze(1)
        for _ in range(max_iterations):
            if not len(rows):
                break
            x, gradient, least = self.x[rows], self.gradient[rows], self.residual[rows]
            length, resolved = self._step(rows)
            self.iterations[rows] += 1
            found = self.gradient[rows].norm(dim=1)
            idle[rows] = torch.where(found < 0.5 * least, 0, idle[rows] + 1)
            contraction = found / gradient.norm(dim=1)
            self._outdated[rows] = (length < 1.0) | ~(contraction <= _GOOD_CONTRACTION)
            if self.method == "newton":
                kept = ~self._outdated[rows] & (contraction > _FAST_CONTRACTION) & (found > self.goal[rows])
                self._update(rows[kept], x[kept], gradient[kept])
            better = rows[found < least]
            self.best[better], self.residual[better] = self.x[better], found[found < least]
            # At round-off the residual only rattles; far from the solution it may rise for many steps, while F falls.
            patience = torch.where(self.residual[rows] <= self.limit[rows], 2, _PATIENCE)
            stalled = (length == 0.0) | (~resolved & (idle[rows] >= patience))
            rows = rows[(self.residual[rows] > self.goal[rows]) & (found < math.inf) & ~stalled]

    def _update(self, rows: Tensor, x: Tensor, gradient: Tensor) -> None:
        """Correct kept inverses by what the last step has shown of the Hessian.

        By the BFGS formula, which keeps them positive definite (Nocedal & Wright, 2006, equation 6.17).
        """
        step, change = self.x[rows] - x, self.gradient[rows] - gradient
        inverse = self.inverse[rows]
        image = (inverse @ change.unsqueeze(2)).squeeze(2)
        curvature = (step * change).sum(1, keepdim=True)
        known = curvature > 0  # not so only at round-off
        rate = torch.where(known, 1.0 / torch.where(known, curvature, 1.0), 0.0)
        bend = 0.5 * rate * (1.0 + rate * (change * image).sum(1, keepdim=True))
        side = bend * step - rate * image
        left, right = torch.stack([step, side], 2), torch.stack([side, step], 1)
        self.inverse[rows] = torch.baddbmm(inverse, left, right)

    def _step(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """One damped step of these rows: its length (0: none was found), and whether F still resolves the decrease."""
        x, y, value, gradient = self.x[rows], self.y[rows], self.value[rows], self.gradient[rows]
        direction = self._direction(rows)
        slope = (direction * gradient).sum(1)
        uphill = ~(slope < 0)  # round-off, or a Hessian that is not positive definite
        direction = torch.where(uphill.unsqueeze(1), -gradient, direction)
        slope = torch.where(uphill, -gradient.square().sum(1), slope)
        length = torch.ones_like(slope)
        resolution = 32.0 * torch.finfo(y.dtype).eps * (value.abs() + (x * y).sum(1).abs() + 1.0)
        pending = torch.arange(len(rows), device=rows.device)
        for _ in range(_MAX_HALVINGS):
            trial = x[pending] + length[pending].unsqueeze(1) * direction[pending]
            trial_value, trial_gradient = self._evaluate(trial, rows[pending])
            trial_value, trial_gradient = trial_value - (trial * y[pending]).sum(1), trial_gradient - y[pending]
            wanted = length[pending] * slope[pending]
            accept = trial_value <= value[pending] + _SUFFICIENT_DECREASE * wanted
            # Near the solution F no longer resolves the decrease; its slope does (Hager & Zhang, 2005, equation 4.1).
            trial_slope = (trial_gradient * direction[pending]).sum(1)
            level = trial_slope <= (2.0 * _SUFFICIENT_DECREASE - 1.0) * slope[pending]
            accept |= (-wanted <= resolution[pending]) & level
            done = pending[accept]
            self.x[rows[done]], self.value[rows[done]] = trial[accept], trial_value[accept]
            self.gradient[rows[done]] = trial_gradient[accept]
            pending = pending[~accept]
            if not len(pending):
                break
            length[pending] *= 0.5
        length[pending] = 0.0
        return length, -slope > resolution

    def _direction(self, rows: Tensor) -> Tensor:
        """-H^-1 (grad F - y), roughly."""
        gradient = self.gradient[rows]
        if self.method == "newton_cg":
            # Loose far away, tight enough close by for superlinear convergence (Dembo & Steihaug, 1983).
            relative = gradient.norm(dim=1) / (1.0 + self.y[rows].norm(dim=1))
            forcing = relative.sqrt().clamp(1e-3, 0.5)
            limit = max(20, 2 * self.y.shape[1])
            parts = [
                conjugate_gradients(
                    self.potential.rows(part).linearize(self.x[part]), -self.gradient[part], tolerance, limit
                )
                for part, tolerance in zip(rows.split(self.piece), forcing.split(self.piece), strict=True)
            ]
            return torch.cat([part.solution for part in parts])
        self._refresh(rows[self._outdated[rows]])
        direction: Tensor = -(self.inverse[rows] @ gradient.unsqueeze(2)).squeeze(2)
        return direction

    def _refresh(self, rows: Tensor) -> None:
        """New inverse Hessians at these rows."""
        for part in rows.split(self.piece):
            if len(part):
                self.inverse[part] = torch.cholesky_inverse(factorize(self.potential.rows(part).hessian(self.x[part])))


def rows_at_once(dim: int) -> int:
    """How many rows of Hessians are worked on together: what stays in the cache of a CPU."""
    return min(512, max(32, 5376 // dim))


def factorize(hessian: Tensor) -> Tensor:
    """Cholesky factors; a matrix that is not positive definite in this precision is shifted until it is.

    Args:
        hessian: shape (N, D, D).

    Returns:
        Lower factors, shape (N, D, D); meaningless where the matrix is not finite.
    """
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(hessian)
    finite = torch.isfinite(hessian).flatten(1).all(1)
    largest = hessian.diagonal(dim1=1, dim2=2).amax(1)
    shift = largest * torch.finfo(hessian.dtype).eps * hessian.shape[1] + torch.finfo(hessian.dtype).tiny
    for _ in range(12):
        rows = ((info != 0) & finite).nonzero().squeeze(1)
        if not len(rows):
            break
        shift = 10.0 * shift
        shifted = hessian[rows] + torch.diag_embed(shift[rows].unsqueeze(1).expand(-1, hessian.shape[1]))
        factor[rows], info[rows] = torch.linalg.cholesky_ex(shifted)
    return factor


def solve_cholesky(hessian: Tensor, b: Tensor) -> Tensor:
    """H^-1 b: shapes (N, D, D) and (N, D) to (N, D)."""
    solution: Tensor = torch.cholesky_solve(b.unsqueeze(2), factorize(hessian)).squeeze(2)
    return solution
