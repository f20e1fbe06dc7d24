"""The IDX format of the MNIST files: a magic number, the sizes, then bytes."""

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 of the four complete MNIST files, uncompressed."""

MNIST_GZ_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
"""MD5 of the same files as they are published, compressed by gzip."""

LARGEST, LARGEST_GZ = 47_040_016, 9_912_422
"""Bytes of the largest of the four files, uncompressed and compressed: the training images."""

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
"""Where the compressed files are to be had; asked in this order."""


def read_idx(path: Path, md5: str | None = None, largest: int = LARGEST) -> Tensor:
    """Read an IDX file of unsigned bytes, raw or compressed by gzip.

    Args:
        path: The file; its content, not its name, says whether it is compressed.
        md5: Expected MD5 of the uncompressed content; None to skip the check.
        largest: Bytes that the uncompressed content may have; reading stops there.

    Returns:
        uint8 tensor of the shape that the file states.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no IDX file of bytes, is cut off or too long, is larger than ``largest``, or has another
            checksum.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        try:
            content = (gzip.GzipFile(fileobj=file) if packed else file).read(largest + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{str(path)!r} is a damaged or cut-off gzip file ({error})") from error
    if len(content) > largest:
        raise ValueError(f"{str(path)!r} holds more than {largest:,} bytes: no file of this data set")
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8 or content[3] < 1:
        raise ValueError(f"{str(path)!r} is no IDX file of unsigned bytes (it begins with {content[:4]!r})")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{str(path)!r} is cut off within its header ({len(content)} bytes)")
    shape = tuple(np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist())
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise ValueError(
            f"{str(path)!r} has {len(content)} bytes and its header (sizes {shape}) asks for {expected}: "
            f"{'cut off' if len(content) < expected else 'something follows the data'}"
        )
    if md5 is not None and (found := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise ValueError(f"{str(path)!r} has MD5 {found}, expected {md5}: damaged, or another data set")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())


def find_idx(folder: Path, name: str) -> Path:
    """Find an IDX file under its usual names: plain, with ``.gz``, or with a dot for the last dash.

    Args:
        folder: Where to look.
        name: Such as ``train-images-idx3-ubyte``.

    Raises:
        FileNotFoundError: If there is none.
    """
    dotted = name.replace("-idx", ".idx")
    candidates = [folder / (stem + suffix) for stem in (name, dotted) for suffix in ("", ".gz")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no {name} (raw or .gz) in the folder {str(folder)!r}")
