"""What the callbacks share in writing: loggers, the run's directory, figures."""

import math
from collections.abc import Mapping
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure

from lightning_lift.files import whole_file


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
