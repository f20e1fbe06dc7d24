"""Batches: rows alone, or rows with a context, a target and weights beside them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

_LEFT_OUT = ("weight",)  # of a task's fields, what a batch need not have
UNKNOWN = ("target", "weight")  # what is not known yet where a task predicts


class Batch(NamedTuple):
    """A batch with parts; a batch of rows alone is a plain tensor (N, D).

    Attributes:
        x: what the network is convex in, shape (N, D).
        context: what it may depend on in any way, shape (N, ...); None where there is none.
        target: what is to be predicted, shape (N,) or (N, m); None where there is none.
        weight: of each row in the loss, shape (N,); None for 1.
    """

    x: Tensor
    context: Tensor | None = None
    target: Tensor | None = None
    weight: Tensor | None = None


class TransportBatch(NamedTuple):
    """Rows of two distributions, which need not be as many.

    Attributes:
        source: rows of P, shape (N, D).
        target: rows of Q, shape (M, D); None where a map is only applied.
        positions: of each target row in the training set, (M,) int64, by which a solver finds what it knew of the
            row; None where rows are not kept.
    """

    source: Tensor
    target: Tensor | None = None
    positions: Tensor | None = None


Rows = TypeVar("Rows", Tensor, Batch)
"""Rows alone or rows with parts beside them."""


def as_batch(batch: Any, fields: Sequence[str], predicting: bool = False) -> Tensor | Batch:
    """What a loader gave, as a task takes it; what is in that form already is given back as it is.

    Args:
        batch: a tensor of rows; a list or tuple of tensors in the order of ``fields``, as Lightning collates them from
            a ``TensorDataset``; or a :class:`Batch`, mapping or named tuple with these names.
        fields: names of the task's parts, in order; ``("x",)`` for rows alone. ``weight`` may be left out.
        predicting: whether the target may be left out too.

    Returns:
        A tensor for rows alone, else a :class:`Batch` whose parts have equal lengths.

    Raises:
        ValueError: a part is missing, unknown, no tensor or of another length than ``x``.
    """
    if isinstance(batch, Tensor) and len(fields) == 1:
        return batch
    parts = _named(batch, fields)
    optional = _LEFT_OUT + UNKNOWN * predicting
    missing = [name for name in fields if name not in parts and name not in optional]
    unknown = sorted(set(parts) - set(fields))
    if missing or unknown:
        raise ValueError(
            f"a batch of {_described(batch)} does not fit: the task takes ({', '.join(fields)})"
            + (f", and {', '.join(missing)} is missing" if missing else "")
            + (f", and {', '.join(unknown)} is none of these" if unknown else "")
            + ". State its parts, in the loader's order, as the task's batch_fields."
        )
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise ValueError(f"{name} of the batch is a {type(part).__name__}: give tensors.")
        if part.ndim == 0 or len(part) != len(parts["x"]):
            raise ValueError(
                f"{name} of the batch has shape {tuple(part.shape)} and x {tuple(parts['x'].shape)}: one entry of it a "
                "row of x."
            )
    return parts["x"] if len(fields) == 1 else batch if isinstance(batch, Batch) else Batch(**parts)


def _named(batch: Any, fields: Sequence[str]) -> dict[str, Any]:
    """The parts by name, without those that are None."""
    if hasattr(batch, "_asdict"):
        batch = batch._asdict()
    if isinstance(batch, Mapping):
        return {name: part for name, part in batch.items() if part is not None}
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, list | tuple) or len(batch) > len(fields):
        raise ValueError(
            f"a batch of {_described(batch)} does not fit: the task takes ({', '.join(fields)}). State its parts, in "
            "the loader's order, as the task's batch_fields."
        )
    return dict(zip(fields, batch, strict=False))


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"rows alone, {tuple(batch.shape)},"
    if hasattr(batch, "_asdict"):
        batch = {name: part for name, part in batch._asdict().items() if part is not None}
    if isinstance(batch, Mapping):
        return f"({', '.join(map(str, batch))})"
    return f"{len(batch)} parts" if isinstance(batch, list | tuple) else f"type {type(batch).__name__}"


def as_transport_batch(batch: Any, predicting: bool = False) -> TransportBatch:
    """What a loader gave, as a task on two distributions takes it.

    Args:
        batch: a :class:`TransportBatch`; a list, tuple or mapping of its parts in their order or by their names, as
            Lightning collates them from a ``TensorDataset`` of pairs of rows or from a ``CombinedLoader``.
        predicting: whether rows of the source alone, or in a list of one, will do.

    Raises:
        ValueError: a part is missing, unknown, no tensor or no table of rows, or source and target have other columns.
    """
    if isinstance(batch, TransportBatch) and (predicting or batch.target is not None):
        return batch
    fields = TransportBatch._fields
    parts = _named(batch, fields)
    missing = [name for name in fields[: 1 if predicting else 2] if name not in parts]
    unknown = sorted(set(parts) - set(fields))
    if missing or unknown:
        raise ValueError(
            f"a batch of {_described(batch)} does not fit: the task takes rows of two distributions, (source, target)"
            + (
                f", and {', '.join(missing)} is missing."
                if missing
                else f", and {', '.join(unknown)} is none of these."
            )
        )
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise ValueError(f"{name} of the batch is a {type(part).__name__}: give tensors.")
    made = TransportBatch(**parts)
    if made.target is not None and (made.source.ndim != 2 or made.target.shape[1:] != made.source.shape[1:]):
        raise ValueError(
            f"source of the batch has shape {tuple(made.source.shape)} and target {tuple(made.target.shape)}: give "
            "rows (N, D) and (M, D) of as many columns."
        )
    return made


def inputs_of(batch: Tensor | Batch | TransportBatch) -> Tensor:
    """What the network is convex in, shape (N, D)."""
    return batch if isinstance(batch, Tensor) else batch.x if isinstance(batch, Batch) else batch.source


def context_of(batch: Tensor | Batch | TransportBatch | None) -> Tensor | None:
    """The context, shape (N, ...), or None."""
    return batch.context if isinstance(batch, Batch) else None


def parts_of(batch: Tensor | Batch | TransportBatch) -> dict[str, Tensor]:
    """The parts that a batch has, by name."""
    if isinstance(batch, Tensor):
        return {"x": batch}
    return {name: part for name, part in batch._asdict().items() if part is not None}


def num_rows(batch: Tensor | Batch | TransportBatch) -> int:
    """How many rows a batch has, N (the length of a named tuple is that of its fields)."""
    return len(inputs_of(batch))


def take_rows(batch: Tensor | Batch, positions: Any, **settings: Any) -> Any:
    """The rows at some positions, float32, each part in its place.

    Args:
        batch: rows (N, ...), or a :class:`Batch` of N rows.
        positions: integers, a slice or a mask over the N rows.
        **settings: of ``Tensor.to``, as ``copy``.
    """
    if isinstance(batch, Tensor):
        return batch[positions].to(torch.float32, **settings)
    return Batch(**{name: take_rows(part, positions, **settings) for name, part in parts_of(batch).items()})


def concatenated(batches: Iterable[Rows]) -> Rows:
    """The rows of several batches as one batch; all have the same parts."""
    kept = list(batches)
    if isinstance(kept[0], Tensor):
        return torch.cat(kept)
    parts = [parts_of(batch) for batch in kept]
    return Batch(**{name: torch.cat([one[name] for one in parts]) for name in parts[0]})
