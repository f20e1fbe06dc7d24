"""The contract of a data module for classification: batches of inputs with labels."""

from typing import Any, cast

import torch
from lightning import LightningDataModule
from torch import Tensor

from lightning_lift.datamodules.base import check_counts
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import check_data_seed, stream_seed
from lightning_lift.datamodules.sources import Source, TensorSource

Labelled = tuple[Tensor, Tensor]
"""Inputs (N, ...), floats or bytes, and labels (N,), integers."""


class LabelledSource:
    """Rows of inputs with their labels, in order or shuffled anew each epoch; bytes become floats batch by batch.

    Args:
        inputs: (N, ...).
        labels: (N,).
        location: subtracted from the inputs; broadcasts to a row.
        scale: divides them.
        base: base seed of the shuffling, used if ``shuffle``.
        shuffle: whether each epoch has its own order.
    """

    def __init__(
        self, inputs: Tensor, labels: Tensor, location: Tensor, scale: Tensor, base: int, shuffle: bool
    ) -> None:
        self._inputs, self._labels, self._location, self._scale = inputs, labels.long(), location, scale
        # positions are exact in float32 up to 16.7 million rows
        self._positions = TensorSource(torch.arange(len(inputs))[:, None], base, shuffle)

    def num_rows(self) -> int:
        """Gives N."""
        return len(self._inputs)

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> Labelled:
        """Gives inputs in training units and labels; see :class:`~lightning_lift.datamodules.sources.Source`."""
        positions = self._positions.rows(epoch, index, size, start, stop)[:, 0].long()
        inputs = (self._inputs[positions].to(torch.float32) - self._location) / self._scale
        return inputs, self._labels[positions]


class LabelledDataModule(LightningDataModule):
    """Base of data modules for classification: a batch is float32 inputs (N, ...) and labels (N,), int64.

    Inputs are served in training units, ``(original - location) / scale``. Every epoch's order is a function of
    ``data_seed`` alone, and a resumed run goes on with the rows it would have had.

    Subclass requirements: ``__init__`` takes plain arguments, calls ``super().__init__`` and ``save_hyperparameters``;
    ``load()`` gives the splits ``train``, ``val`` and ``test``. It imports nothing of ``lightning_lift``.

    Args:
        dim: Numbers in a row or image.
        num_classes: Number of classes K; labels are 0 to K - 1.
        name: Name of the source, as it appears in results.
        batch_size: Rows of one process's training batch.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_classes: int,
        name: str,
        batch_size: int,
        data_seed: int = 0,
        eval_batch_size: int = 1000,
    ) -> None:
        super().__init__()
        check_data_seed(data_seed)
        check_counts(dim=dim, num_classes=num_classes, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.dim = dim
        self.num_classes = num_classes
        self.name: str = name
        self.batch_size = batch_size
        self.data_seed = data_seed
        self.eval_batch_size = eval_batch_size
        self.location, self.scale = torch.zeros(()), torch.ones(())
        self._splits: dict[str, Labelled] = {}

    def load(self) -> dict[str, Labelled]:
        """Makes the splits, in original units, and sets ``location`` and ``scale`` where rows are standardised.

        Returns:
            ``train``, ``val`` and ``test``: inputs (rows, ...) and labels (rows,).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    def setup(self, stage: str | None = None) -> None:
        """Makes the splits, once; later calls change nothing.

        Args:
            stage: Lightning's stage; all the splits are made whatever it is.

        Raises:
            ValueError: If a split is missing or empty, or rows, labels and sizes do not fit together.
        """
        if self._splits:
            return
        with torch.inference_mode(False):  # tensors of an inference-mode test would be refused by a later fit
            splits = self.load()
        if missing := {"train", "val", "test"} - splits.keys():
            raise ValueError(f"{type(self).__name__}.load() gave no {sorted(missing)} split(s)")
        for key, (inputs, labels) in splits.items():
            if len(inputs) < 1 or labels.shape != (len(inputs),) or inputs[0].numel() != self.dim:
                raise ValueError(
                    f"{self.name}: split {key!r} has inputs {tuple(inputs.shape)} and labels {tuple(labels.shape)}; "
                    f"expected (rows, ...) of {self.dim} numbers and (rows,)"
                )
            if int(labels.min()) < 0 or int(labels.max()) >= self.num_classes:
                raise ValueError(
                    f"{self.name}: split {key!r} has labels from {int(labels.min())} to {int(labels.max())}; expected "
                    f"0 to {self.num_classes - 1}"
                )
        if len(splits["train"][0]) < self.batch_size:
            raise ValueError(
                f"{self.name}: the training split has {len(splits['train'][0])} rows, fewer than batch_size "
                f"{self.batch_size}; lower batch_size"
            )
        self._splits = splits

    def split(self, key: str) -> Labelled:
        """Gives a whole split, setting up first if need be: inputs in training units, and labels.

        Args:
            key: ``train``, ``val`` or ``test``.
        """
        self.setup()
        inputs, labels = self._splits[key]
        return (inputs.to(torch.float32) - self.location) / self.scale, labels.long()

    def train_dataloader(self) -> BatchLoader:
        """Gives the training rows, shuffled each epoch, without a last incomplete batch."""
        self.setup()
        repeat = getattr(self.trainer, "overfit_batches", 0) > 0
        loader = BatchLoader(
            self._source("train", shuffle=True),
            self.batch_size,
            drop_last=True,
            same_every_epoch=repeat,
            label=f"training split of {self.name}",
        )
        limit: Any = getattr(self.trainer, "limit_train_batches", None)
        if limit is not None:
            loader.limit = int(limit * len(loader)) if isinstance(limit, float) else limit
        if self.trainer is not None:
            loader.fit_loop = self.trainer.fit_loop
        return loader

    def val_dataloader(self) -> BatchLoader:
        """Gives the validation rows in order, each once."""
        return self._in_order("val")

    def test_dataloader(self) -> BatchLoader:
        """Gives the test rows in order, each once."""
        return self._in_order("test")

    def predict_dataloader(self) -> BatchLoader:
        """Gives the test rows in order, each once."""
        return self._in_order("test")

    def _in_order(self, key: str) -> BatchLoader:
        self.setup()
        return BatchLoader(self._source(key, shuffle=False), self.eval_batch_size, label=f"{key} split of {self.name}")

    def _source(self, key: str, shuffle: bool) -> Source:
        inputs, labels = self._splits[key]
        base = stream_seed(self.data_seed, "train")
        # the loader hands on whatever its source gives
        return cast(Source, LabelledSource(inputs, labels, self.location, self.scale, base, shuffle))
