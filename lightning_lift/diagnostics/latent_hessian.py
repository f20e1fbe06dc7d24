"""Products of the loss's Hessian in the latent with vectors: H v, never H itself."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lightning_lift.datamodules.batches import Batch, Rows, concatenated, num_rows
from lightning_lift.diagnostics.probe import Probed, placed, undisturbed

_MOST_ROWS = 1 << 14  # of a joined batch: a graph of 64 batches of 256 rows at 128 x 3 takes about 100 MB


def hessian_products(module: Probed, batches: Iterable[Rows], latent: Tensor, vectors: Tensor) -> Tensor:
    """H v for each vector, H the Hessian in the latent of the loss over all batches, at a given latent.

    One backward pass makes the gradient, one more each product. Batches are joined to larger ones, whose losses enter
    by their rows: that is the mean over batches of a loss that is a mean over rows. (Where a parameterization emits the
    free parameters too, these are conditioned on the joined batch.) Nothing of the module is disturbed.

    Args:
        module: a ``ConvexModule``, or anything with its ``parameterization`` and ``batch_loss``.
        batches: tensors of shape (N, D), or batches with parts, in training units.
        latent: where, shape (d,).
        vectors: v, shape (K, d).

    Returns:
        Shape (K, d), in the latent's dtype, on the CPU; 0 in what the loss does not depend on.

    Raises:
        ValueError: no batches, or vectors that do not fit the latent.
        TypeError: the module is no ``nn.Module``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{type(module).__name__} is no torch module; the probe must switch it to training mode.")
    if vectors.ndim != 2 or vectors.shape[1:] != latent.shape:
        raise ValueError(f"vectors of shape {tuple(vectors.shape)} do not fit a latent of {tuple(latent.shape)}.")
    device = next(module.parameterization.parameters()).device
    joined = _joined(list(batches))
    total = sum(map(num_rows, joined))
    products = torch.zeros(vectors.shape, dtype=latent.dtype)
    with undisturbed(module), torch.inference_mode(False), torch.enable_grad():
        module.train()
        at = latent.detach().clone().to(device)
        along = vectors.detach().to(at).clone()
        for rows in joined:
            point = at.clone().requires_grad_()
            products += _products(module, placed(rows, device), point, along) * (num_rows(rows) / total)
    return products


def _products(module: Probed, rows: Tensor | Batch, point: Tensor, vectors: Tensor) -> Tensor:
    loss = module.batch_loss(rows, point)
    (gradient,) = torch.autograd.grad(loss, [point], create_graph=True, allow_unused=True)
    if gradient is None or not gradient.requires_grad:  # the loss is linear in the latent
        return torch.zeros(vectors.shape, dtype=point.dtype)
    parts = []
    for vector in vectors:
        (product,) = torch.autograd.grad(gradient, [point], vector, retain_graph=True, allow_unused=True)
        parts.append(torch.zeros_like(point) if product is None else product)
    return torch.stack(parts).detach().cpu() if parts else torch.zeros(vectors.shape, dtype=point.dtype)


def _joined(batches: Sequence[Rows]) -> list[Rows]:
    if not batches:
        raise ValueError("the Hessian got no batches; ask the data module for some.")
    groups: list[list[Rows]] = [[]]
    for batch in batches:
        if groups[-1] and sum(map(num_rows, groups[-1])) + num_rows(batch) > _MOST_ROWS:
            groups.append([])
        groups[-1].append(batch)
    return [concatenated(group) for group in groups]
