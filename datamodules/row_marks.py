"""Numbers that tell the rows of a table apart, so that a row which has moved from one split to another is found."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor


def row_marks(rows: npt.NDArray[np.floating], columns: Sequence[str]) -> Tensor:
    """Return a number for each row, the same in whatever order the columns stand.

    Args:
        rows: (N, D), in original units.
        columns: Names of the columns.

    Returns:
        (N,) int64, hashes of 64 bits of the values and the names of their columns.
    """
    marks = np.zeros(len(rows), dtype=np.uint64)
    for name, column in zip(columns, rows.T, strict=True):
        salt = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        values = np.ascontiguousarray(column, dtype=np.float64) + 0.0  # -0.0 is 0.0
        marks += pd.util.hash_array(pd.util.hash_array(values) ^ np.uint64(salt))  # a sum: in any order, modulo 2^64
    return torch.from_numpy(marks.view(np.int64))
