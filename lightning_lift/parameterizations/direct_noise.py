"""Direct with isotropic noise on the latent: does it take a lift, or does any moving latent do?"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_lift.parameterizations.body import is_distributed
from lightning_lift.parameterizations.direct import DirectSoftplus
from lightning_lift.parameterizations.readouts import ReadoutName

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


class DirectNoise(DirectSoftplus):
    """theta = psi(latent + s n) in training, with n standard normal, another for each batch; no noise in evaluation.

    The lift's latent moves from batch to batch. This control gives the direct latent a movement of the same size that
    knows nothing of the batch: what it reaches, the lift does not owe to the coupling of latent and gradient. Measure
    the matched size on a run of the lift: ``latent_std`` of the latents of some batches at a fixed iterate.

    The noise is a pseudorandom function of the run's seed and of the rows of the batch (those of all processes, in any
    order), as the lift's code is one of its rows: readings of one batch agree, other batches have other noise.

    Args:
        latent_noise: standard deviation s of the noise on each latent, in the latent's own units (after
            ``latent_gain``); or a schedule of ``[step, std]`` pairs, linear in between and constant outside. Steps are
            optimizer steps.
        latent_gain: the stored number is multiplied by it.
        readout: psi: ``softplus``, ``floored_relu``, ``exp`` or ``square``.
        beta: sharpness of the softplus readout.
        floor: smallest weight that can be set; None for the readout's default.

    Raises:
        ValueError: a negative or infinite deviation, steps that do not increase, or arguments of ``DirectSoftplus``
            that do not fit.
    """

    def __init__(
        self,
        latent_noise: float | list[list[float]] = 0.1,
        latent_gain: float = 1.0,
        readout: ReadoutName = "softplus",
        beta: float = 1.0,
        floor: float | None = None,
    ) -> None:
        super().__init__(latent_gain, readout, beta, floor)
        self.latent_noise = latent_noise
        self._schedule = _checked_schedule(latent_noise)
        self._seed = 0
        self._step = 0

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        taken = super()._build(initial, free, dim)
        self._seed = int(torch.randint(2**62, ()).item())  # of the run's seed, the same on every process
        return taken

    @property
    def noise_std(self) -> float:
        """The standard deviation at the present optimizer step."""
        before = [(step, std) for step, std in self._schedule if step <= self._step]
        after = [(step, std) for step, std in self._schedule if step > self._step]
        if not (before and after):
            return (before[-1:] or after[:1])[0][1]
        (start, low), (end, high) = before[-1], after[0]
        return low + (high - low) * (self._step - start) / (end - start)

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """latent_gain times the stored numbers, shape (d,), plus the noise of this batch in training mode.

        Collective in training mode: all processes call it together.

        Args:
            batch: data, shape (N, D); without one there is no noise.
        """
        clean = super().latent(batch)
        std = self.noise_std
        if not self.training or batch is None or std == 0.0:
            return clean
        generator = torch.Generator().manual_seed(self._noise_seed(batch))
        return clean + std * torch.randn(clean.shape, generator=generator, dtype=clean.dtype).to(clean.device)

    def _noise_seed(self, batch: Tensor) -> int:
        rows = row_hashes(batch.detach()).sum()
        if is_distributed():
            dist.all_reduce(rows)  # of all rows, as the lift's code is
        digest = hashlib.blake2b(f"{self._seed} {int(rows.item())}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def after_step_(self) -> None:
        """Count the step, for the schedule."""
        super().after_step_()
        self._step += 1

    def get_extra_state(self) -> dict[str, Any]:
        """Seed of the noise and optimizer steps so far, for checkpoints."""
        return {"seed": self._seed, "step": self._step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        self._seed, self._step = state["seed"], state["step"]


def row_hashes(rows: Tensor) -> Tensor:
    """An integer for each row, from its numbers as float32: equal for equal rows, else as good as random.

    The finaliser is that of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).

    Args:
        rows: shape (N, D).

    Returns:
        Shape (N,), int64.
    """
    bits = rows.float().contiguous().view(torch.int32).long().reshape(rows.shape[0], -1)
    mixed = bits.new_zeros(rows.shape[0])
    for column in bits.unbind(1):
        mixed = _mix(mixed * _GOLDEN + column)
    return mixed


def _mix(numbers: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ _shifted(numbers, shift)) * (factor - 2**64)  # int64 wraps around, as meant
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    shifted: Tensor = (numbers >> bits) & (2 ** (64 - bits) - 1)  # without copies of the sign
    return shifted


def latent_std(latents: Tensor) -> float:
    """The isotropic noise of the same total variance as these latents: the ``latent_noise`` that matches them.

    Args:
        latents: the latents of B batches at a fixed iterate, shape (B, d), as ``diagnostics.probe.collect`` gives.

    Returns:
        sqrt(mean over the d weights of the variance over the B batches).

    Raises:
        ValueError: fewer than two rows.
    """
    if latents.ndim != 2 or latents.shape[0] < 2:
        raise ValueError(f"latents of shape {tuple(latents.shape)}: a variance needs (B, d) with at least 2 batches.")
    return float(latents.double().var(0).mean().sqrt())


def _checked_schedule(latent_noise: float | Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    if isinstance(latent_noise, int | float):
        pairs = [(0.0, float(latent_noise))]
    else:
        if not latent_noise or any(len(pair) != 2 for pair in latent_noise):
            raise ValueError(f"latent_noise={latent_noise}: give a number or [step, std] pairs, such as [[0, 0.1]].")
        pairs = [(float(step), float(std)) for step, std in latent_noise]
    steps = [step for step, _ in pairs]
    if any(not (std >= 0.0 and math.isfinite(std)) for _, std in pairs):
        raise ValueError(f"latent_noise={latent_noise}: a standard deviation must be finite and at least 0.")
    if any(not later > earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"latent_noise={latent_noise}: the steps of a schedule must increase.")
    return pairs
