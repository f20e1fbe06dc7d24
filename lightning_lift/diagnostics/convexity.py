"""Is a potential convex? Tests that could show it is not: Jensen on segments, and a search for negative curvature."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Curved(Protocol):
    """What the tests need: a ``Potential`` has it."""

    def value(self, x: Tensor) -> Tensor:
        """(N, D) to (N,)."""

    def hessian(self, x: Tensor) -> Tensor:
        """(N, D) to (N, D, D)."""


class LeastCurvature(NamedTuple):
    """The least Hessian eigenvalue that a search found, and where.

    Attributes:
        eigenvalue: the smallest eigenvalue seen; an upper bound on the true least one.
        point: shape (D,).
    """

    eigenvalue: float
    point: Tensor


def jensen_gap(potential: Curved, starts: Tensor, ends: Tensor, fractions: Tensor) -> Tensor:
    """E((1 - t) x + t y) - (1 - t) E(x) - t E(y): at most zero, up to rounding, for a convex E.

    Args:
        potential: the function E.
        starts: x, shape (N, D).
        ends: y, shape (N, D).
        fractions: t in [0, 1], shape (N,).

    Returns:
        Shape (N,), relative to 1 + |E(x)| + |E(y)|, so that one tolerance (some multiples of the dtype's epsilon)
        serves every scale of energies.

    Raises:
        ValueError: shapes that differ, or fractions outside [0, 1].
    """
    if starts.shape != ends.shape or starts.ndim != 2 or fractions.shape != starts.shape[:1]:
        raise ValueError(
            f"segments of shapes {tuple(starts.shape)}, {tuple(ends.shape)}, fractions {tuple(fractions.shape)}: "
            "needs (N, D), (N, D) and (N,)."
        )
    if not bool(((fractions >= 0) & (fractions <= 1)).all()):
        raise ValueError("fractions must lie in [0, 1].")
    t = fractions.unsqueeze(1)
    low, high, middle = (potential.value(x) for x in (starts, ends, (1.0 - t) * starts + t * ends))
    return (middle - (1.0 - fractions) * low - fractions * high) / (1.0 + low.abs() + high.abs())


def worst_jensen_gap(potential: Curved, points: Tensor, seed: int = 0) -> float:
    """The largest Jensen gap over random segments between the given points.

    Each point is joined with another one, and with points a tenth and a hundredth of the way to it: long segments see
    global faults, short ones local ones.

    Args:
        potential: the function E.
        points: shape (N, D), N >= 2, in the dtype and on the device of the potential.
        seed: of the pairing and the fractions.

    Returns:
        Relative gap, see ``jensen_gap``; positive beyond rounding means not convex, NaN a potential that is not finite.

    Raises:
        ValueError: fewer than two points.
    """
    if points.ndim != 2 or points.shape[0] < 2:
        raise ValueError(f"points of shape {tuple(points.shape)}: needs (N, D) with at least two points.")
    generator = torch.Generator().manual_seed(seed)
    size = points.shape[0]
    # A shift of a random order joins every point with another one, never with itself.
    order = torch.randperm(size, generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    ends = points[partner.to(points.device)]
    starts = points.repeat(3, 1)
    ends = torch.cat([points + length * (ends - points) for length in (1.0, 0.1, 0.01)])
    fractions = torch.rand(3 * size, generator=generator).to(points)
    with torch.no_grad():
        return jensen_gap(potential, starts, ends, fractions).max().item()


def least_eigenvalues(potential: Curved, x: Tensor) -> Tensor:
    """The least eigenvalue of the Hessian at each point, in float64 on the CPU: shape (N, D) to (N,).

    Raises:
        ArithmeticError: a Hessian that is not finite.
    """
    with torch.no_grad():
        hessian = potential.hessian(x).cpu().double()
    if not bool(hessian.isfinite().all()):
        raise ArithmeticError("the potential's Hessian is not finite at a given point; the model has diverged.")
    eigenvalues: Tensor = torch.linalg.eigvalsh(0.5 * (hessian + hessian.mT))
    return eigenvalues[:, 0]


def search_least_eigenvalue(
    potential: Curved, starts: Tensor, num_rounds: int = 30, num_offspring: int = 8, seed: int = 0
) -> LeastCurvature:
    """Search the inputs for the least Hessian eigenvalue, from several starts, without gradients.

    A (1 + lambda) evolution from each start: the best of the parent and its offspring goes on, and the step, first as
    wide as the starts themselves, shrinks where no child was better and grows where one was.

    Args:
        potential: the function E.
        starts: shape (S, D), in the dtype and on the device of the potential; cover the inputs that matter.
        num_rounds: rounds of the search.
        num_offspring: children of each start a round.
        seed: of the search.

    Raises:
        ValueError: no starts, rounds or offspring.
        ArithmeticError: a Hessian that is not finite.
    """
    if starts.ndim != 2 or starts.shape[0] < 1 or num_rounds < 1 or num_offspring < 1:
        raise ValueError(
            f"starts of shape {tuple(starts.shape)}, num_rounds={num_rounds}, num_offspring={num_offspring}: needs "
            "(S, D) and at least one of each."
        )
    generator = torch.Generator().manual_seed(seed)
    points, best = starts.clone(), least_eigenvalues(potential, starts)
    count, dim = starts.shape
    spread = (starts - starts.mean(0)).abs().max().item() or 1.0
    steps = torch.full((count,), spread, dtype=torch.float64)
    for _ in range(num_rounds):
        noise = torch.randn(count, num_offspring, dim, generator=generator, dtype=torch.float64)
        children = points.unsqueeze(1) + (steps[:, None, None] * noise).to(points)
        values = least_eigenvalues(potential, children.reshape(-1, dim)).view(count, num_offspring)
        value, index = values.min(1)
        better = value < best
        chosen = children[torch.arange(count), index.to(children.device)]
        points = torch.where(better.to(points.device).unsqueeze(1), chosen, points)
        best = torch.where(better, value, best)
        steps = torch.where(better, steps * 1.5, steps * 0.7)
    winner = int(best.argmin())
    return LeastCurvature(best[winner].item(), points[winner].detach())
