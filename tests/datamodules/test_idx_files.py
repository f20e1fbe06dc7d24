"""The IDX reader on small files, whole and damaged."""

import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from lightning_lift.datamodules.idx_files import find_idx, read_idx


def idx(shape: tuple[int, ...], content: bytes | None = None) -> bytes:
    size = int(torch.tensor(shape).prod())
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return head + (bytes(i % 256 for i in range(size)) if content is None else content)


@pytest.mark.parametrize("compressed", [False, True])
def test_round_trip(tmp_path: Path, compressed: bool) -> None:
    content = idx((3, 2, 4))
    (tmp_path / "x").write_bytes(gzip.compress(content) if compressed else content)
    found = read_idx(tmp_path / "x", hashlib.md5(content).hexdigest())
    assert found.dtype == torch.uint8
    assert torch.equal(found, torch.arange(24, dtype=torch.uint8).view(3, 2, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file"),
        (b"P5 28 28", "no IDX file"),
        (bytes([0, 0, 13, 1]) + idx((3,))[4:], "no IDX file"),
        (idx((3, 4))[:7], "within its header"),
        (idx((3, 4))[:-1], "cut off"),
        (idx((3, 4)) + b"\0", "something follows"),
        (gzip.compress(idx((30, 40)))[:-20], "gzip"),
    ],
)
def test_what_is_damaged_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "x")


def test_checksum_and_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no train-images"):
        find_idx(tmp_path, "train-images-idx3-ubyte")
    (tmp_path / "train-images.idx3-ubyte.gz").write_bytes(gzip.compress(idx((2,))))
    path = find_idx(tmp_path, "train-images-idx3-ubyte")
    with pytest.raises(ValueError, match="MD5"):
        read_idx(path, "0" * 32)


def test_decompression_stops_at_the_largest_file_of_mnist(tmp_path: Path) -> None:
    """A few hundred kilobytes that unpack to as much as one likes."""
    (tmp_path / "x").write_bytes(gzip.compress(idx((4,)) + bytes(60_000_000), compresslevel=1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"holds more than 47,040,016 bytes: no file of this data set"):
        read_idx(tmp_path / "x")
    assert tracemalloc.get_traced_memory()[1] < 150_000_000
    tracemalloc.stop()
    with pytest.raises(ValueError, match="more than 27 bytes"):
        read_idx(tmp_path / "x", largest=27)
    (tmp_path / "x").write_bytes(gzip.compress(idx((20,))))
    assert read_idx(tmp_path / "x", largest=28).shape == (20,)
