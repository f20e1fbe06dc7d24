"""Collect latent and gradient rows over probe batches at a fixed iterate, and leave the module as it was."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lightning_lift.diagnostics.cross_covariance import CrossCovarianceResult, Reading, read_cross_covariance
from lightning_lift.parameterizations.base import Parameterization

BatchT = TypeVar("BatchT")


class Probed(Protocol):
    """What the probe needs of a module: a ``ConvexModule`` has it (a diagnostic does not import modules)."""

    @property
    def parameterization(self) -> Parameterization:
        """The bound parameterization."""

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        """The training loss, a scalar, the constrained latent replaced by ``latent``."""


def latent_at(module: Probed, batch: Any) -> Tensor:
    """The latent (d,) under a batch, whatever parts of it a lift of this module conditions on.

    Args:
        module: a ``ConvexModule``, whose ``latent(batch)`` knows; or another one, whose lift takes the batch as it is.
        batch: rows (N, D), or with parts.
    """
    own: Any = getattr(module, "latent", module.parameterization.latent)
    latent: Tensor = own(batch)
    return latent


def placed(batch: BatchT, device: torch.device) -> BatchT:
    """A batch, with all its parts, on a device; parts made under inference mode as clones, which can enter autograd.

    Args:
        batch: a tensor, or tensors in a tuple, list or mapping.
        device: of the weights.
    """

    def moved(part: Tensor) -> Tensor:
        part = part.to(device)
        return part.clone() if part.is_inference() and not torch.is_inference_mode_enabled() else part

    found: BatchT = pytree.tree_map_only(Tensor, moved, batch)
    return found


@dataclass(frozen=True)
class ProbeRows:
    """Rows of B probe batches, in the latent's dtype, on the CPU.

    Attributes:
        latents: shape (B, d).
        gradients: d loss / d latent, shape (B, d).
        slack_gradients: d loss / d slack, shape (B, d), per unit of latent; None without a slack.
        objective_gradients: d loss / d latent at the mean latent, shape (B, d).
    """

    latents: Tensor
    gradients: Tensor
    slack_gradients: Tensor | None
    objective_gradients: Tensor


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Run a diagnostic and put back what it may have touched.

    Restores the training flag of each submodule, every buffer, every extra state (``get_extra_state``: a quadrature's
    window follows the potential that it sees), and the state of torch's global random generators
    (CPU and the module's own device). Parameters, their ``.grad`` and the optimizer are the caller's to spare.
    """
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    keepers = [part for part, _ in modes if type(part).get_extra_state is not nn.Module.get_extra_state]
    extras = [(part, copy.deepcopy(part.get_extra_state())) for part in keepers]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    # fork_rng covers the CPU always, and other generators only of the devices listed here.
    with torch.random.fork_rng(devices=sorted(devices, key=str), device_type="cuda"):
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training
            with torch.no_grad():
                for buffer, saved in buffers:
                    buffer.copy_(saved)
            for part, state in extras:
                part.set_extra_state(state)


def collect(module: Probed, batches: Iterable[Any]) -> ProbeRows:
    """One row of latent and gradient a batch, all at the present weights.

    Runs in training mode, so that the latent conditions on each batch, with gradients enabled even where the caller
    has disabled them. Reads gradients by ``torch.autograd.grad``: no ``.grad`` is touched and no distributed hook
    fires. With several processes it is collective for a lift (its pooling is): all ranks call it, with equal batches.

    Args:
        module: a ``ConvexModule``, or anything with its ``parameterization`` and ``batch_loss``.
        batches: B tensors of shape (N, D), or batches with parts, in training units; moved to the weights' device.

    Returns:
        The rows, detached, on the CPU.

    Raises:
        ValueError: no batches.
        TypeError: the module is no ``nn.Module``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{type(module).__name__} is no torch module; the probe must switch it to training mode.")
    device = next(module.parameterization.parameters()).device
    batches = list(batches)
    if not batches:
        raise ValueError("the probe got no batches; ask the data module for at least 3.")
    with undisturbed(module), torch.inference_mode(False), torch.enable_grad():
        module.train()
        probes = [placed(batch, device) for batch in batches]
        rows = [_row(module, probe) for probe in probes]
        latents = torch.stack([latent for latent, _, _ in rows])
        gradients = torch.stack([gradient for _, gradient, _ in rows])
        if bool((latents == latents[:1]).all()):
            objective = gradients  # the mean latent is the latent itself
        else:
            mean = latents.double().mean(0).to(latents.dtype).to(device)
            objective = torch.stack([_gradient_at(module, probe, mean) for probe in probes])
    slacks = [slack for _, _, slack in rows if slack is not None]
    return ProbeRows(latents, gradients, torch.stack(slacks) if slacks else None, objective)


def probe_row(module: Probed, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """The row of one batch at the present weights: what a training step on it would see.

    The same conditions as those of ``collect``.

    Args:
        module: see ``collect``.
        batch: shape (N, D), or with parts, in training units; moved to the weights' device.

    Returns:
        Latent, d loss / d latent, and d loss / d slack per unit of latent (None without a slack), each of shape (d,),
        detached, on the CPU.

    Raises:
        TypeError: the module is no ``nn.Module``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{type(module).__name__} is no torch module; the probe must switch it to training mode.")
    device = next(module.parameterization.parameters()).device
    with undisturbed(module), torch.inference_mode(False), torch.enable_grad():
        module.train()
        return _row(module, placed(batch, device))


def probe_cross_covariance(
    module: Probed, batches: Iterable[Any], num_permutations: int = 200, seed: int = 0
) -> CrossCovarianceResult:
    """Collect the rows and read both cross-covariances.

    Args:
        module: see ``collect``.
        batches: see ``collect``.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.

    Raises:
        ValueError: fewer than three batches, or a model that has diverged.
    """
    return read_probe(collect(module, batches), num_permutations, seed)


def read_probe(rows: ProbeRows, num_permutations: int = 200, seed: int = 0) -> CrossCovarianceResult:
    """Read both cross-covariances from the rows of a probe.

    The objective part is the same for both readings: the slack moves the latent one to one.

    Args:
        rows: what ``collect`` gave.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.

    Raises:
        ValueError: fewer than three rows, or a model that has diverged.
    """

    def read(gradients: Tensor) -> Reading:
        return read_cross_covariance(rows.latents, gradients, rows.objective_gradients, num_permutations, seed)

    slack = rows.slack_gradients
    return CrossCovarianceResult(read(rows.gradients), None if slack is None else read(slack))


def _row(module: Probed, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    latent = latent_at(module, batch)
    if not latent.requires_grad:
        latent = latent.detach().requires_grad_()
    slack = module.parameterization.slack
    wanted = [latent] if slack is None else [latent, slack]
    loss = module.batch_loss(batch, latent)
    # One backward gives both: the slack's own gradient is measured, not assumed to equal the latent's.
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    gradient, *rest = [_or_zeros(g, w).detach().cpu() for g, w in zip(gradients, wanted, strict=True)]
    # The stored slack enters the latent times its gain: per unit of latent, as the latent's own gradient.
    slack_gradient = rest[0] / module.parameterization.slack_gain if rest else None
    return latent.detach().cpu().clone(), gradient, slack_gradient


def _gradient_at(module: Probed, batch: Any, latent: Tensor) -> Tensor:
    latent = latent.detach().requires_grad_()
    loss = module.batch_loss(batch, latent)
    (gradient,) = torch.autograd.grad(loss, [latent], allow_unused=True)
    return _or_zeros(gradient, latent).detach().cpu()


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
