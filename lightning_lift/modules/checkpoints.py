"""What this package writes into a checkpoint, and what it refuses to read."""

from collections.abc import Callable, Iterable
from typing import Any

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


def check_stamp(checkpoint: dict[str, Any]) -> None:
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
