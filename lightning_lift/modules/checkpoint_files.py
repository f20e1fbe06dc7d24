"""Checkpoint files that are whole or absent, and named where they are damaged."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import _is_local_file_protocol, get_filesystem

from lightning_lift.files import whole_file
from lightning_lift.trusted import LOADING_ERRORS, in_words, read_parts


class WholeFileCheckpointIO(TorchCheckpointIO):
    """A writer of local checkpoints beside their place, renamed once whole; other file systems are Lightning's.

    Lightning writes into the folder for temporary files and moves the file: across file systems that is a copy, which a
    kill leaves unfinished.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: plain data and tensors.
            path: of the file; readers see the old file or the new one.
            storage_options: not supported.
        """
        if storage_options is not None or not _is_local_file_protocol(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with whole_file(Path(get_filesystem(path)._strip_protocol(str(path)))) as temporary:
            torch.save(checkpoint, temporary)

    def load_checkpoint(self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None) -> Any:
        """Read a checkpoint, and refuse one that is damaged in one sentence with its name.

        Args:
            path: of the file.
            map_location: as for ``torch.load``.
            weights_only: likewise.
        """
        return read_parts(path, map_location, weights_only)


def write_whole_files(trainer: L.Trainer) -> None:
    """Have a trainer write its checkpoints by ``WholeFileCheckpointIO``, unless it brings a plugin of its own.

    Args:
        trainer: any.
    """
    strategy: Any = getattr(trainer, "strategy", None)
    if type(getattr(strategy, "checkpoint_io", None)) is TorchCheckpointIO:
        strategy.checkpoint_io = WholeFileCheckpointIO()


def name_damaged_files(trainer: L.Trainer) -> None:
    """Have a trainer name the file where something in it cannot be restored: loops, optimizers, states of callbacks.

    Args:
        trainer: any.
    """
    connector: Any = getattr(trainer, "_checkpoint_connector", None)
    for name in ("_restore_modules_and_callbacks", "restore_training_state"):
        if connector is not None and name not in vars(connector):  # not named twice
            setattr(connector, name, functools.partial(_named, trainer, getattr(connector, name)))


def _named(trainer: L.Trainer, restore: Callable[..., None], *args: Any) -> None:
    try:
        restore(*args)
    except LOADING_ERRORS as error:
        path = str(trainer.ckpt_path)
        if path in str(error) or isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path} cannot be restored ({in_words(error)}): it is damaged, holds weights alone, or is of a run with "
            "another optimizer or other callbacks; give a file that fit wrote, or start from its weights by "
            "load_from_checkpoint."
        ) from error
