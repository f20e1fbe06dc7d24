"""A plain classifier: what rescaling is compared on where there is nothing convex."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lightning_lift.modules.factories import factory
from lightning_lift.modules.fitting import FittedModule
from lightning_lift.modules.relu_networks import ReLUMLP


class ReLUClassifier(FittedModule):
    """A classifier trained on cross-entropy; not a ConvexModule, and with no parameterization.

    Logged: ``loss`` (nats) and ``accuracy`` (share of rows) under ``train/``, ``val/`` and ``test/``. The training
    accuracy is the mean over the epoch's steps, each before its update.

    Args:
        dim: numbers in a row or image; linked from the data module on the command line.
        network: factory of the network, called with ``dim``; it maps rows or images to class scores.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per epoch.

    Raises:
        TypeError: a factory that is not one, or that a checkpoint could not store.
    """

    scheduler_interval = "epoch"
    headlines = ("test/accuracy", "test/loss")

    def __init__(
        self,
        dim: int,
        network: Callable[[int], nn.Module] = ReLUMLP,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__(dim, optimizer, lr_scheduler)
        self.network: nn.Module = factory("network", network, nn.Module)(dim)
        self.example_input_array = torch.randn(8, dim, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, shape (N, classes)."""
        scores: Tensor = self.network(x)
        return scores

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The cross-entropy of one batch of inputs and labels."""
        return self._step("train", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Loss and accuracy of held-out rows."""
        self._step("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Loss and accuracy of test rows."""
        self._step("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The most probable class of each row, shape (N,)."""
        x = batch[0] if isinstance(batch, list | tuple) else batch
        classes: Tensor = self(x).argmax(1)
        return classes

    def _step(self, stage: str, batch: Any) -> Tensor:
        x, labels = batch
        scores = self(x)
        loss: Tensor = F.cross_entropy(scores, labels)
        accuracy = (scores.argmax(1) == labels).float().mean()
        rows: Any = float(len(labels))  # see ``TaskModule``: an exact mean over processes of unequal numbers of rows
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            self.log(
                f"{stage}/{name}",
                value,
                prog_bar=True,
                on_step=False,
                on_epoch=True,
                batch_size=rows,
                sync_dist=True,
            )
        return loss
