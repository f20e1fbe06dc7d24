"""Conjugate gradients on a batch of symmetric positive definite systems, each stopped by itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_lift.networks.hessian_vector import Linearization


class ConjugateGradients(NamedTuple):
    """Solutions of H x = b, with what is known of each.

    Attributes:
        solution: the shape of b: (N, D) or (N, D, m).
        residual: |b - H x| / |b|, recomputed at the end and not the recurrence's own: shape (N,) or (N, m).
        iterations: products spent on each system, same shape, integer.
        converged: residual <= tolerance, same shape, boolean. False too where H turned out not to be positive definite.
        broken: H was not positive definite, or not finite, along a search direction: same shape, boolean.
        diagonal: of the tridiagonal matrix that Lanczos' method started at b would give, shape (N, m, k) with k the
            most iterations of any system; 1 past a system's own last iteration.
        off_diagonal: beside it, shape (N, m, k - 1); 0 past a system's own last iteration.
    """

    solution: Tensor
    residual: Tensor
    iterations: Tensor
    converged: Tensor
    broken: Tensor
    diagonal: Tensor
    off_diagonal: Tensor


@torch.no_grad()
def conjugate_gradients(
    product: Linearization, b: Tensor, tolerance: Tensor | float, max_iterations: int
) -> ConjugateGradients:
    """Solve H x = b for the Hessian at each point, without gradient.

    The method of Hestenes & Stiefel (1952), every system masked as soon as it is solved; rows of which all systems are
    solved are dropped from the products. The coefficients also give the Lanczos matrix at no cost (Saad, Iterative
    Methods for Sparse Linear Systems, section 6.7.3).

    Args:
        product: the Hessians at N points.
        b: right-hand sides, shape (N, D) or (N, D, m).
        tolerance: on the relative residual: a number, or one for each point, shape (N,).
        max_iterations: products at most.

    Raises:
        ValueError: a right-hand side of the wrong shape, or fewer than one iteration.
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations={max_iterations}: conjugate gradients need at least one.")
    columns = b if b.ndim == 3 else b.unsqueeze(2)
    count = len(columns)
    norm = columns.norm(dim=1)  # (N, m)
    relative = torch.as_tensor(tolerance, dtype=b.dtype, device=b.device)
    limit = norm * (relative.unsqueeze(1) if relative.ndim else relative)
    solution = torch.zeros_like(columns)
    broken = torch.zeros_like(norm, dtype=torch.bool)
    iterations = torch.zeros_like(norm, dtype=torch.long)
    steps: list[Tensor] = []  # alpha of each iteration, (N, m), 0 where a system did not take it
    ratios: list[Tensor] = []  # beta

    # The state of the rows still in work; `rows` says which they are.
    rows = torch.arange(count, device=b.device)
    x, r, operator = solution.clone(), columns.clone(), product
    p, square = r, r.square().sum(1)
    # Half the limit: the recurrence's residual drifts from the true one, which is what is judged in the end.
    done = ~(square > (0.5 * limit).square())
    for _ in range(max_iterations):
        running = ~done
        live = running.any(1)
        remaining = int(live.sum())
        if not remaining:
            break
        if 2 * remaining <= len(rows):
            solution[rows] = x
            keep = live.nonzero().squeeze(1)
            rows, operator = rows[keep], operator.select(keep)
            x, r, p, square, running = x[keep], r[keep], p[keep], square[keep], running[keep]
        image = operator(p)
        energy = (p * image).sum(1)
        positive = (energy > 0) & torch.isfinite(energy)
        moving = running & positive
        alpha = torch.where(moving, square / energy, 0.0)
        x = x + alpha.unsqueeze(1) * p
        r = torch.where(moving.unsqueeze(1), r - alpha.unsqueeze(1) * image, r)
        new_square = r.square().sum(1)
        beta = torch.where(moving, new_square / square, 0.0)
        p = r + beta.unsqueeze(1) * p
        square = new_square
        broken[rows] |= running & ~positive
        iterations[rows] += moving
        steps.append(torch.zeros_like(norm).index_put((rows,), alpha))
        ratios.append(torch.zeros_like(norm).index_put((rows,), beta))
        done = ~moving | ~(square > (0.5 * limit[rows]).square())
    solution[rows] = x
    diagonal, off_diagonal = _tridiagonal(steps, ratios, norm)
    residual = (columns - product(solution)).norm(dim=1) / torch.where(norm > 0, norm, 1.0)
    converged = (residual * norm <= limit) & ~broken
    if b.ndim == 2:
        solution, residual, iterations = solution.squeeze(2), residual.squeeze(1), iterations.squeeze(1)
        converged, broken = converged.squeeze(1), broken.squeeze(1)
    return ConjugateGradients(solution, residual, iterations, converged, broken, diagonal, off_diagonal)


def _tridiagonal(steps: list[Tensor], ratios: list[Tensor], norm: Tensor) -> tuple[Tensor, Tensor]:
    """T_ii = 1/alpha_i + beta_{i-1}/alpha_{i-1}, T_{i,i+1} = sqrt(beta_i)/alpha_i; the identity past the end."""
    if not steps:
        return norm.new_ones(*norm.shape, 1), norm.new_zeros(*norm.shape, 0)
    alpha, beta = torch.stack(steps, -1), torch.stack(ratios, -1)
    taken = alpha > 0
    inverse = torch.where(taken, 1.0 / torch.where(taken, alpha, 1.0), 0.0)
    diagonal = torch.where(taken, inverse, 1.0)
    diagonal[..., 1:] += torch.where(taken[..., 1:], (beta * inverse)[..., :-1], 0.0)
    off_diagonal = torch.where(taken[..., 1:], (beta.sqrt() * inverse)[..., :-1], 0.0)
    return diagonal, off_diagonal
