"""How a transport finds the points x^(y) of the conjugate f*(y) = max_x <x, y> - f(x) while it trains."""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lightning_lift.flows.inverse import newton_method
from lightning_lift.flows.newton import NewtonSolver
from lightning_lift.potential import Potential

ConjugateName = Literal["newton", "amortized", "minimax", "cycle"]

_MOST_NUMBERS = 1 << 27  # kept of inverse Hessians: half a gigabyte; beyond it points alone are kept
_NEWTON_STEPS, _LBFGS_STEPS = 4, 20


class Conjugate(NamedTuple):
    """Points of the conjugate for one batch, and what trains the network that predicts them.

    Attributes:
        points: shape (M, D), without gradient.
        solved: which of them count, shape (M,).
        loss: of the second network, and for ``cycle`` of both; None where there is none.
        residual: |grad f(points) - y|, shape (M,); None where it was not looked at.
    """

    points: Tensor
    solved: Tensor
    loss: Tensor | None = None
    residual: Tensor | None = None


class ConjugateSolver(ABC):
    """Base of the ways to find the points. Rows are in training units.

    Args:
        tolerance: a row counts as solved with a residual below it times 1 + |y|.
    """

    has_network: bool = True
    """Whether a second convex network g predicts the points, by its gradient."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    @abstractmethod
    def solve(self, potentials: tuple[Potential, ...], y: Tensor, positions: Tensor | None) -> Conjugate:
        """Find the points of a batch.

        Args:
            potentials: f, and g where there is one, differentiable.
            y: shape (M, D).
            positions: of each row among those that are kept, (M,) int64; None where none are.
        """

    def forget(self) -> None:  # noqa: B027  # most know nothing
        """Forget what is known of the rows: a fit begins."""


class NewtonConjugate(ConjugateSolver):
    """Damped Newton steps for each row, from where its last visit ended, with the inverse Hessian of then.

    Rows that are not kept, and those on their first visit, start from the inverse of the Gaussian map: in training
    units from y.
    """

    has_network = False

    def __init__(self, tolerance: float) -> None:
        super().__init__(tolerance)
        self._points: Tensor | None = None
        self._inverses: Tensor | None = None

    def solve(self, potentials: tuple[Potential, ...], y: Tensor, positions: Tensor | None) -> Conjugate:
        """Find the points of a batch; see ``ConjugateSolver``."""
        method = newton_method(y.shape[1])
        start, inverse = y, None
        if positions is not None:
            self._make_room(positions, y, method == "newton")
            assert self._points is not None
            start = self._points[positions]
            start = torch.where(torch.isfinite(start), start, y)
            inverse = None if self._inverses is None else self._inverses[positions]
        solver = NewtonSolver(constant(potentials[0]), y, self.tolerance, method, start, inverse)
        solver.solve(_NEWTON_STEPS)
        solved = solver.residual <= solver.limit
        if positions is not None and self._points is not None:
            self._points[positions] = solver.best  # of a row that is not solved too: its next visit goes on from there
            if self._inverses is not None:
                self._inverses[positions] = solver.inverse
        return Conjugate(solver.best, solved, residual=solver.residual)

    def forget(self) -> None:
        """Forget the rows' points and inverse Hessians."""
        self._points = self._inverses = None

    def _make_room(self, positions: Tensor, y: Tensor, hessians: bool) -> None:
        known = 0 if self._points is None else len(self._points)
        missing = int(positions.max()) + 1 - known if len(positions) else 0
        if missing <= 0:
            return
        missing = max(missing, known)  # doubled, so that room is made a few times only
        dim = y.shape[1]
        new = y.new_full((missing, dim), torch.nan)
        self._points = new if self._points is None else torch.cat([self._points, new])
        if not hessians or len(self._points) * dim * dim > _MOST_NUMBERS:
            self._inverses = None
            return
        identity = torch.eye(dim, dtype=y.dtype, device=y.device)  # that of the start
        eyes = identity.repeat(len(self._points) - (0 if self._inverses is None else known), 1, 1)
        self._inverses = eyes if self._inverses is None else torch.cat([self._inverses, eyes])


class AmortizedConjugate(ConjugateSolver):
    """grad g(y), finished by L-BFGS over the batch; g then learns the finished points (Amos, ICLR 2023)."""

    def solve(self, potentials: tuple[Potential, ...], y: Tensor, positions: Tensor | None) -> Conjugate:
        """Find the points of a batch; see ``ConjugateSolver``."""
        f, predicted = constant(potentials[0]), potentials[1].gradient(y)
        x = predicted.detach().clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [x], max_iter=_LBFGS_STEPS, tolerance_grad=0.1 * self.tolerance, line_search_fn="strong_wolfe"
        )

        def evaluate() -> Tensor:
            value, slope = f.value_gradient(x.detach())
            x.grad = slope - y
            return value.sum() - (x.detach() * y).sum()

        optimizer.step(evaluate)
        points = x.detach()
        residual = (f.gradient(points) - y).norm(dim=1)
        solved = residual <= self.tolerance * (1.0 + y.norm(dim=1))
        error = (predicted - points).square().sum(1)
        loss = torch.where(solved, error, 0.0).sum() / solved.sum().clamp(min=1)
        return Conjugate(points, solved, loss, residual)


class MinimaxConjugate(ConjugateSolver):
    """grad g(y) as it is; g climbs towards the maximum (Makkuva, Taghvaei, Oh & Lee, ICML 2020)."""

    def solve(self, potentials: tuple[Potential, ...], y: Tensor, positions: Tensor | None) -> Conjugate:
        """Find the points of a batch; see ``ConjugateSolver``."""
        points = potentials[1].gradient(y)
        loss = (constant(potentials[0]).value(points) - (points * y).sum(1)).mean()
        return Conjugate(points.detach(), _finite(points), loss)


class CycleConjugate(ConjugateSolver):
    """grad g(y) as it is; a penalty holds grad f(grad g(y)) at y (Korotin et al., Wasserstein-2 GN, ICLR 2021).

    Args:
        tolerance: not used.
        weight: of the penalty.
    """

    def __init__(self, tolerance: float, weight: float = 10.0) -> None:
        super().__init__(tolerance)
        self.weight = weight

    def solve(self, potentials: tuple[Potential, ...], y: Tensor, positions: Tensor | None) -> Conjugate:
        """Find the points of a batch; see ``ConjugateSolver``."""
        points = potentials[1].gradient(y)
        gap = (potentials[0].gradient(points) - y).square().sum(1)
        return Conjugate(points.detach(), _finite(points), self.weight * gap.mean(), gap.detach().sqrt())


SOLVERS: dict[str, type[ConjugateSolver]] = {
    "newton": NewtonConjugate,
    "amortized": AmortizedConjugate,
    "minimax": MinimaxConjugate,
    "cycle": CycleConjugate,
}


def constant(potential: Potential) -> Potential:
    """The same function, in which no gradient reaches its weights or parameters.

    Args:
        potential: without context.
    """
    own = {name: parameter.detach() for name, parameter in potential.network.named_parameters()}
    return Potential(potential.network, own | {name: w.detach() for name, w in potential.weights.items()})


def _finite(points: Tensor) -> Tensor:
    return torch.isfinite(points.detach()).all(1)
