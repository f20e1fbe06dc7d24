from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_lift.callbacks._logging import log_scalars, run_directory, tensorboard_loggers
from tests.lightning_lift.callbacks.runs import events, make_trainer


def test_run_directory_is_where_the_first_logger_writes(tmp_path: Path) -> None:
    board, table = TensorBoardLogger(tmp_path, name="b", version="v"), CSVLogger(tmp_path, name="c", version="w")
    assert run_directory(make_trainer(tmp_path, loggers=[board, table])) == tmp_path / "b" / "v"
    assert run_directory(make_trainer(tmp_path, loggers=[table, board])) == tmp_path / "c" / "w"
    assert tensorboard_loggers(make_trainer(tmp_path, loggers=[table, board])) == [board]


def test_what_is_undefined_is_left_out(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, name="b", version="v")
    log_scalars(make_trainer(tmp_path, loggers=board), {"a": 1.0, "b": float("nan"), "c": float("inf")}, 3)
    board.finalize("success")
    log = events(tmp_path)
    assert log.Tags()["scalars"] == ["a"]
    assert log.Scalars("a")[0].step == 3
