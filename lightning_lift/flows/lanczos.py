"""Stochastic Lanczos quadrature: v^T log(H) v from a small tridiagonal matrix."""

import torch
from torch import Tensor


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
