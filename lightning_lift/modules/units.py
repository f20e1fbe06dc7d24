"""The columns and rows that a module was fitted on, beside those of the data that it meets later."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_lift.datamodules.units import Units

_MOST_MARKS = 10_000  # kept of the training rows; of more rows the smallest marks, which are a random sample


def column_order(ours: Sequence[str] | None, data: Any, field: str = "x") -> list[int] | None:
    """Find where the columns that a module was fitted on stand in the data.

    Args:
        ours: names of the module's columns, in its order; None where they are not known.
        data: the data module; its ``columns`` are names of x in its own order, if it has any, its ``field_columns``
            those of other parts.
        field: the part whose columns they are.

    Returns:
        For each of our columns its position in the data; None if the order is the same or names are not known.

    Raises:
        ValueError: the data have other columns.
    """
    named = getattr(data, "field_columns", {})
    theirs = getattr(data, "columns", None) if field == "x" else named.get(field)
    if ours is None or theirs is None or list(theirs) == list(ours):
        return None
    argument = field if hasattr(data, "field_columns") else "columns"
    if sorted(theirs) != sorted(ours):
        raise ValueError(
            f"the model was fitted on the columns {list(ours)} and {type(data).__name__} has {list(theirs)}: name the "
            f"model's columns by {argument}=[...], or rename those of the file."
        )
    return [list(theirs).index(name) for name in ours]


def units_between(ours: Units | None, theirs: Units | None, order: list[int] | None) -> Units | None:
    """What brings a part in their training units and columns into ours: its ``invert``; None where they agree.

    Args:
        ours: of the module; None for original ones.
        theirs: of the data; None for original ones.
        order: for each of our columns its position in the data; None for the same.
    """
    if order is None and (ours is theirs or (ours and theirs and all(map(torch.equal, ours, in_float64(theirs))))):
        return None
    like = ours or theirs
    size = len(like.location) if like is not None else len(order or ())
    original = Units(torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64))
    ours, theirs = ours or original, original if theirs is None else in_float64(theirs)
    return ours.of(theirs if order is None else theirs.reordered(order))


def in_float64(units: Units) -> Units:
    """Units in float64 on the CPU, copied."""
    location, scale = (part.detach().cpu().to(torch.float64, copy=True) for part in units)
    return Units(location, scale)


def note_rows(data: Any) -> dict[str, Any]:
    """What a checkpoint keeps of the data's rows: plain tensors and numbers, empty where the data have no marks.

    Args:
        data: the data module; its ``row_marks`` are (N,) int64 for each split, if it has any.

    Returns:
        ``train``, marks of training rows (at most 10,000); ``num_train``; and for ``val`` and ``test`` how many of
        their rows are among the training rows as well.
    """
    marks: dict[str, Tensor] = getattr(data, "row_marks", None) or {}
    if "train" not in marks:
        return {}
    train = marks["train"].unique()[:_MOST_MARKS]  # sorted
    notes: dict[str, Any] = {"train": train, "num_train": len(marks["train"])}
    return notes | {key: _count(marks[key], notes) for key in ("val", "test") if key in marks}


def warn_of_moved_rows(notes: dict[str, Any], data: Any, split: str) -> None:
    """Warn if rows that a module was trained on are evaluated now, and were not among those held out at its fit.

    Args:
        notes: what :func:`note_rows` gave at the fit.
        data: the data module of now.
        split: the split evaluated, ``val`` or ``test``; or ``train``, to be fitted further.
    """
    marks: dict[str, Tensor] = getattr(data, "row_marks", None) or {}
    if split not in marks or "train" not in notes:
        return
    found, total = _count(marks[split], notes), len(marks[split])
    if split == "train":
        if found < total:
            rank_zero_warn(
                f"{total - found} of the {total} training rows are not those of the checkpoint ({notes['num_train']} "
                "training rows): the table has changed since. Go on with the table as it was, or start anew."
            )
    elif found > notes.get(split, 0):
        rank_zero_warn(
            f"{found} of the {total} rows of the {split} split are among the {notes['num_train']} rows that the model "
            f"was trained on ({notes.get(split, 0)} at its fit): the table, its split or data_seed has changed since, "
            "and the figures are too good. Evaluate on the table as it was, or fit again."
        )


def warn_of_raw_units(parts: Mapping[str, Tensor]) -> None:
    """Warn of columns far from mean 0 and deviation 1, which a start and rates for standard columns train badly on.

    Args:
        parts: of a batch in training units, (N,) or (N, columns) each, by name.
    """
    raw = []
    for name, part in parts.items():
        columns = part.detach().double().reshape(len(part), -1)
        mean, spread = columns.mean(0), columns.std(0, correction=0)
        far = ((mean.abs() > 3.0 * spread) | (spread > 10.0) | (spread < 0.1)) & (spread > 0.0)
        raw += [f"{name} (mean {mean[i]:.3g}, deviation {spread[i]:.3g})" for i in far.nonzero()[:1, 0].tolist()]
    if raw:
        rank_zero_warn(
            f"the loader serves {' and '.join(raw)} as they are, and training starts from what suits mean 0 and "
            "deviation 1: it may end far from the best fit. Take PairsDataModule, or PairsDataModule.from_arrays(x, "
            "target=y), which standardises and predicts in original units."
        )


def _count(marks: Tensor, notes: dict[str, Any]) -> int:
    """How many of these rows are training rows: counted, or estimated where not all the marks were kept."""
    train: Tensor = notes["train"]
    if len(train) < _MOST_MARKS:
        return int(torch.isin(marks, train).sum())
    sample = marks[marks <= train[-1]]
    return round(len(marks) * float(torch.isin(sample, train).float().mean())) if len(sample) else 0
