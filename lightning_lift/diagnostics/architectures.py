"""What one architecture's latent and gradient have in common at an iterate: one row of the four-architecture table.

The four are direct, slack only, body only and the full lift (arXiv 2605.24274). Nothing depends on which one it is: the
same numbers are read from each, and a latent that does not move reads zero because it is measured so.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from lightning_lift.diagnostics.cross_covariance import ROUNDOFF, CrossCovarianceResult, Reading
from lightning_lift.diagnostics.gram import centred, paired_gram
from lightning_lift.diagnostics.latent_hessian import hessian_products
from lightning_lift.diagnostics.probe import Probed, ProbeRows, collect, read_probe


@dataclass(frozen=True)
class FollowedMovement:
    """How much of Sigma = cov(latent, g) the latent's own movement explains, Sigma = Cov(latent) H.

    H is the Hessian of the loss in the latent at the mean latent. Where latent and batch gradient are independent, as
    with an independent conditioning batch, that is all there is, up to what is not quadratic.

    Attributes:
        explained_frobenius: |Cov(latent) H|_F.
        rest_frobenius: |Sigma - Cov(latent) H|_F.
        rest_null_frobenius: what B unrelated rows would read for it, the root mean square over the shuffles.
        rest_p_value: permutation p-value of the rest; large where it is no more than noise.
        explained_trace: tr Cov(latent) H.
        rest_trace: tr Sigma - tr Cov(latent) H.
        rest_trace_error: jackknife standard error of the rest's trace.
    """

    explained_frobenius: float
    rest_frobenius: float
    rest_null_frobenius: float
    rest_p_value: float
    explained_trace: float
    rest_trace: float
    rest_trace_error: float


@dataclass(frozen=True)
class ArchitectureReading:
    """One row of the table.

    Attributes:
        probe: both readings at the fixed iterate.
        movement: how much of the latent-gradient reading is Cov(latent) H; None for a latent that does not move.
        window: both readings over the last training steps; None where they were not recorded.
    """

    probe: CrossCovarianceResult
    movement: FollowedMovement | None
    window: CrossCovarianceResult | None

    def agreement(self) -> dict[str, float]:
        """Differences of window and probe in their joint standard errors.

        Returns:
            ``<reading>/trace`` and ``<reading>/frobenius``, signed, window minus probe; NaN where neither has an error,
            nothing for a reading that is undefined.
        """
        scores: dict[str, float] = {}
        for name in ("latent_gradient", "slack"):
            fixed = getattr(self.probe, name)
            trailing = None if self.window is None else getattr(self.window, name)
            if fixed is not None and trailing is not None:
                for number in ("trace", "frobenius"):
                    scores[f"{name}/{number}"] = _score(trailing, fixed, number)
        return scores

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, None where undefined."""
        readings: dict[str, Any] = {}
        for source, result in (("probe", self.probe), ("window", self.window)):
            for name in ("latent_gradient", "slack"):
                reading = None if result is None else getattr(result, name)
                readings[f"{source}/{name}"] = None if reading is None else reading.as_dict()
        movement = None if self.movement is None else dict(vars(self.movement))
        return readings | {"movement": movement, "agreement": self.agreement()}


def architecture_reading(
    module: Probed,
    batches: Iterable[Any],
    window: CrossCovarianceResult | None = None,
    num_permutations: int = 200,
    seed: int = 0,
) -> ArchitectureReading:
    """Read one architecture at its present weights.

    Costs the probe's two passes over the batches and, where the latent moves, one Hessian-vector product on all of them
    together for each batch.

    Args:
        module: see ``probe.collect``.
        batches: B tensors of shape (N, D), or batches with parts, in training units.
        window: of the training steps just made, from ``TrailingWindow.read``.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.

    Raises:
        ValueError: fewer than three batches, or a model that has diverged.
    """
    batches = list(batches)
    rows = collect(module, batches)
    movement = followed_movement(module, batches, rows, num_permutations, seed)
    return ArchitectureReading(read_probe(rows, num_permutations, seed), movement, window)


def followed_movement(
    module: Probed, batches: Iterable[Any], rows: ProbeRows, num_permutations: int = 200, seed: int = 0
) -> FollowedMovement | None:
    """Compare the cross-covariance with Cov(latent) H; None for a latent that does not move.

    Args:
        module: see ``probe.collect``.
        batches: those of the rows.
        rows: what ``collect`` gave for them.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.
    """
    moved = centred(rows.latents)
    # Latents that differ in their last digits only are still: what reads round-off zero has no movement to follow.
    if float(moved.norm()) <= ROUNDOFF * float(rows.latents.double().norm()):
        return None
    mean = rows.latents.double().mean(0).to(rows.latents.dtype)
    jitter = hessian_products(module, batches, mean, moved.to(mean.dtype))
    explained = paired_gram(rows.latents, jitter)
    rest = paired_gram(rows.latents, rows.gradients.double() - jitter.double())
    null = rest.permutation_null(num_permutations, torch.Generator().manual_seed(seed))
    return FollowedMovement(
        explained_frobenius=explained.frobenius,
        rest_frobenius=rest.frobenius,
        rest_null_frobenius=null.frobenius,
        rest_p_value=null.p_value,
        explained_trace=explained.trace,
        rest_trace=rest.trace,
        rest_trace_error=rest.jackknife().trace,
    )


def _score(trailing: Reading, fixed: Reading, number: str) -> float:
    error = math.hypot(getattr(trailing, f"{number}_error"), getattr(fixed, f"{number}_error"))
    difference = float(getattr(trailing, number) - getattr(fixed, number))
    return difference / error if error else float("nan")
