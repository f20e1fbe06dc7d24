"""The contract of a data module for classification: batches of inputs with labels."""

import torch
from torch import Tensor

from lightning_lift.datamodules.in_memory import InMemoryDataModule, check_counts
from lightning_lift.datamodules.sources import TensorSource

Labelled = tuple[Tensor, Tensor]
"""Inputs (N, ...), floats or bytes, and labels (N,), integers."""


class LabelledSource(TensorSource):
    """Rows of inputs with their labels, in order or shuffled anew each epoch; bytes become floats batch by batch.

    Args:
        inputs: (N, ...).
        labels: (N,).
        location: Subtracted from the inputs; broadcasts to a row.
        scale: Divides them.
        base: Base seed of the shuffling, used if ``shuffle``.
        shuffle: Whether each epoch has its own order.
    """

    def __init__(
        self, inputs: Tensor, labels: Tensor, location: Tensor, scale: Tensor, base: int, shuffle: bool
    ) -> None:
        super().__init__(inputs, base, shuffle)
        self._inputs, self._labels, self._location, self._scale = inputs, labels.long(), location, scale

    def rows(self, epoch: int, index: int, size: int, start: int, stop: int) -> Labelled:
        """Return inputs in training units and labels; see :class:`~lightning_lift.datamodules.sources.Source`."""
        positions = self.positions(epoch, index * size + start, index * size + stop)
        inputs = (self._inputs[positions].to(torch.float32) - self._location) / self._scale
        return inputs, self._labels[positions].clone()


class LabelledDataModule(InMemoryDataModule[Labelled]):
    """Base of data modules for classification: a batch is float32 inputs (N, ...) and labels (N,), int64.

    Inputs are served in training units, ``(original - location) / scale``. Every epoch's order is a function of
    ``data_seed`` alone, and a resumed run goes on with the rows it would have had.

    Subclass requirements: ``__init__`` takes plain arguments, calls ``super().__init__`` and ``save_hyperparameters``;
    ``load()`` gives the splits ``train``, ``val`` and ``test``.

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
        super().__init__(
            dim=dim, name=name, batch_size=batch_size, data_seed=data_seed, eval_batch_size=eval_batch_size
        )
        check_counts(num_classes=num_classes)
        self.num_classes = num_classes
        self.location, self.scale = torch.zeros(()), torch.ones(())

    def load(self) -> dict[str, Labelled]:
        """Make the splits, in original units, and set ``location`` and ``scale`` where rows are standardised.

        Returns:
            ``train``, ``val`` and ``test``: inputs (rows, ...) and labels (rows,).
        """
        return super().load()

    def check_splits(self, splits: dict[str, Labelled]) -> dict[str, Labelled]:
        """Refuse splits that are missing or empty, or whose rows, labels and sizes do not fit together.

        Args:
            splits: What ``load`` gave.

        Returns:
            The same splits.

        Raises:
            ValueError: Naming the split.
        """
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
        return splits

    def split(self, key: str) -> Labelled:
        """Return a whole split, setting up first if need be: inputs in training units, and labels.

        Args:
            key: ``train``, ``val``, ``test`` or ``predict``, which is the test split.
        """
        self.setup()
        source = self.rows_source(key, shuffle=False)
        return source.rows(0, 0, 0, 0, source.num_rows())

    def rows_source(self, key: str, shuffle: bool) -> LabelledSource:
        """Return the rows of a split as the loader's source."""
        inputs, labels = self._splits["test" if key == "predict" else key]
        return LabelledSource(inputs, labels, self.location, self.scale, self._training_seed(), shuffle)
