"""Rows of one side of a transport, from whatever has them."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.table_checks import refuse_non_finite
from lightning_lift.datamodules.table_files import TableFile
from lightning_lift.datamodules.table_rows import cut

Sampler = Callable[[int, torch.Generator], Tensor]
"""``sampler(num_rows, generator)``: independent rows (num_rows, D), made from the generator alone."""
Side = DensityDataModule | str | os.PathLike[str] | Sampler | Any
"""A data module, a table's or an image's file, a sampler, or rows in memory."""

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
SPLITS = ("train", "val", "test")


def side_rows(side: Side, name: str, counts: Mapping[str, int], fractions: tuple[float, float], seed: int) -> "Rows":
    """The splits of one side, in original units.

    Args:
        side: a data module, whose splits are taken, or whose rows are drawn where it has no training split; a file with
            a table, or an image, whose pixels are rows of red, green and blue in [0, 1]; a sampler, called with a
            number of rows and a generator; or rows in memory, (N, D).
        name: of the side, for errors and for its seed.
        counts: rows of each split, where they are drawn.
        fractions: of the rows for validation and for the test, where they are given.
        seed: of everything random.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: rows that are no finite table.
    """
    base = stream_seed(seed, "split", 100 + ("source", "target").index(name))
    generators = {key: generator_at(base, position) for position, key in enumerate(SPLITS)}
    columns = None
    if isinstance(side, DensityDataModule):
        side.setup("fit")
        columns = getattr(side, "columns", None)
        splits = {key: side.units.invert(side.split(key).double()) for key in ("val", "test")}
        if side.draws_fresh_rows:
            drawn = side.draw(counts["train"], generators["train"])
            splits["train"] = side.units.invert(drawn.double())
        else:
            splits["train"] = side.units.invert(side.split("train").double())
    elif callable(side) and not hasattr(side, "__array__"):
        splits = {key: torch.as_tensor(side(counts[key], generators[key])) for key in SPLITS}
    else:
        if isinstance(side, str | os.PathLike):
            table, columns = read_rows(os.fspath(side))
        else:
            table, columns = torch.as_tensor(np.asarray(side)), getattr(side, "columns", None)
        if table.ndim != 2:
            raise ValueError(f"{name} has shape {tuple(table.shape)}: give rows (N, D).")
        splits = {key: table[torch.from_numpy(rows)] for key, rows in cut(len(table), fractions, seed, name).items()}
    return Rows({key: _checked(rows, f"{key} rows of {name}") for key, rows in splits.items()}, columns)


class Rows:
    """Splits of one side.

    Args:
        splits: (N, D) each, float32, original units.
        columns: names of the columns, where they have any.
    """

    def __init__(self, splits: dict[str, Tensor], columns: Any = None) -> None:
        self.splits = splits
        self.columns = None if columns is None else [str(name) for name in columns]
        self.dim = splits["train"].shape[1]


def read_rows(path: str) -> tuple[Tensor, list[str] | None]:
    """The rows (N, D) of a table's or an image's file, and the names of its columns where they have any.

    Args:
        path: a .csv, .npy, .npz or .parquet file, or an image.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the table cannot be used.
    """
    if Path(path).suffix.lower() not in IMAGES:
        file = TableFile(path, None, (), True)
        values = file.read()
        refuse_non_finite(values, file.names, path)
        return torch.from_numpy(np.asarray(values)), list(file.names) if file.has_names else None
    from PIL import Image  # with matplotlib

    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path!r} (looked from the directory {str(Path.cwd())!r})")
    pixels = np.asarray(Image.open(path).convert("RGB"), dtype=np.float32).reshape(-1, 3) / 255.0
    return torch.from_numpy(pixels), ["red", "green", "blue"]


def _checked(rows: Tensor, what: str) -> Tensor:
    rows = rows.detach().to(torch.float32)
    if rows.ndim != 2 or len(rows) < 1:
        raise ValueError(f"{what} have shape {tuple(rows.shape)}: expected (N, D), one row or more.")
    if bad := int((~torch.isfinite(rows)).any(1).sum()):
        raise ValueError(f"{bad} of {len(rows)} {what} are not finite in float32: take them out.")
    return rows
