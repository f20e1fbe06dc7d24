"""A small convolutional autoencoder of square grey images: data preparation, so it lives with the data."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable
from torch import Tensor, nn

from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.trusted import TrustedLoading

_CHUNK = 1000  # images that pass through the encoder at once

OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class ConvAutoencoder(TrustedLoading, L.LightningModule):
    """Images to codes and back, trained on the mean squared error of a pixel.

    Two 3x3 convolutions of stride 2 and a linear layer to the code; a linear layer and two transposed 4x4 convolutions
    of stride 2 back; ReLU between them, none at the ends. A plain LightningModule, with ``example_input_array``.

    Codes whose density is to be modelled want regularising. The training loss of an image x of P pixels is

        |x - decode(encode(x) + code_noise e)|^2 / P + code_penalty |encode(x)|^2,   e ~ N(0, I):

    the noise makes neighbours of a code decode to neighbours of its image, and the penalty keeps the codes from growing
    until they no longer feel it. To a linear decoder only ``code_noise^2 code_penalty`` matters. It is the variational
    autoencoder (Kingma & Welling, 2014, equation 10) with one fixed variance in place of a learned one.

    Logged: ``train/loss``, the above; ``val/loss`` and ``test/loss``, mean squared error a pixel without noise and
    penalty, in the squared units of the images.

    Args:
        dim: number of pixels of an image; linked from the data module on the command line.
        code_dim: numbers in a code.
        channels: channels after the first and after the second convolution.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
        code_noise: standard deviation of the noise on the codes in training.
        code_penalty: factor of the squared length of a code in the training loss.

    Raises:
        ValueError: no square of a side divisible by 4, a size below 1, or a negative noise or penalty.
    """

    def __init__(
        self,
        dim: int = 784,
        code_dim: int = 16,
        channels: Sequence[int] = (16, 32),
        optimizer: OptimizerFactory = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        code_noise: float = 0.0,
        code_penalty: float = 0.0,
    ) -> None:
        super().__init__()
        side = math.isqrt(dim)
        if side * side != dim or side % 4 or side < 4:
            raise ValueError(f"dim={dim}: the images must be square with a side divisible by 4, such as 784 = 28 x 28.")
        if code_dim < 1 or len(channels) != 2 or min(channels) < 1:
            raise ValueError(f"code_dim={code_dim}, channels={list(channels)}: give sizes of at least 1, two channels.")
        for label, value in (("code_noise", code_noise), ("code_penalty", code_penalty)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{label}={value}: give a number of at least 0.")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        # what `lightning-lift rescale` and Lightning's own CLI load a checkpoint by
        self.hparams["_class_path"] = f"{type(self).__module__}.{type(self).__qualname__}"
        self._optimizer, self._lr_scheduler = optimizer, lr_scheduler
        self.code_noise, self.code_penalty = code_noise, code_penalty
        first, second = channels
        quarter = side // 4
        self.side, self.code_dim = side, code_dim
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

    @torch.no_grad()
    def align_(self, images: Tensor) -> None:
        """Turn the codes, in place, to the principal axes of these images' codes, the widest first.

        Encoder and decoder turn together, so that no reconstruction changes, nor the length of a code, nor what the
        noise does to it. Afterwards the numbers of a code are uncorrelated over these images.

        Args:
            images: (N, 1, side, side), at least two.
        """
        codes = torch.cat([self.encode(part) for part in images.split(_CHUNK)]).double()
        axes = torch.linalg.eigh(torch.cov(codes.T).view(self.code_dim, -1))[1].flip(1)
        # an axis has no direction of its own: its largest part is made positive
        largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
        axes = axes * largest.sign()
        into, out_of = self.encoder[-1], self.decoder[0]
        assert isinstance(into, nn.Linear)
        assert isinstance(out_of, nn.Linear)
        into.weight.copy_(axes.T @ into.weight.double())
        into.bias.copy_(axes.T @ into.bias.double())
        out_of.weight.copy_(out_of.weight.double() @ axes)

    def forward(self, images: Tensor) -> Tensor:
        """Reconstructions, in the shape of the images."""
        return self.decode(self.encode(images))

    def reconstruction_loss(self, batch: Any) -> Tensor:
        """Mean squared error a pixel.

        Args:
            batch: images (N, 1, side, side), or images with labels, which are not used.
        """
        images = _images(batch)
        return F.mse_loss(self(images), images)

    def regularized_loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean squared error a pixel with noise on the codes, plus the penalty on their length.

        Args:
            batch: images (N, 1, side, side), or images with labels, which are not used.
            generator: CPU generator of the noise.
        """
        images = _images(batch)
        codes = self.encode(images)
        noise = self.code_noise * torch.randn(codes.shape, generator=generator).to(codes)
        penalty: Tensor = self.code_penalty * codes.square().sum(dim=1).mean()
        return F.mse_loss(self.decode(codes + noise), images) + penalty

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        if self.code_noise or self.code_penalty:
            # A function of the batch's number, so that a resumed run has the noise that it would have had.
            base = stream_seed(0, "train", self.global_rank)
            number = self.trainer.fit_loop.epoch_loop.total_batch_idx
            loss = self.regularized_loss(batch, generator_at(base, number))
        else:
            loss = self.reconstruction_loss(batch)
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of held-out images."""
        self.log("val/loss", self.reconstruction_loss(batch), prog_bar=True, sync_dist=True, batch_size=_rows(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """The loss of test images."""
        self.log("test/loss", self.reconstruction_loss(batch), sync_dist=True, batch_size=_rows(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The codes of a batch."""
        return self.encode(_images(batch))

    def configure_optimizers(self) -> Any:
        """The optimizer over all parameters, and the scheduler, if any."""
        optimizer = self._optimizer(self.parameters())
        if self._lr_scheduler is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self._lr_scheduler(optimizer), "interval": "step"},
        }


def _images(batch: Any) -> Tensor:
    images: Tensor = batch[0] if isinstance(batch, list | tuple) else batch
    return images


def _rows(batch: Any) -> int:
    return len(_images(batch))
