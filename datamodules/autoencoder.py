"""A small convolutional autoencoder of square grey images: data preparation, so it lives with the data."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class ConvAutoencoder(L.LightningModule):
    """Images to codes and back, trained on the mean squared error of a pixel.

    Two 3x3 convolutions of stride 2 and a linear layer to the code; a linear layer and two transposed 4x4 convolutions
    of stride 2 back; ReLU between them, none at the ends. A plain LightningModule, with ``example_input_array``.

    Logged: ``train/loss``, ``val/loss`` and ``test/loss``, mean squared error a pixel, in the squared units of the
    images.

    Args:
        dim: number of pixels of an image; linked from the data module on the command line.
        code_dim: numbers in a code.
        channels: channels after the first and after the second convolution.
        optimizer: factory of the optimizer, called with the parameters.

    Raises:
        ValueError: no square of a side divisible by 4, or a size below 1.
    """

    def __init__(
        self,
        dim: int = 784,
        code_dim: int = 16,
        channels: Sequence[int] = (16, 32),
        optimizer: OptimizerFactory = torch.optim.Adam,
    ) -> None:
        super().__init__()
        side = math.isqrt(dim)
        if side * side != dim or side % 4 or side < 4:
            raise ValueError(f"dim={dim}: the images must be square with a side divisible by 4, such as 784 = 28 x 28.")
        if code_dim < 1 or len(channels) != 2 or min(channels) < 1:
            raise ValueError(f"code_dim={code_dim}, channels={list(channels)}: give sizes of at least 1, two channels.")
        self.save_hyperparameters(ignore=["optimizer"])
        # what `lightning-lift rescale` and Lightning's own CLI load a checkpoint by
        self.hparams["_class_path"] = f"{type(self).__module__}.{type(self).__qualname__}"
        self._optimizer = optimizer
        first, second = channels
        quarter = side // 4
        self.side = side
        self.encoder = nn.Sequential(
            nn.Conv2d(1, first, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * quarter**2, code_dim),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code_dim, second * quarter**2),
            nn.ReLU(),
            nn.Unflatten(1, (second, quarter, quarter)),
            nn.ConvTranspose2d(second, first, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(first, 1, 4, stride=2, padding=1),
        )
        self.example_input_array = torch.zeros(2, 1, side, side)

    def encode(self, images: Tensor) -> Tensor:
        """Codes (N, code_dim) of images (N, 1, side, side)."""
        codes: Tensor = self.encoder(images)
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """Images (N, 1, side, side) of codes (N, code_dim)."""
        images: Tensor = self.decoder(codes)
        return images

    def forward(self, images: Tensor) -> Tensor:
        """Reconstructions, in the shape of the images."""
        return self.decode(self.encode(images))

    def reconstruction_loss(self, batch: Any) -> Tensor:
        """Mean squared error a pixel.

        Args:
            batch: images (N, 1, side, side), or images with labels, which are not used.
        """
        images = batch[0] if isinstance(batch, list | tuple) else batch
        return F.mse_loss(self(images), images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        loss = self.reconstruction_loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of held-out images."""
        self.log("val/loss", self.reconstruction_loss(batch), prog_bar=True, sync_dist=True, batch_size=_rows(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of test images."""
        self.log("test/loss", self.reconstruction_loss(batch), sync_dist=True, batch_size=_rows(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The codes of a batch."""
        return self.encode(batch[0] if isinstance(batch, list | tuple) else batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer over all parameters."""
        return self._optimizer(self.parameters())


def _rows(batch: Any) -> int:
    return len(batch[0] if isinstance(batch, list | tuple) else batch)
