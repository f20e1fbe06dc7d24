"""The effective step of the latent: how far one optimizer step moves the numbers behind the weights.

The Adam confound, measured. Under Adam a stored number moves about lr a step. The direct latent is a stored number; a
lift's latent is slack + emission z, and moves about lr (1 + |z|_1), because each of the emission's numbers moves by lr
too. A comparison at one learning rate is therefore not one at equal steps of the latent.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lightning_lift.diagnostics.probe import Probed, latent_at, placed, undisturbed


def latent_of(module: Probed, batch: Any) -> Tensor:
    """The latent as training sees it, conditioned on a batch; nothing of the module is disturbed.

    Call it on one fixed batch before and after an optimizer step: the difference then holds the step alone, and not
    the batch's own influence. For projected gradient the latent is theta itself. Collective for a lift on several
    processes (its pooling is).

    Args:
        module: a ``ConvexModule``, or anything with its ``parameterization``.
        batch: data in training units, shape (N, D) or with parts; moved to the weights' device.

    Returns:
        Shape (d,), a copy without graph, on the weights' device.

    Raises:
        TypeError: the module is no ``nn.Module``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{type(module).__name__} is no torch module; its latent in training mode cannot be read.")
    device = next(module.parameterization.parameters()).device
    batch = placed(batch, device)
    with undisturbed(module), torch.no_grad(), torch.autocast(device_type=device.type, enabled=False):
        module.train()
        # A lift that conditions on the batch before must see the same one before it each time.
        latent_at(module, pytree.tree_map_only(Tensor, lambda part: part.flip(0), batch))
        return latent_at(module, batch).detach().clone()


def latent_step(before: Tensor, after: Tensor, learning_rate: float | None = None) -> dict[str, float]:
    """Size of the latent's step, over its d numbers.

    Args:
        before: the latent before the optimizer step, shape (d,).
        after: the latent after it, on the same batch, shape (d,).
        learning_rate: of that step; with it the step is also given in its units.

    Returns:
        ``rms`` (root of the mean square over d) and ``max`` (largest size); with a learning rate also ``rms_per_rate``
        and ``max_per_rate`` (NaN at a rate of 0).

    Raises:
        ValueError: shapes that differ, or no numbers.
    """
    if before.shape != after.shape or before.numel() == 0:
        raise ValueError(
            f"latents of shapes {tuple(before.shape)} and {tuple(after.shape)}: one step needs two of one shape (d,)."
        )
    moved = after.detach().cpu().double() - before.detach().cpu().double()
    sizes = {"rms": moved.square().mean().sqrt().item(), "max": moved.abs().max().item()}
    if learning_rate is None:
        return sizes
    nan = float("nan")
    scaled = {f"{name}_per_rate": size / learning_rate if learning_rate else nan for name, size in sizes.items()}
    return sizes | scaled
