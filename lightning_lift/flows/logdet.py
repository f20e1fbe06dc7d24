"""The gradient of a potential with the log-determinant of its Hessian: exactly, or by a stochastic estimate."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lightning_lift.flows.conjugate_gradients import conjugate_gradients
from lightning_lift.networks.base import check_chunk_size
from lightning_lift.potential import Potential

LogDetChoice = Literal["auto", "exact", "stochastic"]

# Dimensions. Forward and backward of a point, ICNN 256x3, one thread, exact against one probe at 1e-3, milliseconds:
# 1.4 / 0.3 at D = 64, 10 / 3.3 at 256, 105 / 6.4 at 512. The exact gradient has no variance: worth a few times.
_EXACT_UP_TO = 256
# One exact value costs less than 32 probes by far (29 against 291 ms at D = 512), and its error is not 5-10 nats.
_EXACT_EVALUATION_UP_TO = 1024
_VECTORS_AT_ONCE = 4096  # points times probes, in evaluation


class LogDetResult(NamedTuple):
    """The map of a convex potential and its log-determinant at N points.

    Attributes:
        gradient: grad E(x), shape (N, D).
        logdet: log det Hess E(x), nats, shape (N,). Differentiable; NaN where the Hessian is not positive definite.
        standard_error: of ``logdet``, over probes, nats, shape (N,): 0 where it is exact, NaN where one probe leaves
            it unknown. The probes of an evaluation are the same at every point, so their errors do not average out
            over points: the mean of the standard errors bounds the standard error of the mean.
        residual: largest relative residual of the conjugate gradients over the probes, shape (N,): 0 where exact.
            Above the tolerance, the gradient is biased, and the value leans upwards.
        converged: the residual is within the tolerance, shape (N,).
    """

    gradient: Tensor
    logdet: Tensor
    standard_error: Tensor
    residual: Tensor
    converged: Tensor


class LogDet(nn.Module, ABC):
    """How a flow computes its log-determinants.

    Subclass requirements: ``forward(potential, x)`` returns a ``LogDetResult`` whose ``gradient`` and ``logdet`` carry
    the gradients of training; in eval mode the value at a point does not depend on the other points of its batch.
    """

    kind: Literal["exact", "stochastic"]

    @abstractmethod
    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        """The map and its log-determinant.

        Args:
            potential: the convex function.
            x: points, shape (N, D).
        """


class ExactLogDet(LogDet):
    """By the Hessian and its Cholesky factor.

    Args:
        chunk_size: rows at a time; None for what the network finds fastest.

    Raises:
        ValueError: a chunk size below 1.
    """

    kind = "exact"

    def __init__(self, chunk_size: int | None = None) -> None:
        super().__init__()
        check_chunk_size(chunk_size)
        self.chunk_size = chunk_size

    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        """The map and its log-determinant; see ``LogDet``."""
        gradient, logdet = potential.gradient_logdet(x, self.chunk_size)
        zero = torch.zeros_like(logdet.detach())
        return LogDetResult(gradient, logdet, zero, zero, torch.isfinite(logdet.detach()))


class StochasticLogDet(LogDet):
    r"""By products with the Hessian alone, for dimensions in which the Hessian itself is too dear.

    With probes v of random signs and w = H^-1 v by conjugate gradients, w^T H(x) v has the gradient w^T dH v, whose
    mean over v is tr(H^-1 dH) = d log det H (Hutchinson, 1989; Huang et al., ICLR 2021, section 3.1): unbiased as far
    as the conjugate gradients have converged, and what they leave is returned. The value is the mean of v^T log(H) v
    by Lanczos quadrature from the same iterations, with its standard error over the probes.

    In training each point has fresh probes. In evaluation the exact value is cheaper and better as long as a Hessian
    fits into memory; beyond, all points share one fixed set of probes.

    Args:
        num_probes: probes a point in training.
        evaluation: how values in evaluation are computed: ``exact``, ``stochastic``, or ``auto``, exact up to 1024
            dimensions.
        evaluation_probes: probes in stochastic evaluation.
        tolerance: of the conjugate gradients, relative.
        max_iterations: of the conjugate gradients; None for twice the dimension (round-off costs more than the exact
            number, which is the dimension).
        seed: of this estimator's own generator.

    Raises:
        ValueError: fewer than one probe (two in evaluation) or iteration, a tolerance that is not positive.
    """

    kind = "stochastic"

    def __init__(
        self,
        num_probes: int = 1,
        evaluation: LogDetChoice = "auto",
        evaluation_probes: int = 32,
        tolerance: float = 1e-4,
        max_iterations: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_choice("evaluation", evaluation)
        if num_probes < 1:
            raise ValueError(f"num_probes={num_probes}: at least one probe is needed.")
        if evaluation_probes < 2:
            raise ValueError(f"evaluation_probes={evaluation_probes}: a standard error needs at least two.")
        if not tolerance > 0.0:
            raise ValueError(f"tolerance={tolerance}: must be positive.")
        if max_iterations is not None and max_iterations < 1:
            raise ValueError(f"max_iterations={max_iterations}: give at least one, or None for twice the dimension.")
        self.num_probes, self.evaluation, self.evaluation_probes = num_probes, evaluation, evaluation_probes
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.seed = seed
        self._generator = torch.Generator().manual_seed(seed)

    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        """The map and its log-determinant; see ``LogDet``."""
        if self.training:
            signs = torch.randint(0, 2, (*x.shape, self.num_probes), generator=self._generator)
            return self._estimate(potential, x, signs)
        if self.evaluates_exactly(x.shape[1]):
            result: LogDetResult = ExactLogDet()(potential, x)
            return result
        generator = torch.Generator().manual_seed(self.seed)
        signs = torch.randint(0, 2, (1, x.shape[1], self.evaluation_probes), generator=generator)
        size = max(1, _VECTORS_AT_ONCE // self.evaluation_probes)
        pieces = [slice(start, start + size) for start in range(0, max(len(x), 1), size)]
        results = [self._estimate(potential.rows(part), x[part], signs.expand(len(x[part]), -1, -1)) for part in pieces]
        return LogDetResult(*(torch.cat(parts) for parts in zip(*results, strict=True)))

    def evaluates_exactly(self, dim: int) -> bool:
        """Whether values in evaluation are exact in ``dim`` dimensions."""
        return self.evaluation == "exact" or (self.evaluation == "auto" and dim <= _EXACT_EVALUATION_UP_TO)

    def _estimate(self, potential: Potential, x: Tensor, signs: Tensor) -> LogDetResult:
        product = potential.linearize(x)
        probes = (2.0 * signs - 1.0).to(product.gradient)
        dim, count = probes.shape[1:]
        solved = conjugate_gradients(product, probes, self.tolerance, self.max_iterations or 2 * dim)
        square_norm = torch.full_like(solved.residual, float(dim))
        values = log_quadratic_form(solved.diagonal, solved.off_diagonal, square_norm)
        values = values.masked_fill(solved.broken, torch.nan)
        logdet = values.mean(1)
        error = values.std(1) / count**0.5 if count > 1 else torch.full_like(logdet, torch.nan)
        if torch.is_grad_enabled():
            surrogate = (solved.solution * product(probes)).sum(1).mean(1)
            logdet = logdet + (surrogate - surrogate.detach())
        return LogDetResult(product.gradient, logdet, error, solved.residual.amax(1), solved.converged.all(1))

    def get_extra_state(self) -> dict[str, Tensor]:
        """The state of the probes' generator, so that a resumed run draws the same ones."""
        return {"generator": self._generator.get_state()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Put the generator back."""
        self._generator.set_state(state["generator"].cpu())


def choose_logdet(dim: int) -> Literal["exact", "stochastic"]:
    """What ``auto`` means in ``dim`` dimensions."""
    return "exact" if dim <= _EXACT_UP_TO else "stochastic"


def make_logdet(
    kind: LogDetChoice, dim: int, chunk_size: int | None = None, stochastic: Callable[[], LogDet] = StochasticLogDet
) -> LogDet:
    """The estimator of this name; its ``kind`` says what ``auto`` chose.

    Args:
        kind: ``auto``, ``exact`` or ``stochastic``.
        dim: dimension D.
        chunk_size: rows at a time in the exact one; None for what the network finds fastest.
        stochastic: makes the stochastic one, for settings other than its defaults.

    Raises:
        ValueError: an unknown name.
    """
    check_choice("logdet", kind)
    return ExactLogDet(chunk_size) if (choose_logdet(dim) if kind == "auto" else kind) == "exact" else stochastic()


def check_choice(name: str, value: str) -> None:
    """Refuse a way to compute log-determinants that is not known.

    Raises:
        ValueError: ``value`` is none of ``auto``, ``exact`` and ``stochastic``.
    """
    if value not in ("auto", "exact", "stochastic"):
        raise ValueError(f"{name}={value!r} is not known; choose 'auto', 'exact' or 'stochastic'.")


@torch.no_grad()
def log_quadratic_form(diagonal: Tensor, off_diagonal: Tensor, square_norm: Tensor) -> Tensor:
    """v^T log(H) v by Gauss quadrature, |v|^2 e_1^T log(T) e_1 (Golub & Welsch, 1969; Ubaru, Chen & Saad, 2017).

    T is the Lanczos matrix of H started at v. The rule is exact once the Krylov space of v is exhausted; stopped
    earlier it errs upwards, because the even derivatives of the logarithm are negative.

    Args:
        diagonal: of T, shape (..., k).
        off_diagonal: of T, shape (..., k - 1).
        square_norm: |v|^2, shape (...).

    Returns:
        Shape (...), in the dtype of ``diagonal``; NaN where T is not finite or not positive definite.
    """
    # Small matrices, and MPS has neither eigh nor float64: on the CPU in double precision.
    main, side = diagonal.cpu().double(), off_diagonal.cpu().double()
    matrix = torch.diag_embed(main) + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    finite = torch.isfinite(matrix).all(-1).all(-1)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    eigenvalues, eigenvectors = torch.linalg.eigh(torch.where(finite[..., None, None], matrix, identity))
    value = (eigenvectors[..., 0, :].square() * eigenvalues.log()).sum(-1)
    return square_norm * torch.where(finite, value, torch.nan).to(square_norm)
