"""What this package writes into a checkpoint, how it is read, and what is refused."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_lift import __version__
from lightning_lift.parameterizations import Parameterization

KEY = "lightning_lift"
FORMAT = 1  # raised when a checkpoint of before can no longer be read


def stamp_checkpoint(checkpoint: dict[str, Any]) -> None:
    """Adds the package's version and the format's number."""
    checkpoint[KEY] = {"version": __version__, "format": FORMAT}


def refresh_summaries(
    checkpoint: dict[str, Any],
    parameterization: Parameterization,
    rows: Callable[[], Iterable[Tensor] | None],
) -> None:
    """Makes each set of weights in a checkpoint carry the reference summary of its own body.

    Weight averaging stores two sets, of which at most one is the live module's.

    Args:
        checkpoint: as Lightning is about to write it, changed in place.
        parameterization: of the module.
        rows: gives the calibration batches, or None.
    """
    if not parameterization.needs_calibration:
        return
    prefix = "parameterization."
    for key in ("state_dict", "current_model_state"):
        if key not in checkpoint or not parameterization.is_state_stale(checkpoint[key], prefix):
            continue
        batches = rows()
        if batches is None:
            rank_zero_warn(
                "this checkpoint holds a lift without a fresh reference summary, because there is no data module with "
                "calibration_dataloader(): call module.parameterization.calibrate(batches) after loading it."
            )
            return
        checkpoint[key] = dict(checkpoint[key])  # extra state is replaced, not changed in the live module
        parameterization.calibrate_state(checkpoint[key], prefix, batches)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint as plain data, on the CPU: of this package, or of another LightningModule that it trained.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, is of another program, or is of a format that this version does not read.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"{path}: no such file; the checkpoints of a run lie in its directory under checkpoints/."
        )
    try:
        checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}): it is truncated or of another program; "
            "give a file that fit wrote."
        ) from error
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("state_dict"), Mapping):
        raise ValueError(f"{path} is no checkpoint of lightning_lift (no 'state_dict'): give a file that fit wrote.")
    if KEY in checkpoint:
        check_stamp(checkpoint)
    elif "_class_path" not in checkpoint.get("hyper_parameters", {}):  # other LightningModules are not stamped
        raise ValueError(
            f"{path} is no checkpoint of lightning_lift and does not say which class it is of (no "
            "'hyper_parameters._class_path'): give a file that fit wrote, or load your module yourself."
        )
    return dict(checkpoint)


def load_module(path: str | Path) -> L.LightningModule:
    """The module of a checkpoint, on the CPU, under the weights of evaluation (averaged ones where there are some).

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint, or does not say of which class, or of one that cannot be imported.
    """
    named = str(read_checkpoint(path).get("hyper_parameters", {}).get("_class_path", ""))
    package, _, name = named.rpartition(".")
    try:
        cls = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is of the class {named!r}, which cannot be imported ({error}).") from error
    if not (isinstance(cls, type) and issubclass(cls, L.LightningModule)):
        raise ValueError(f"{path} is of {named!r}, which is no LightningModule.")
    module: L.LightningModule = cls.load_from_checkpoint(path, map_location="cpu", weights_only=True)
    return module


def check_stamp(checkpoint: Mapping[str, Any]) -> None:
    """Refuses a checkpoint of another program or of another format.

    Args:
        checkpoint: as it was read.

    Raises:
        ValueError: as said.
    """
    stamp = checkpoint.get(KEY)
    if stamp is None:
        raise ValueError(
            "this is no checkpoint of lightning_lift (it has no 'lightning_lift' entry): pass one that a fit of this "
            "package wrote."
        )
    if stamp.get("format") != FORMAT:
        raise ValueError(
            f"the checkpoint has format {stamp.get('format')} (written by lightning_lift {stamp.get('version')}) and "
            f"version {__version__} reads format {FORMAT}: install the version that wrote it, or train again."
        )


def check_checkpoint(checkpoint: dict[str, Any], module: nn.Module) -> None:
    """Refuses a checkpoint that does not fit, before any weight is loaded.

    Args:
        checkpoint: as it was read.
        module: that is to receive it.

    Raises:
        ValueError: not of this package, of another format, or of another network or parameterization.
    """
    check_stamp(checkpoint)
    theirs, ours = checkpoint["state_dict"], module.state_dict()
    missing, unknown = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if missing or unknown:
        raise ValueError(
            f"the checkpoint is of another network or parameterization: it lacks {missing[:4]} and has {unknown[:4]} "
            "beyond this module; use the configuration that it was trained with."
        )
    for name, tensor in ours.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != theirs[name].shape:
            raise ValueError(
                f"the checkpoint's {name} has shape {tuple(theirs[name].shape)} and this module's "
                f"{tuple(tensor.shape)}: widths or dimension differ; use the configuration that it was trained with."
            )
