"""Trained autoencoders on disk: trained once for each data set and settings, whole or absent, checked when read."""

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_lift.datamodules.autoencoder import ConvAutoencoder
from lightning_lift.datamodules.autoencoder_training import AutoencoderSettings, train_autoencoder
from lightning_lift.files import whole_file

FORMAT = 1  # of the files and of the training: a change that gives other codes makes it one more


def fingerprint(images: Tensor, settings: AutoencoderSettings) -> str:
    """Return 16 hexadecimal digits that change with the images, their order, the settings and the format.

    Args:
        images: uint8, (N, 1, side, side).
        settings: Of the autoencoder.
    """
    digest = hashlib.sha256()
    header = {"format": FORMAT, "shape": list(images.shape), "settings": settings.plain()}
    digest.update(json.dumps(header, sort_keys=True).encode())
    digest.update(images.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def cached_autoencoder(
    images: Tensor, white: int, settings: AutoencoderSettings, folder: Path, label: str, show_progress: bool = True
) -> ConvAutoencoder:
    """Read the autoencoder of these images and settings, or train it and keep it.

    A file that cannot be read is named in a warning and replaced. Processes that train at the same time end with the
    same autoencoder: the first file written stays.

    Args:
        images: Training images, uint8, (N, 1, side, side).
        white: Their largest possible value.
        settings: Of the autoencoder.
        folder: Where to keep it.
        label: What the images are called; begins the file's name.
        show_progress: Whether training shows a progress bar.

    Returns:
        The autoencoder, in evaluation mode, without gradients.

    Raises:
        OSError: If the folder cannot be written; before the training.
    """
    key = fingerprint(images, settings)
    path = folder / f"{label}-{settings.code_dim}d-{key}.pt"
    dim = images[0].numel()
    if path.exists():
        network = _read(path, key, settings, dim)
        if network is not None:
            return network
        rank_zero_warn(f"{str(path)!r} is damaged or of another program: the autoencoder is trained anew.")
        path.unlink(missing_ok=True)
    _refuse_unwritable(folder)
    rank_zero_info(
        f"Training an autoencoder of {len(images)} images ({label}, {settings.code_dim}-D codes) for {settings.steps} "
        f"steps, once: it is kept in {str(path)!r}"
    )
    network = train_autoencoder(images.to(torch.float32) / white, settings, show_progress)
    _write(path, {"format": FORMAT, "key": key, "settings": settings.plain(), "weights": network.state_dict()})
    return _read(path, key, settings, dim) or network


def _read(path: Path, key: str, settings: AutoencoderSettings, dim: int) -> ConvAutoencoder | None:
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        if content["format"] != FORMAT or content["key"] != key or content["settings"] != settings.plain():
            return None
        with torch.random.fork_rng(devices=[]):  # the start that the weights replace
            network = settings.network(dim)
        network.load_state_dict(content["weights"])
    except OSError as error:
        raise OSError(f"{str(path)!r} cannot be read ({error}); mend that, or give another cache_folder") from error
    except Exception:  # torch.load has no error of its own: a damaged file gives one of half a dozen
        return None
    return network.eval().requires_grad_(False)


def _write(path: Path, content: dict[str, Any]) -> None:
    with suppress(FileExistsError), whole_file(path) as temporary:
        torch.save(content, temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise  # another process was first: its file stays
        except OSError:
            pass  # a file system without hard links: renamed, then


def _refuse_unwritable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"the trained autoencoder cannot be kept in {str(folder)!r} ({error}); give another folder as cache_folder"
        ) from error
