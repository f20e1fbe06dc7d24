"""Reading compressed files: all of it, with a bar on a terminal, and no further than stated."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lightning_lift.datamodules import unpacking
from lightning_lift.datamodules.unpacking import open_file, open_packed, open_tar

CONTENT = bytes(range(256)) * 40


@pytest.mark.parametrize("packed", [False, True])
def test_all_of_a_file_and_no_more_than_stated(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(CONTENT) if packed else CONTENT)
    with open_file(path, len(CONTENT)) as file:
        assert file.read() == CONTENT
    with (
        open_file(path, len(CONTENT) - 1) as file,
        pytest.raises(ValueError, match=r"x' unpacks to more than 10,239 bytes"),
    ):
        file.read()


def test_a_file_within_another_is_left_open() -> None:
    outer = io.BytesIO(gzip.compress(CONTENT))
    with open_packed(outer, 1 << 20, "inner") as file:
        assert file.read(5) == CONTENT[:5]
    assert not outer.closed


def test_an_array_is_read_from_its_place(tmp_path: Path) -> None:
    """NumPy would otherwise read from the descriptor of the file beneath."""
    rows = np.arange(12.0).reshape(4, 3)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, size in (("first", 5000), ("rows.npy", 0)):
            stream = io.BytesIO(bytes(size))
            if not size:
                np.save(stream, rows)
            info = tarfile.TarInfo(name)
            info.size = len(stream.getvalue())
            stream.seek(0)
            tar.addfile(info, stream)
    with open_tar(tmp_path / "a.tar.gz", 1 << 20) as tar:
        for entry in tar:
            if entry.name == "rows.npy":
                content = tar.extractfile(entry)
                assert content is not None
                with open_packed(content, 1 << 20, "rows") as file:
                    np.testing.assert_array_equal(np.lib.format.read_array(file), rows)


def test_a_member_that_is_passed_over_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 3_000_000
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    with (
        pytest.raises(ValueError, match="more than 2,000,000 bytes"),
        open_tar(tmp_path / "a.tar.gz", 2_000_000) as tar,
    ):
        list(tar)


def test_a_bar_on_a_terminal_and_silence_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a table").write_bytes(CONTENT)
    with open_file(tmp_path / "a table", 1 << 20) as file:
        file.read()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""
    screen = io.StringIO()
    monkeypatch.setattr(unpacking, "Console", lambda stderr: Console(file=screen, force_terminal=True))
    with open_file(tmp_path / "a table", 1 << 20) as file:
        file.read()
    assert "reading a table" in screen.getvalue()
