"""What the callbacks share in writing: loggers, the run's directory, files that are whole or absent."""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure


def tensorboard_loggers(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Every TensorBoard logger of the trainer: there may be several, or none."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def run_directory(trainer: L.Trainer) -> Path:
    """Where the run's files lie: the first logger's own directory, else the trainer's root.

    Unlike ``trainer.log_dir`` it is not collective, so rank 0 may call it alone (and only rank 0 knows its version).
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger | CSVLogger):
            return Path(logger.log_dir)
        if logger.save_dir is not None:
            return Path(logger.save_dir)
    return Path(trainer.default_root_dir)


def log_scalars(trainer: L.Trainer, values: Mapping[str, float], step: int) -> None:
    """Writes scalars to every logger at an optimizer step; what is not finite (undefined) is left out."""
    finite = {tag: float(value) for tag, value in values.items() if math.isfinite(value)}
    for logger in trainer.loggers:
        logger.log_metrics(finite, step)


def publish_figure(trainer: L.Trainer, figure: Figure, tag: str, path: Path, step: int) -> None:
    """Writes a figure to a PNG file and to every TensorBoard logger.

    Args:
        trainer: the trainer.
        figure: made without pyplot, so nothing is left open.
        tag: in TensorBoard.
        path: of the PNG file; its folder is made.
        step: optimizer step.
    """
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    for logger in tensorboard_loggers(trainer):
        logger.experiment.add_figure(tag, figure, step, close=False)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same folder and renames it at the end: readers see the old file or the new one.

    Args:
        path: of the final file; its folder is made. After an error it is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
