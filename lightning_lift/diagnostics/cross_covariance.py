"""Cross-covariance of latent and gradient at a fixed iterate, over probe batches.

The estimator of arXiv 2605.24274, with the corrections of the author's later work. Nothing here is hard-coded: a
latent that does not move with the batch reads round-off zero because it is measured so. What the reading means: it
enters the diffusion of the update noise. It does not show that the landscape gains curvature, and the sign of its trace
does not give the sign of the coupling.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lightning_lift.diagnostics.gram import JackknifeErrors, frobenius_norm, paired_gram

ROUNDOFF = 1e-6


@dataclass(frozen=True)
class Reading:
    """One reading of S = cov(latent, g) over B probe batches, with plain numbers only.

    Attributes:
        num_batches: B.
        num_weights: d.
        trace: sigma^2_Jac = tr S.
        frobenius: |S|_F.
        asymmetry: |S - S^T|_F / |S|_F, in [0, 2]; 0 where S is zero.
        p_value: permutation p-value of |S|_F, one-sided.
        p_value_trace: permutation p-value of the trace, two-sided (the trace can vanish where S does not).
        kappa: largest |latent| over weights and batches.
        mu_eff: trace / (d kappa^2); NaN where kappa is 0.
        objective_trace: trace of the objective part, g taken at the mean latent on the same batches.
        objective_frobenius: its Frobenius norm.
        remainder_trace: trace of the rest, which comes from the latent's own movement (about cov(latent) H).
        remainder_frobenius: its Frobenius norm.
        latent_norm: |latent|_F over the B rows, not centred.
        gradient_norm: |g|_F over the B rows, not centred.
        is_roundoff: |S|_F <= 1e-6 |latent|_F |g|_F / (B - 1), zero as far as float32 can tell.
        trace_error: jackknife standard error of the trace, over rows (or blocks of them).
        frobenius_error: that of |S|_F.
        null_frobenius: root mean square of |S|_F under the shuffles: |S|_F of B rows is biased upwards, and reads about
            this much where nothing is coupled.
        objective_trace_error: jackknife standard error of ``objective_trace``, like the rest of the objective part NaN
            without it.
        objective_frobenius_error: that of ``objective_frobenius``.
        objective_p_value: permutation p-value of ``objective_frobenius``, one-sided.
    """

    num_batches: int
    num_weights: int
    trace: float
    frobenius: float
    asymmetry: float
    p_value: float
    p_value_trace: float
    kappa: float
    mu_eff: float
    objective_trace: float
    objective_frobenius: float
    remainder_trace: float
    remainder_frobenius: float
    latent_norm: float
    gradient_norm: float
    is_roundoff: bool
    trace_error: float
    frobenius_error: float
    null_frobenius: float
    objective_trace_error: float
    objective_frobenius_error: float
    objective_p_value: float

    def as_dict(self) -> dict[str, int | float | bool]:
        """The numbers by name."""
        return asdict(self)

    def __str__(self) -> str:
        zero = " (round-off zero)" if self.is_roundoff else ""
        return (
            f"|S|_F {self.frobenius:.4g} +- {self.frobenius_error:.2g}{zero}, p {self.p_value:.3g}; "
            f"trace {self.trace:.4g} +- {self.trace_error:.2g}, two-sided p {self.p_value_trace:.3g}; "
            f"mu_eff {self.mu_eff:.4g}; asymmetry {self.asymmetry:.3g}"
        )


@dataclass(frozen=True)
class CrossCovarianceResult:
    """The two readings, kept apart.

    Attributes:
        latent_gradient: with g = d loss / d latent; exists for every parameterization.
        slack: with g = d loss / d slack; None where the parameterization has no slack (undefined, which is not 0).
    """

    latent_gradient: Reading
    slack: Reading | None

    def __str__(self) -> str:
        slack = "no slack" if self.slack is None else str(self.slack)
        return f"latent_gradient: {self.latent_gradient}\nslack: {slack}"


def read_cross_covariance(
    latents: Tensor,
    gradients: Tensor,
    objective_gradients: Tensor | None = None,
    num_permutations: int = 200,
    seed: int = 0,
    times: Tensor | None = None,
    block: int = 1,
) -> Reading:
    """Read the cross-covariance from rows collected at a fixed iterate, or over a window of training.

    Everything goes through B x B Gram matrices in float64 on the CPU, never through a d x d matrix.

    Args:
        latents: the latent of each probe batch, shape (B, d).
        gradients: the gradient of each probe batch's loss, shape (B, d).
        objective_gradients: the same gradients taken at the mean latent, shape (B, d); without them the objective part
            and the remainder are NaN.
        num_permutations: shuffles of the pairing.
        seed: of the shuffles' own generator.
        times: of the rows, shape (B,), where the iterate moves from row to row: a straight line in time is then taken
            off each column, and B - 2 divides in place of B - 1.
        block: neighbouring rows that the jackknife leaves out together, for rows that depend on their neighbours.

    Raises:
        ValueError: fewer than three rows (four with times), shapes that differ, no permutations, a block that does not
            fit, or rows that are not finite.
    """
    _check_rows(latents, gradients, objective_gradients)
    if num_permutations < 1:
        raise ValueError(f"num_permutations={num_permutations}: the permutation null needs at least one shuffle.")
    size, num_weights = latents.shape
    if times is not None and size < 4:
        raise ValueError(f"{size} rows with times: a line in time takes two of them, so give at least 4.")
    gram = paired_gram(latents, gradients, times)
    null = gram.permutation_null(num_permutations, torch.Generator().manual_seed(seed))
    errors = gram.jackknife(block)
    nan = float("nan")
    parts = [nan] * 4
    objective_errors, objective_p_value = JackknifeErrors(nan, nan), nan
    if objective_gradients is not None:
        objective = paired_gram(latents, objective_gradients, times)
        remainder = paired_gram(latents, gradients.cpu().double() - objective_gradients.cpu().double(), times)
        parts = [objective.trace, objective.frobenius, remainder.trace, remainder.frobenius]
        objective_errors = objective.jackknife(block)
        objective_p_value = objective.permutation_null(num_permutations, torch.Generator().manual_seed(seed)).p_value
    kappa = latents.abs().max().item()
    latent_norm, gradient_norm = frobenius_norm(latents), frobenius_norm(gradients)
    return Reading(
        num_batches=size,
        num_weights=num_weights,
        trace=gram.trace,
        frobenius=gram.frobenius,
        asymmetry=gram.asymmetry,
        p_value=null.p_value,
        p_value_trace=null.p_value_trace,
        kappa=kappa,
        mu_eff=gram.trace / (num_weights * kappa**2) if kappa else nan,
        objective_trace=parts[0],
        objective_frobenius=parts[1],
        remainder_trace=parts[2],
        remainder_frobenius=parts[3],
        latent_norm=latent_norm,
        gradient_norm=gradient_norm,
        is_roundoff=gram.frobenius * gram.freedom <= ROUNDOFF * latent_norm * gradient_norm,
        trace_error=errors.trace,
        frobenius_error=errors.frobenius,
        null_frobenius=null.frobenius,
        objective_trace_error=objective_errors.trace,
        objective_frobenius_error=objective_errors.frobenius,
        objective_p_value=objective_p_value,
    )


def _check_rows(latents: Tensor, gradients: Tensor, objective_gradients: Tensor | None) -> None:
    if latents.ndim != 2 or latents.shape[0] < 3 or latents.shape[1] < 1:
        raise ValueError(f"latents of shape {tuple(latents.shape)}: needs (B, d), at least 3 probe batches.")
    for name, rows in (("gradients", gradients), ("objective_gradients", objective_gradients)):
        if rows is not None and rows.shape != latents.shape:
            raise ValueError(f"{name} of shape {tuple(rows.shape)} must match latents of {tuple(latents.shape)}.")
    for name, rows in (("latents", latents), ("gradients", gradients), ("objective_gradients", objective_gradients)):
        if rows is not None and not bool(rows.isfinite().all()):
            raise ValueError(f"{name} hold numbers that are not finite: the model has diverged.")
