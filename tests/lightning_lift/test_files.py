import importlib
import sys
from pathlib import Path

import pytest

import lightning_lift.compare
from lightning_lift.files import lock, whole_file


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    with whole_file(path) as temporary:
        temporary.write_text("old")
        assert temporary.suffix == ".csv"
        assert not path.exists()
    assert path.stat().st_mode & 0o044, "others who may read the folder may read the file"
    with pytest.raises(RuntimeError, match="boom"), whole_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("boom")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_a_lock_keeps_others_out_until_the_file_is_closed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / ".lock"
    with path.open("a") as first:
        assert lock(first)
        with path.open("a") as second, pytest.raises(BlockingIOError):
            lock(second)
        with path.open("a") as second, pytest.raises(BlockingIOError):
            lock(second, shared=True)
    with path.open("a") as first, path.open("a") as second:
        assert lock(first, shared=True)
        assert lock(second, shared=True)


def test_without_fcntl_nothing_is_locked_and_compare_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows: importing it raises ImportError
    with (tmp_path / ".lock").open("a") as file:
        assert not lock(file)
    monkeypatch.setattr(lightning_lift, "compare", None)
    for name in [name for name in sys.modules if name.startswith("lightning_lift.compare")]:
        monkeypatch.delitem(sys.modules, name)
    assert importlib.import_module("lightning_lift.compare").PairedComparison
