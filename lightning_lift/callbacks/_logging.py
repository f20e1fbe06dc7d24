"""What the callbacks share in writing: loggers, the run's directory, figures."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from lightning_lift.files import whole_file


def tensorboard_loggers(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """Every TensorBoard logger of the trainer: there may be several, or none."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def run_directory(trainer: L.Trainer) -> Path | None:
    """Where the run's files lie: the first logger's own directory, else the trainer's root.

    Unlike ``trainer.log_dir`` it is not collective, so rank 0 may call it alone (and only rank 0 knows its version).

    Returns:
        None where no files are to be written: with ``fast_dev_run``, without a logger, and, with a warning, where the
        logger writes to another file system (``memory://``, ``s3://``).
    """
    if getattr(trainer, "fast_dev_run", False) or not trainer.loggers:
        return None
    has_log_dir = TensorBoardLogger, CSVLogger
    folders = [one.log_dir if isinstance(one, has_log_dir) else one.save_dir for one in trainer.loggers]
    folder = str(next((folder for folder in folders if folder is not None), trainer.default_root_dir))
    return local_path(folder) or _say_remote(folder)


def local_path(address: str) -> Path | None:
    """The path of an address on this machine's file system (``file://`` too), else None."""
    if "://" not in address:
        return Path(address)
    system = get_filesystem(address)
    return Path(str(system._strip_protocol(address))) if "file" in system.protocol else None


@cache  # said once
def _say_remote(folder: str) -> None:
    rank_zero_warn(
        f"the log folder {folder} is not on this machine's file system: metrics, figures and histograms go to the "
        "loggers, and no files (metrics.json, tables, PNGs) are written; log to a local folder to have them."
    )


def is_recorded(trainer: L.Trainer) -> bool:
    """Whether there is anywhere to put a figure."""
    return bool(tensorboard_loggers(trainer)) or run_directory(trainer) is not None


def log_scalars(trainer: L.Trainer, values: Mapping[str, float], step: int) -> None:
    """Write scalars to every logger at an optimizer step; what is not finite (undefined) is left out."""
    finite = {tag: float(value) for tag, value in values.items() if math.isfinite(value)}
    for logger in trainer.loggers:
        logger.log_metrics(finite, step)


def publish_figure(trainer: L.Trainer, figure: Figure, tag: str, file_name: str, step: int) -> None:
    """Write a figure to a PNG file under ``figures/`` in the run's directory and to every TensorBoard logger.

    Args:
        trainer: the trainer.
        figure: made without pyplot, so nothing is left open.
        tag: in TensorBoard.
        file_name: of the PNG file.
        step: optimizer step.
    """
    figure.set_dpi(120)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # once, for the file and all loggers
    picture = np.asarray(canvas.buffer_rgba())[..., :3]
    folder = run_directory(trainer)
    if folder is not None:
        with whole_file(folder / "figures" / file_name) as temporary:
            imsave(temporary, picture, format="png")
    for logger in tensorboard_loggers(trainer):
        logger.experiment.add_image(tag, picture, step, dataformats="HWC")
