"""Hashes by which records show that the arms of a seed have one start and one data stream."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.parameterizations import Parameterization

_TOLERANCE = 1e-5  # relative; what a right inverse promises is 1e-6
_ROWS = 8
HASHED_BATCHES = 3


@torch.no_grad()
def start_hash(module: LightningModule, reference: LightningModule) -> str:
    """Of the network's weights before the first step.

    A latent gives its weights back to a few roundings, so that hashes of the weights themselves would differ between
    arms of one start. What is hashed is therefore ``reference``, which holds the network's own first numbers, *if* the
    module starts there: constrained weights within 1e-5 relative (those that it cannot hold, raised to its floor), all
    other tensors of the network exactly. A module that starts elsewhere has the hash of its own numbers. Two modules
    have one hash only if both start at the same place.

    Args:
        module: before its first step.
        reference: the same network under projected gradient, of the same seed, before its first step.
    """
    own, start = _weights(module), _weights(reference)
    parameterization = getattr(module, "parameterization", None)
    constrained: tuple[str, ...] = getattr(parameterization, "names", ())
    floor = _floor(parameterization)
    same = own.keys() == start.keys() and all(
        _close(own[name], start[name], floor) if name in constrained else torch.equal(own[name], start[name])
        for name in own
    )
    digest = hashlib.sha256()
    for name, tensor in sorted((start if same else own).items()):
        _update(digest, name, tensor)
    return digest.hexdigest()[:16]


def data_hash(batches: Iterable[Any]) -> str:
    """Of the first training batches, bit by bit.

    Args:
        batches: tensors, or tuples and mappings of them.
    """
    digest = hashlib.sha256()
    for batch in batches:
        for leaf in pytree.tree_leaves(batch):
            if isinstance(leaf, Tensor):
                _update(digest, "", leaf)
    return digest.hexdigest()[:16]


def _weights(module: LightningModule) -> dict[str, Tensor]:
    parameterization = getattr(module, "parameterization", None)
    if not isinstance(parameterization, Parameterization):
        return {name: parameter.detach() for name, parameter in module.named_parameters()}
    network = module.network
    assert isinstance(network, nn.Module)
    with undisturbed(module):
        # Evaluation has no noise, but a lift has no reference summary yet. A matched start is the same for every batch.
        parameterization.train(parameterization.needs_calibration)
        like = next(parameterization.parameters())
        dim = int(getattr(module, "dim", 1))
        weights = parameterization.weights(torch.linspace(-1.0, 1.0, _ROWS * dim).view(_ROWS, dim).to(like))
    return {name: tensor.detach().cpu() for name, tensor in [*network.named_parameters(), *weights.items()]}


def _floor(parameterization: Any) -> float:
    readout = getattr(parameterization, "readout", None)
    return float(getattr(parameterization if readout is None else readout, "floor", 0.0))


def _close(own: Tensor, start: Tensor, floor: float) -> bool:
    if own.shape != start.shape:
        return False
    wanted = start.clamp(min=floor)
    return bool(((own - wanted).abs() <= _TOLERANCE * wanted).all())


def _update(digest: Any, name: str, tensor: Tensor) -> None:
    # Zero and minus zero are one weight.
    array = (tensor.detach().cpu() + 0.0 if tensor.is_floating_point() else tensor.detach().cpu()).contiguous()
    digest.update(f"{name} {tuple(array.shape)} {array.dtype}".encode())
    digest.update(array.view(torch.uint8).numpy().tobytes() if array.ndim else str(array.item()).encode())
