"""What the noise of the gradient in the latent is made of, along chosen directions, at a fixed iterate.

Over B probe batches let l_b be the latent, m its mean, g_b = d loss_b / d latent at l_b, g0_b the same at m, H the
Hessian of the mean loss in the latent at m, and r_b what g_b = g0_b + H (l_b - m) + r_b leaves. Then, with sample
covariances throughout (divisor B - 1) and Sigma0 = Cov(l, g0) the objective part of the cross-covariance,

    Cov(g) = Cov(g0)  +  (H Sigma0 + Sigma0^T H)  +  H Cov(l) H  +  remainder:
             objective   coupling                    jitter

exactly, where every term of the remainder holds r. It is zero for a loss that is quadratic in the latent with the same
Hessian on each batch, and is reported, not assumed, for any other. With the total Sigma = Cov(l, g) in place of Sigma0
the coupling term is larger by twice the jitter (and by terms in r): Cov(g) = objective + (H Sigma + Sigma^T H) - jitter
+ ...; it is reported beside the other as ``coupling_total``.

This is how the cross-covariance acts: it enters the diffusion of the noise. It adds no curvature to the landscape. For
plain SGD at rate eta the slack's update noise is eta^2 Cov(g); Adam rescales each coordinate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_lift.diagnostics.gram import COLUMNS, centred, jackknife_error
from lightning_lift.diagnostics.latent_hessian import hessian_products
from lightning_lift.diagnostics.probe import Probed, ProbeRows, collect

_PARTS = ("total", "objective", "coupling", "jitter", "remainder", "coupling_total")


@dataclass(frozen=True)
class NoiseReading:
    """The variance of the gradient along one unit direction e, or summed over all of them, and its parts.

    Units: loss squared over latent squared. The errors are jackknife standard errors over the batches.

    Attributes:
        direction: its name; ``trace`` for the sum over an orthonormal basis.
        total: e^T Cov(g) e.
        objective: e^T Cov(g0) e, the noise at a latent that does not move.
        coupling: e^T (H Sigma0 + Sigma0^T H) e, of either sign.
        jitter: e^T H Cov(l) H e.
        remainder: total - objective - coupling - jitter.
        coupling_total: e^T (H Sigma + Sigma^T H) e with the total Sigma.
        total_error: standard error of ``total``.
        objective_error: of ``objective``.
        coupling_error: of ``coupling``.
        jitter_error: of ``jitter``.
        remainder_error: of ``remainder``.
        coupling_total_error: of ``coupling_total``.
    """

    direction: str
    total: float
    objective: float
    coupling: float
    jitter: float
    remainder: float
    coupling_total: float
    total_error: float
    objective_error: float
    coupling_error: float
    jitter_error: float
    remainder_error: float
    coupling_total_error: float

    def as_dict(self) -> dict[str, str | float]:
        """The numbers by name."""
        return asdict(self)

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {getattr(self, name):.4g} +- {getattr(self, name + '_error'):.2g}" for name in _PARTS
        )
        return f"{self.direction}: {parts}"


def update_noise(
    module: Probed,
    batches: Iterable[Any],
    directions: Mapping[str, Tensor] | None = None,
    with_trace: bool = False,
    seed: int = 0,
) -> list[NoiseReading]:
    """Probe a module at its present weights and split the noise of its gradient.

    Costs the probe's two passes over the batches, one Hessian-vector product on all rows for each direction, and with
    the trace one for each batch.

    Args:
        module: see ``probe.collect``.
        batches: B tensors of shape (N, D), or batches with parts, at least 3.
        directions: vectors of shape (d,) by name, normalised here; None for those of ``noise_directions``.
        with_trace: whether to add the sum over all directions.
        seed: of the random direction.

    Returns:
        One reading a direction, in their order, then that of the trace.

    Raises:
        ValueError: fewer than three batches, a direction that does not fit or is zero, or a model that has diverged.
    """
    batches = list(batches)
    rows = collect(module, batches)
    _check(rows.gradients, rows.objective_gradients, rows.latents)
    named = noise_directions(rows, seed) if directions is None else dict(directions)
    mean = rows.latents.double().mean(0).to(rows.latents.dtype)
    units = {name: _unit(name, vector, mean) for name, vector in named.items()}
    along = torch.stack(list(units.values())) if units else rows.latents.new_zeros(0, len(mean))
    moved = centred(rows.latents)
    is_still = not bool(moved.any())
    # Only H e is needed along a direction: e^T H (l - m) = (H e)^T (l - m).
    products = torch.zeros_like(along) if is_still else hessian_products(module, batches, mean, along)
    basis = along.double()
    total, objective = rows.gradients.double() @ basis.T, rows.objective_gradients.double() @ basis.T
    readings = split_noise(total, objective, moved @ products.double().T, tuple(units))
    if with_trace:
        jitter = torch.zeros_like(rows.latents)
        if not is_still:
            jitter = hessian_products(module, batches, mean, moved.to(rows.latents.dtype))
        readings.append(split_noise_trace(rows.gradients, rows.objective_gradients, jitter))
    return readings


def noise_directions(rows: ProbeRows, seed: int = 0) -> dict[str, Tensor]:
    """Directions worth looking along, by name, each of shape (d,) and of unit length.

    ``gradient``: of the mean gradient, along which training moves. ``noise``: in which the gradient varies most over
    the batches. ``latent``: in which the latent does. ``random``: isotropic. One that is zero is left out.

    Args:
        rows: of the probe.
        seed: of the random direction.
    """
    size = rows.latents.shape[1]
    random = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = {
        "gradient": rows.gradients.double().mean(0),
        "noise": _leading(rows.gradients),
        "latent": _leading(rows.latents),
        "random": random,
    }
    return {name: vector / vector.norm() for name, vector in found.items() if float(vector.norm()) > 0.0}


def split_noise(total: Tensor, objective: Tensor, jitter: Tensor, names: tuple[str, ...]) -> list[NoiseReading]:
    """Split the variance of each column.

    Args:
        total: e^T g_b, shape (B, K), one column a direction.
        objective: e^T g0_b, shape (B, K).
        jitter: e^T H (l_b - m), shape (B, K).
        names: of the K directions.

    Raises:
        ValueError: shapes that differ, fewer than three rows, or rows that are not finite.
    """
    _check(total, objective, jitter)
    products = _products(total, objective, jitter)
    return [_reading(name, products[:, :, index]) for index, name in enumerate(names)]


def split_noise_trace(total: Tensor, objective: Tensor, jitter: Tensor) -> NoiseReading:
    """Split the trace of the gradient's covariance: the sum over all d coordinates.

    Args:
        total: g_b, shape (B, d).
        objective: g0_b, shape (B, d).
        jitter: H (l_b - m), shape (B, d).

    Raises:
        ValueError: shapes that differ, fewer than three rows, or rows that are not finite.
    """
    _check(total, objective, jitter)
    summed = torch.zeros(len(_PARTS), len(total), dtype=torch.float64)
    for parts in zip(*(torch.split(rows, COLUMNS, 1) for rows in (total, objective, jitter)), strict=True):
        summed += _products(*parts).sum(2)
    return _reading("trace", summed)


def _products(total: Tensor, objective: Tensor, jitter: Tensor) -> Tensor:
    """What each batch adds to (B - 1) times each part, shape (parts, B, K)."""
    g, o, j = centred(total), centred(objective), centred(jitter)
    return torch.stack([g * g, o * o, 2.0 * o * j, j * j, g * g - (o + j).square(), 2.0 * g * j])


def _reading(name: str, products: Tensor) -> NoiseReading:
    size = products.shape[1]
    values = products.sum(1) / (size - 1)
    # A covariance without row i: ((B - 1) c - B / (B - 1) x_i y_i) / (B - 2) with x, y centred over all rows.
    without = (products.sum(1, keepdim=True) - products * size / (size - 1)) / (size - 2)
    numbers = dict(zip(_PARTS, values.tolist(), strict=True))
    errors = {f"{part}_error": jackknife_error(row) for part, row in zip(_PARTS, without, strict=True)}
    return NoiseReading(direction=name, **numbers, **errors)


def _leading(rows: Tensor) -> Tensor:
    """The direction of largest variance of rows (B, d), from their B x B Gram matrix; zero where nothing moves."""
    rows = centred(rows)
    vectors = torch.linalg.eigh(rows @ rows.T).eigenvectors
    leading: Tensor = vectors[:, -1] @ rows
    return leading


def _unit(name: str, vector: Tensor, like: Tensor) -> Tensor:
    norm = float(vector.double().norm())
    if vector.shape != like.shape or not 0.0 < norm < float("inf"):
        raise ValueError(
            f"direction {name!r} has shape {tuple(vector.shape)} and length {norm:.3g}: give one of shape "
            f"{tuple(like.shape)}, finite and not zero."
        )
    return (vector.detach().cpu().double() / norm).to(like.dtype)


def _check(total: Tensor, objective: Tensor, jitter: Tensor) -> None:
    if total.ndim != 2 or not total.shape == objective.shape == jitter.shape or len(total) < 3:
        shapes = ", ".join(str(tuple(rows.shape)) for rows in (total, objective, jitter))
        raise ValueError(f"rows of shapes {shapes}: needs three of one shape (B, K), at least 3 batches.")
    if not all(bool(rows.isfinite().all()) for rows in (total, objective, jitter)):
        raise ValueError("the gradients hold numbers that are not finite: the model has diverged.")
