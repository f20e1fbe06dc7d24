"""The bar over bytes: silent off a terminal, and never in the way."""

import io
import sys

import pytest

from lightning_lift.datamodules.progress import CountedFile, byte_progress


def test_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress("reading", 10) as advance:
        advance(5)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""


def test_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with byte_progress("reading a table", 10_000, start=2000) as advance:
        advance(3000)
    assert "reading a table" in screen.getvalue() and "2.00k/10.0k" in screen.getvalue()


def test_a_counted_file() -> None:
    counts: list[int] = []
    inner = io.BytesIO(b"0123456789")
    with io.BufferedReader(CountedFile(inner, counts.append), 4) as file:
        assert file.peek(2)[:2] == b"01" and file.read(6) == b"012345"
        file.seek(8)
        assert file.tell() == 8 and file.read() == b"89"
    assert inner.closed and sum(counts) >= 8
