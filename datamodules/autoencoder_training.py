"""Trains the autoencoder of a data module, by a Trainer of its own that disturbs nothing around it."""

import functools
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from lightning_lift.datamodules.autoencoder import ConvAutoencoder
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import stream_seed
from lightning_lift.datamodules.sources import StreamSource


@dataclass(frozen=True)
class AutoencoderSettings:
    """All that decides the trained autoencoder, beside the images.

    Attributes:
        code_dim: Numbers in a code.
        channels: Channels after the first and after the second convolution.
        steps: Optimizer steps.
        batch_size: Images of a batch.
        learning_rate: Largest learning rate of the one-cycle schedule.
        code_noise: See :class:`ConvAutoencoder`.
        code_penalty: See :class:`ConvAutoencoder`.
        seed: Of the start, the order of the images and the noise.

    Raises:
        ValueError: If a number is out of range.
    """

    code_dim: int
    channels: tuple[int, int]
    steps: int
    batch_size: int
    learning_rate: float
    code_noise: float
    code_penalty: float
    seed: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise ValueError(f"the autoencoder needs at least 1 step of 1 image, got {self.steps} of {self.batch_size}")
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"the autoencoder's learning rate must be positive, got {self.learning_rate}")
        if len(self.channels) != 2 or min(self.channels) < 1:
            raise ValueError(f"the autoencoder's channels must be two numbers of at least 1, got {self.channels}")
        for label, value in (("code_noise", self.code_noise), ("code_penalty", self.code_penalty)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{label} must be a number of at least 0, got {value}")

    def plain(self) -> dict[str, Any]:
        """Return numbers and lists by name, for hashing and for the cache."""
        return asdict(self) | {"channels": list(self.channels)}

    def network(self, dim: int) -> ConvAutoencoder:
        """Make an autoencoder at its start, from the global random state.

        Args:
            dim: Pixels of an image.
        """
        schedule = functools.partial(
            torch.optim.lr_scheduler.OneCycleLR, max_lr=self.learning_rate, total_steps=max(2, self.steps)
        )
        return ConvAutoencoder(
            dim=dim,
            code_dim=self.code_dim,
            channels=self.channels,
            optimizer=functools.partial(torch.optim.Adam, lr=self.learning_rate),
            lr_scheduler=schedule,
            code_noise=self.code_noise,
            code_penalty=self.code_penalty,
        )


def train_autoencoder(images: Tensor, settings: AutoencoderSettings, show_progress: bool = True) -> ConvAutoencoder:
    """Train on the CPU, in this process alone, and leave all random states as they were.

    On the CPU because it takes a minute at most, and because codes should not depend on the accelerator at hand. The
    codes lie along their principal axes (:meth:`ConvAutoencoder.align_`).

    Args:
        images: float32 in [0, 1], (N, 1, side, side).
        settings: What to train, and how.
        show_progress: Whether to show a progress bar.

    Returns:
        The autoencoder, in evaluation mode, without gradients.

    Raises:
        RuntimeError: If training was interrupted.
        ValueError: If it diverged.
    """
    # Lightning's evaluation may ask for the rows first, without gradients or under inference mode.
    with isolate_rng(), torch.inference_mode(False), torch.enable_grad(), _quietly():
        torch.manual_seed(settings.seed)
        network = settings.network(images[0].numel())
        base = stream_seed(settings.seed, "train")
        # one epoch of all the steps, for one progress bar over them
        source = StreamSource(
            lambda count, generator: images[torch.randint(len(images), (count,), generator=generator)],
            base,
            settings.steps,
        )
        loader = BatchLoader(source, settings.batch_size, shard=False, label="images")
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            # not the cluster around us: its other processes wait for this one
            plugins=[LightningEnvironment()],
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=show_progress,
            callbacks=[RichProgressBar(refresh_rate=20)] if show_progress else [],
            gradient_clip_val=1.0,
        )
        trainer.fit(network, loader)
    if trainer.global_step < settings.steps:
        raise RuntimeError(f"training the autoencoder was interrupted at step {trainer.global_step}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values()):
        raise ValueError(
            f"the autoencoder diverged (learning rate {settings.learning_rate}): lower autoencoder_learning_rate"
        )
    network.align_(images)
    return network.eval().requires_grad_(False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what Lightning says about accelerators and loaders off the screen: it is about another training."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
