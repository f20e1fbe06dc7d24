"""Lifts that condition on other rows than those of the loss: one frozen batch, or the batch before."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_lift.parameterizations.body import DeepSetsBody, is_distributed
from lightning_lift.parameterizations.lift import Lift


class FrozenBatch(Lift):
    """A lift whose code is always that of one batch: the first one of training. The body is still trained.

    It asks whether the code has to follow the batch. The latent does not move from batch to batch, so that the
    cross-covariance is zero up to round-off, while parameters, emission and effective step are the lift's. Evaluation
    conditions on the same rows and needs no calibration; before training, it is that of the lift.

    The arguments are those of ``Lift``.
    """

    _frozen: Tensor | None = None

    def _training_summary(self, batch: Tensor | None) -> Tensor:
        if self._frozen is None:
            if batch is None:
                return super()._training_summary(batch)  # which says what is missing
            self._frozen = joined_rows(batch.detach())
        return _summary(self._own_body, self._frozen)

    @property
    def reference_summary(self) -> Tensor:
        """Mean features of the frozen batch, shape (F,); before there is one, of the reference rows.

        Raises:
            RuntimeError: there is no frozen batch, and no calibration either.
        """
        return super().reference_summary if self._frozen is None else _summary(self._own_body, self._frozen)

    @property
    def is_stale(self) -> bool:
        """Whether evaluation lacks both the frozen batch and a reference summary."""
        return self._frozen is None and super().is_stale

    def is_state_stale(self, state: Mapping[str, Any], prefix: str) -> bool:
        """Whether the weights in a state dictionary lack both.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
        """
        return state[f"{prefix}_extra_state"]["frozen"] is None and super().is_state_stale(state, prefix)

    def calibrate_state(self, state: dict[str, Any], prefix: str, batches: Iterable[Tensor]) -> None:
        """Give the weights in a state dictionary the frozen batch, or a reference summary where there is none.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
            batches: tensors of shape (N, D), together the reference rows.
        """
        if self._frozen is None:
            super().calibrate_state(state, prefix, batches)
        else:
            # Averaged weights are a copy made before training, which has seen no batch.
            state[f"{prefix}_extra_state"] = self.get_extra_state()

    def get_extra_state(self) -> dict[str, Any]:
        """The frozen batch beside the lift's state, for checkpoints."""
        return super().get_extra_state() | {"frozen": self._frozen}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        super().set_extra_state(state)
        self._frozen = state["frozen"]


class IndependentBatch(Lift):
    """A lift whose code is that of the batch before, never that of the batch in the loss.

    It asks whether the code has to belong to the rows of the loss. The latent moves as the lift's does, but is
    independent of the batch whose gradient it meets: the objective part of the cross-covariance is zero in expectation.
    The rest, the latent's own variance times the curvature, is not.

    "Before" is the last batch with other numbers that a latent was asked for, in training mode; readings of one batch
    in a row do not shift it, and a probe with batches 1, 2, ... sees each with the code of the one before. The first
    batch of all has none before it and takes its own code. Evaluation is the lift's.

    The arguments are those of ``Lift``.
    """

    _current: Tensor | None = None
    _previous: Tensor | None = None

    def _training_summary(self, batch: Tensor | None) -> Tensor:
        if batch is None:
            return super()._training_summary(batch)  # which says what is missing
        rows = joined_rows(batch.detach())
        # By numbers, not by identity: diagnostics clone batches, and a resumed run has its own from a file.
        if self._current is None or not same_rows(self._current, rows):
            self._previous, self._current = self._current, rows
        return _summary(self._own_body, self._current if self._previous is None else self._previous)

    def get_extra_state(self) -> dict[str, Any]:
        """The last two batches, the rows of all processes, beside the lift's state, for checkpoints."""
        return super().get_extra_state() | {"current": self._current, "previous": self._previous}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        super().set_extra_state(state)
        self._current, self._previous = state["current"], state["previous"]


def same_rows(one: Tensor, two: Tensor) -> bool:
    """Whether two batches hold the same numbers in the same order, wherever they lie.

    Args:
        one: any shape.
        two: any shape.
    """
    return one.shape == two.shape and torch.equal(one, two.detach().to(one))


def joined_rows(rows: Tensor) -> Tensor:
    """The rows of all processes, one after the other; a copy on every process. Collective.

    Args:
        rows: shape (N, D); N may differ between processes.

    Returns:
        Shape (sum of N, D).
    """
    if not is_distributed():
        return rows.clone()
    counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([rows.shape[0]], device=rows.device))
    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def _summary(body: DeepSetsBody, rows: Tensor) -> Tensor:
    """Mean features (F,) of rows (N, D) of all processes, which may come from a checkpoint, on another device."""
    # Every process holds them all: no communication, so that a resumed run needs but the file of one process.
    features: Tensor = body(rows.to(next(body.parameters())))
    return features.mean(0)
