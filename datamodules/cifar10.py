"""CIFAR-10 (Krizhevsky, 2009) from its binary files."""

import shutil
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch

from lightning_lift.datamodules.downloads import fetch
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.labelled import Labelled, LabelledDataModule
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.unpacking import open_tar
from lightning_lift.files import whole_file

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000  # in each of the published files
LARGEST = 170_052_171  # bytes of the archive
_LARGEST_UNPACKED = 190_000_000  # bytes of all that is in it


def read_records(path: Path, count: int | None = RECORDS) -> Labelled:
    """Read a binary file: records of one label byte and 3,072 pixels, red, green, blue, each row by row.

    Args:
        path: The file.
        count: Number of records that it must hold; None for any number above 0.

    Returns:
        Images (records, 3, 32, 32) and labels (records,), both uint8.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is cut off, of another size, or has a label above 9.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no file {str(path)!r}: give the folder of the binary version of CIFAR-10, or let it be downloaded "
            "(download=True, 162 MB)"
        )
    content = np.fromfile(path, dtype=np.uint8)
    expected = None if count is None else count * RECORD
    if len(content) == 0 or len(content) % RECORD or (expected is not None and len(content) != expected):
        wanted = f"a multiple of {RECORD}" if expected is None else f"{expected} ({count} records of {RECORD})"
        raise ValueError(f"{str(path)!r} has {len(content)} bytes, expected {wanted}: cut off, or another format")
    records = torch.from_numpy(content).view(-1, RECORD)
    labels = records[:, 0].clone()
    if int(labels.max()) > 9:
        raise ValueError(f"{str(path)!r} has the label {int(labels.max())}; CIFAR-10 has 0 to 9: another format?")
    return records[:, 1:].reshape(-1, 3, 32, 32).clone(), labels


def unpack(archive: Path, folder: Path) -> None:
    """Take the six binary files out of the published archive, each under a temporary name first.

    Args:
        archive: ``cifar-10-binary.tar.gz``.
        folder: Where to put them.

    Raises:
        ValueError: If the archive is damaged, is larger than the published one or lacks a file.
    """
    wanted = {*TRAIN_FILES, TEST_FILE}
    try:
        with open_tar(archive, _LARGEST_UNPACKED) as tar:
            for member in tar:
                name = Path(member.name).name
                source = tar.extractfile(member) if name in wanted and member.isfile() else None
                if source is not None:
                    with whole_file(folder / name) as temporary, temporary.open("wb") as file:
                        shutil.copyfileobj(source, file)
                    wanted.discard(name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{str(archive)!r} cannot be unpacked ({error}); delete it and try again") from error
    if wanted:
        raise ValueError(f"{str(archive)!r} holds no {sorted(wanted)}")


class CIFAR10DataModule(LabelledDataModule):
    """32x32 colour images of ten classes; a batch is images (N, 3, 32, 32) and labels (N,).

    Each channel has the mean 0 and the standard deviation 1 of the training images. No augmentation.

    Args:
        folder: Folder of the six binary files; with ``download``, where they are put.
        download: Whether to download them (162 MB, MD5 checked) where they are missing.
        num_val: Images of the validation set, taken from the 50,000 training images.
        batch_size: Images of one process's training batch.
        data_seed: Seed of everything random in the data, the split included.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        folder: str = "data/cifar10",
        download: bool = False,
        num_val: int = 5000,
        batch_size: int = 128,
        data_seed: int = 0,
    ) -> None:
        check_counts(num_val=num_val)
        super().__init__(dim=3072, num_classes=10, name="CIFAR-10", batch_size=batch_size, data_seed=data_seed)
        self.folder, self.download, self.num_val = folder, download, num_val
        self.save_hyperparameters()

    def prepare_data(self) -> None:
        """Download and unpack what is missing, if asked to; on one process of each machine."""
        folder = Path(self.folder)
        if self.download and not all((folder / name).is_file() for name in (*TRAIN_FILES, TEST_FILE)):
            archive = folder / "cifar-10-binary.tar.gz"
            fetch(URL, archive, MD5, largest=LARGEST)
            unpack(archive, folder)

    def load(self) -> dict[str, Labelled]:
        """Read the files, here or in the archive's own folder ``cifar-10-batches-bin``.

        Returns:
            The splits: images (rows, 3, 32, 32) uint8 and labels.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If one is damaged, or too few images are left to train on.
        """
        folder = Path(self.folder)
        if not (folder / TEST_FILE).is_file() and (folder / "cifar-10-batches-bin").is_dir():
            folder = folder / "cifar-10-batches-bin"
        parts = [read_records(folder / name, self.records_per_file) for name in TRAIN_FILES]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        if self.num_val >= len(images):
            raise ValueError(f"CIFAR-10: {self.num_val} validation images of {len(images)} leave none to train on")
        order = torch.randperm(len(images), generator=generator_at(stream_seed(self.data_seed, "split"), 0))
        val, train = order[: self.num_val], order[self.num_val :]
        pixels = images[train].flatten(2).to(torch.float32)
        mean, std = pixels.mean((0, 2)), pixels.std((0, 2))
        self.location, self.scale = mean.view(3, 1, 1), std.clamp(min=1.0).view(3, 1, 1)
        test = read_records(folder / TEST_FILE, self.records_per_file)
        return {"train": (images[train], labels[train]), "val": (images[val], labels[val]), "test": test}

    @property
    def records_per_file(self) -> int | None:
        """Records that each file must hold; tests of small files override it."""
        return RECORDS
