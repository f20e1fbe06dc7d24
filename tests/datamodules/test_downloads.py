"""Downloads from local files: whole or absent, checked, never twice."""

import hashlib
from pathlib import Path

import pytest

from datamodules.downloads import fetch


def test_whole_or_absent(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"content" * 1000)
    md5 = hashlib.md5(source.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="nothing kept"):
        fetch(source.as_uri(), target, "0" * 32)
    assert list(target.parent.iterdir()) == []
    fetch(source.as_uri(), target, md5)
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    fetch("file:///nowhere", target, md5)  # there already: not fetched again
    target.write_bytes(b"cut")
    with pytest.raises(ValueError, match="delete it"):
        fetch(source.as_uri(), target, md5)
    with pytest.raises(FileNotFoundError, match="could not be downloaded"):
        fetch("file:///nowhere", tmp_path / "other", md5)
