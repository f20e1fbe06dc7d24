from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_lift.callbacks._logging import log_scalars, run_directory, tensorboard_loggers, whole_file
from tests.lightning_lift.callbacks.runs import events, make_trainer


def test_run_directory_is_where_the_first_logger_writes(tmp_path: Path) -> None:
    board, table = TensorBoardLogger(tmp_path, name="b", version="v"), CSVLogger(tmp_path, name="c", version="w")
    assert run_directory(make_trainer(tmp_path, loggers=[board, table])) == tmp_path / "b" / "v"
    assert run_directory(make_trainer(tmp_path, loggers=[table, board])) == tmp_path / "c" / "w"
    assert run_directory(make_trainer(tmp_path, loggers=False)) == tmp_path
    assert tensorboard_loggers(make_trainer(tmp_path, loggers=[table, board])) == [board]


def test_what_is_undefined_is_left_out(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, name="b", version="v")
    log_scalars(make_trainer(tmp_path, loggers=board), {"a": 1.0, "b": float("nan"), "c": float("inf")}, 3)
    board.finalize("success")
    log = events(tmp_path)
    assert log.Tags()["scalars"] == ["a"]
    assert log.Scalars("a")[0].step == 3


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.txt"
    with whole_file(path) as temporary:
        temporary.write_text("one")
        assert temporary.suffix == ".txt"
        assert not path.exists()
    assert path.read_text() == "one"
    assert path.stat().st_mode & 0o044, "others who may read the folder may read the file"
    with pytest.raises(RuntimeError, match="boom"), whole_file(path) as temporary:
        temporary.write_text("two")
        raise RuntimeError("boom")
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]
