"""The columns and rows that a module was fitted on, beside those of the data that it meets later."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

_MOST_MARKS = 10_000  # kept of the training rows; of more rows the smallest marks, which are a random sample


def column_order(ours: Sequence[str] | None, data: Any) -> list[int] | None:
    """Find where the columns that a module was fitted on stand in the data.

    Args:
        ours: names of the module's columns, in its order; None where they are not known.
        data: the data module; its ``columns`` are names in its own order, if it has any.

    Returns:
        For each of our columns its position in the data; None if the order is the same or names are not known.

    Raises:
        ValueError: the data have other columns.
    """
    theirs = getattr(data, "columns", None)
    if ours is None or theirs is None or list(theirs) == list(ours):
        return None
    if sorted(theirs) != sorted(ours):
        raise ValueError(
            f"the model was fitted on the columns {list(ours)} and {type(data).__name__} has {list(theirs)}: name the "
            "model's columns by columns=[...], or rename those of the file."
        )
    return [list(theirs).index(name) for name in ours]


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


def _count(marks: Tensor, notes: dict[str, Any]) -> int:
    """How many of these rows are training rows: counted, or estimated where not all the marks were kept."""
    train: Tensor = notes["train"]
    if len(train) < _MOST_MARKS:
        return int(torch.isin(marks, train).sum())
    sample = marks[marks <= train[-1]]
    return round(len(marks) * float(torch.isin(sample, train).float().mean())) if len(sample) else 0
