"""How far a transport map is from the optimal one: the figures of the Wasserstein-2 benchmark."""

import torch
from torch import Tensor


def l2_uvp(mapped: Tensor, truth: Tensor) -> Tensor:
    """100 E |T^(x) - T(x)|^2 / Var Q in percent, the unexplained variance percentage: a scalar.

    Korotin et al., Do neural optimal transport solvers work?, NeurIPS 2021, section 4.4. Var Q is the sum of the
    variances of T(x) over the columns, and a constant map has about 100.

    Args:
        mapped: T^(x), shape (N, D).
        truth: T(x), shape (N, D).

    Raises:
        ValueError: other shapes, or fewer than two rows.
    """
    mapped, truth = _checked(mapped, truth)
    return 100.0 * (mapped - truth).square().sum(1).mean() / truth.var(0).sum()


def transport_cosine(x: Tensor, mapped: Tensor, truth: Tensor) -> Tensor:
    """Cosine of the angle between T^ - id and T - id in L2(P), a scalar; as above.

    Args:
        x: shape (N, D).
        mapped: T^(x), shape (N, D).
        truth: T(x), shape (N, D).

    Raises:
        ValueError: other shapes, or fewer than two rows.
    """
    mapped, truth = _checked(mapped, truth)
    one, two = mapped - x.to(mapped), truth - x.to(truth)
    product: Tensor = (one * two).sum() / (one.norm() * two.norm())
    return product


def _checked(mapped: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if mapped.shape != truth.shape or mapped.ndim != 2 or len(mapped) < 2:
        raise ValueError(
            f"mapped rows of shape {tuple(mapped.shape)} and true ones of {tuple(truth.shape)}: give (N, D) of both, "
            "two rows or more."
        )
    return mapped.to(torch.float64), truth.to(torch.float64)
