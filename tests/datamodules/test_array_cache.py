"""The cache of arrays: used when its sources are the same, whole or absent, never in the way."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from lightning_lift.datamodules import array_cache
from lightning_lift.datamodules.array_cache import cached, fingerprint

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones((1, 2))}


def make_once(calls: list[int]):
    def make():
        calls.append(0)
        return ARRAYS

    return make


def test_made_once_and_equal(tmp_path: Path) -> None:
    calls: list[int] = []
    for _ in range(2):
        found = cached(str(tmp_path / "new"), "x", "0" * 16, ("a", "b"), make_once(calls))
        assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)
    assert len(calls) == 1
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"x-{'0' * 16}-a.npy", f"x-{'0' * 16}-b.npy"}
    cached(None, "x", "0" * 16, ("a", "b"), make_once(calls))
    assert len(calls) == 2


@pytest.mark.parametrize("fault", ["cut", "gone", "empty"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, fault: str) -> None:
    calls: list[int] = []
    cached(str(tmp_path), "x", "m", ("a", "b"), make_once(calls))
    victim = tmp_path / "x-m-b.npy"
    content = victim.read_bytes()
    victim.write_bytes({"cut": content[:-4], "gone": b"", "empty": b""}[fault])
    if fault == "gone":
        victim.unlink()
    found = cached(str(tmp_path), "x", "m", ("a", "b"), make_once(calls))
    assert len(calls) == 2 and np.array_equal(found["b"], ARRAYS["b"]) and victim.read_bytes() == content


def test_a_full_disk_is_a_warning_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = np.save

    def full(file, array, **kwargs):
        if array.shape == (1, 2):
            file.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, array, **kwargs)

    monkeypatch.setattr(array_cache.np, "save", full)
    with pytest.warns(UserWarning, match=r"could not be kept .*No space left.* set another cache_folder"):
        found = cached(str(tmp_path), "x", "m", ("a", "b"), make_once([]))
    assert np.array_equal(found["b"], ARRAYS["b"])
    assert {path.name for path in tmp_path.iterdir()} == {"x-m-a.npy"}


def test_the_fingerprint_tells_files_and_settings_apart(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    first = fingerprint([path], 1)
    assert fingerprint([path], 1) == first and fingerprint([path], 2) != first
    status = path.stat()
    path.write_bytes(b"two!")
    assert fingerprint([path], 1) != first
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert fingerprint([path], 1) != first
