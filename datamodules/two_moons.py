"""Two interleaved half circles with noise: two columns, two classes."""

import torch
from sklearn.datasets import make_moons

from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.labelled import Labelled, LabelledDataModule


class TwoMoonsDataModule(LabelledDataModule):
    """Two moons (scikit-learn's ``make_moons``); each split from a random state of its own.

    Args:
        batch_size: Rows of one process's training batch; None for the whole training set (plain gradient descent).
        num_train: Rows of the training set.
        num_val: Rows of the validation set.
        num_test: Rows of the test set.
        noise: Standard deviation of the Gaussian noise on both columns.
        data_seed: Seed of everything random in the data.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        num_train: int = 1000,
        num_val: int = 1000,
        num_test: int = 1000,
        noise: float = 0.1,
        data_seed: int = 0,
    ) -> None:
        check_counts(num_train=num_train, num_val=num_val, num_test=num_test)
        if not noise >= 0.0:
            raise ValueError(f"noise must be at least 0, got {noise}")
        super().__init__(
            dim=2, num_classes=2, name="two moons", batch_size=batch_size or num_train, data_seed=data_seed
        )
        self.noise = noise
        self._counts = {"train": num_train, "val": num_val, "test": num_test}
        self.save_hyperparameters()

    def load(self) -> dict[str, Labelled]:
        """Draw the fixed sets.

        Returns:
            The splits: rows (rows, 2) float32 and labels.
        """
        splits: dict[str, Labelled] = {}
        for index, (key, count) in enumerate(self._counts.items()):
            # distinct for every seed and split; the training set of seed s is make_moons(random_state=3 * s)
            rows, labels = make_moons(count, noise=self.noise, random_state=(3 * self.data_seed + index) % 2**32)
            splits[key] = torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)
        return splits
