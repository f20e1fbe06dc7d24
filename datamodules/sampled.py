"""Targets that can be sampled: fresh rows in each batch, or a fixed training set."""

import torch
from torch import Tensor

from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.seeding import Purpose, generator_at, stream_seed


class SampledDataModule(DensityDataModule):
    """Base of data modules whose density is known and can be sampled.

    Subclass requirements:
        ``draw(num_rows, generator)``, exact and from the generator alone; ``log_prob``; ``entropy`` (and
        ``entropy_error`` if numerical); ``set_range`` in ``__init__``; ``save_hyperparameters()`` at its end.

    Args:
        dim: Number of columns D.
        name: Name of the source, as it appears in results.
        batch_size: Rows of one process's training batch.
        batches_per_epoch: Batches of an epoch if training rows are drawn fresh.
        num_train: Rows of a fixed training set. None for fresh rows in each batch.
        num_val: Rows of the validation set.
        num_test: Rows of the test set.
        num_calibration: Draws for the lift's reference summary if training rows are drawn fresh.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Raises:
        ValueError: If an argument is out of range.
    """

    has_log_prob = True

    def __init__(
        self,
        *,
        dim: int,
        name: str,
        batch_size: int = 256,
        batches_per_epoch: int = 100,
        num_train: int | None = None,
        num_val: int = 10000,
        num_test: int = 10000,
        num_calibration: int = 16384,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        super().__init__(
            dim=dim,
            name=name,
            batch_size=batch_size,
            data_seed=data_seed,
            batches_per_epoch=batches_per_epoch,
            eval_batch_size=eval_batch_size,
        )
        check_counts(num_train=num_train, num_val=num_val, num_test=num_test, num_calibration=num_calibration)
        if num_train is not None and num_train < batch_size:
            raise ValueError(
                f"num_train {num_train} is less than batch_size {batch_size}: lower batch_size, raise num_train, or "
                "leave num_train out for fresh rows in each batch"
            )
        self._num_rows: dict[Purpose, int] = {"val": num_val, "test": num_test}
        if num_train is None:
            self._num_rows["calibration"] = num_calibration
        else:
            self._num_rows["train"] = num_train

    def load(self) -> dict[str, Tensor]:
        """Draw the fixed sets, each from a generator of its own.

        Returns:
            The splits, each (rows, D).
        """
        return {purpose: self.draw(count, self._split_generator(purpose)) for purpose, count in self._num_rows.items()}

    def _split_generator(self, purpose: Purpose) -> torch.Generator:
        # a label of its own: the training set must not be the first fresh batch of the training stream
        return generator_at(stream_seed(self.data_seed, "split", _SPLITS.index(purpose)), 0)


_SPLITS: tuple[Purpose, ...] = ("train", "val", "test", "calibration")
