"""The contract of a data module: batches of rows, and what is known about their density."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_lift.datamodules.in_memory import InMemoryDataModule, check_counts
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.sources import Source, StreamSource, TensorSource
from lightning_lift.datamodules.units import Units

_CALIBRATION_BATCH = 4096  # rows only pass through the lift's small body, so larger batches only save time
_WINDOW_MARGIN = 0.1  # of the range of the training rows, on each side
_EVALUATION_BATCH = 1024  # evaluation keeps no graph: its batches can be larger than small training batches


class DensityDataModule(InMemoryDataModule[Tensor]):
    """Base of data modules for density estimation: float32 rows (N, D) in *training units*.

    Training units are what the model sees: ``original = location + scale * training``, or ``location + scale @
    training`` with a matrix (``units``).

    Rows come in splits. ``val`` and ``test`` are always fixed sets; ``train`` is a fixed set, or absent, and then each
    training batch is drawn fresh by :meth:`draw`. Every split, every epoch's order and every fresh batch is a function
    of ``data_seed`` (and epoch and batch index) alone, so two data modules of equal settings serve equal rows, and a
    resumed run continues with the rows it would have had. The global random state is neither read nor advanced.

    Subclass requirements:
        1. ``__init__`` takes plain arguments (numbers, strings, lists; paths as ``str``; the seed under the name
           ``data_seed``), calls ``super().__init__(dim=..., ...)``, then ``self.save_hyperparameters()``. After it
           ``dim`` is known; reading the data waits for ``setup``. Arguments are documented in the class docstring.
        2. ``load()`` gives the splits. Called once, by ``setup``.
        3. Without a ``train`` split: ``draw(num_rows, generator)``, a ``calibration`` split, and ``batches_per_epoch``.
        4. ``support`` and ``window`` through ``set_range``, and ``location`` and ``scale`` through
           ``set_standardization`` if the rows are rescaled; both at the latest in ``load``.
        5. If the density is known: ``has_log_prob = True``, ``log_prob``, and ``entropy`` with ``entropy_error``.
        It imports nothing of ``lightning_lift`` but its neighbours and the leaf ``files``.

    Args:
        dim: Number of columns D.
        name: Name of the source, as it appears in results.
        batch_size: Rows of one process's training batch.
        data_seed: Seed of everything random in the data.
        batches_per_epoch: Batches of an epoch if training batches are drawn fresh.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Attributes:
        row_marks: For ``train``, ``val`` and ``test`` of a table
            :func:`~lightning_lift.datamodules.row_marks.row_marks` of its rows, (N,) int64, from ``load``; empty where
            there is no table. A checkpoint keeps those of its training rows.
        row_numbers: For each split of a file the positions of its rows in the file, from 0, (N,) int64, from ``load``;
            empty where there is no file.

    Raises:
        ValueError: If an argument is out of range.
    """

    has_log_prob: bool = False

    def __init__(
        self,
        *,
        dim: int,
        name: str,
        batch_size: int,
        data_seed: int = 0,
        batches_per_epoch: int | None = None,
        eval_batch_size: int | None = None,
    ) -> None:
        check_counts(batch_size=batch_size, batches_per_epoch=batches_per_epoch, eval_batch_size=eval_batch_size)
        super().__init__(
            dim=dim,
            name=name,
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size or max(batch_size, _EVALUATION_BATCH),
        )
        self.batches_per_epoch = batches_per_epoch
        self._standardization: Units | None = Units(
            torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
        )
        self._range: tuple[Tensor, Tensor] | None = None
        self.row_marks: dict[str, Tensor] = {}
        self.row_numbers: dict[str, Tensor] = {}

    # What a subclass gives.

    def load(self) -> dict[str, Tensor]:
        """Make the splits, in training units.

        Returns:
            ``val`` and ``test``, optionally ``train``, ``predict`` (rows for ``predict``, else those of ``test``) and
            ``calibration`` (rows for the reference summary, else those of ``train``), each (rows, D).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Make independent training rows from a generator and nothing else.

        Args:
            num_rows: How many.
            generator: The CPU generator to use.

        Returns:
            Rows (num_rows, D), in training units.
        """
        raise NotImplementedError(f"{type(self).__name__} has a fixed training set: it cannot draw fresh rows")

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density in training units, -inf outside the support.

        Args:
            x: Points (N, D).

        Returns:
            Log-densities (N,), in the dtype of ``x``.

        Raises:
            NotImplementedError: If the density of this data is not known (``has_log_prob`` is False).
        """
        raise NotImplementedError(f"the true density of {self.name!r} is not known (has_log_prob is False)")

    @property
    def entropy(self) -> float | None:
        """Differential entropy in nats, in training units; None if unknown."""
        return None

    @property
    def entropy_error(self) -> float:
        """Bound on the numerical error of ``entropy``: 0 for a closed form, NaN if the entropy is unknown."""
        return math.nan if self.entropy is None else 0.0

    def set_range(self, support: Tensor, window: Tensor) -> None:
        """State where the density lives.

        Args:
            support: (2, D), lower and upper ends, infinite where open, in training units.
            window: (2, D), finite ends of the comparison and plot window, in training units.

        Raises:
            ValueError: If the shapes are wrong, the window is not finite or an interval is empty.
        """
        for label, value in (("support", support), ("window", window)):
            if value.shape != (2, self.dim) or not bool((value[0] < value[1]).all()):
                raise ValueError(f"{label} must be (2, {self.dim}) with lower < upper, got {value.tolist()}")
        if not bool(torch.isfinite(window).all()):
            raise ValueError(f"window must be finite, got {window.tolist()}")
        self._range = support.to(torch.float32), window.to(torch.float32)

    def set_open_range(self, train: Tensor) -> None:
        """State the whole space as the support, and the range of the training rows with a margin as the window.

        Args:
            train: Training rows (N, D), in training units.
        """
        low, high = train.amin(dim=0), train.amax(dim=0)
        margin = _WINDOW_MARGIN * torch.where(high > low, high - low, 1.0)
        infinite = torch.full((self.dim,), torch.inf)
        self.set_range(torch.stack([-infinite, infinite]), torch.stack([low - margin, high + margin]))

    def set_standardization(self, location: Tensor, scale: Tensor) -> None:
        """State how training units are made; see :class:`~lightning_lift.datamodules.units.Units`.

        Args:
            location: (D,).
            scale: (D,), positive; or (D, D), invertible.

        Raises:
            ValueError: If the shapes are wrong or a scale is not positive and finite, or not invertible.
        """
        if location.shape != (self.dim,) or scale.shape not in ((self.dim,), (self.dim, self.dim)):
            raise ValueError(
                f"location must be ({self.dim},) and scale ({self.dim},) or ({self.dim}, {self.dim}), got "
                f"{tuple(location.shape)} and {tuple(scale.shape)}"
            )
        units = Units(location.to(torch.float64), scale.to(torch.float64))
        if (scale.ndim == 1 and not bool((scale > 0).all())) or not bool(torch.isfinite(units.log_det)):
            raise ValueError(f"every scale must be positive and finite, a matrix invertible, got {scale.tolist()}")
        self._standardization = units

    def to_training_units(
        self, splits: Mapping[str, npt.NDArray[Any]], location: npt.NDArray[Any], scale: npt.NDArray[Any]
    ) -> dict[str, Tensor]:
        """State the units of a table, and the whole space as its support, and bring its splits into them.

        Args:
            splits: Rows in original units, (rows, D) each, ``train`` among them.
            location: (D,).
            scale: (D,), positive.

        Returns:
            The splits in training units, float32.
        """
        self.set_standardization(torch.from_numpy(location), torch.from_numpy(scale))
        served = {key: torch.from_numpy(((rows - location) / scale).astype(np.float32)) for key, rows in splits.items()}
        self.set_open_range(served["train"])
        return served

    # What everyone uses.

    @property
    def units(self) -> Units:
        """Training units, float64 on the CPU."""
        return Units(self.location, self.scale)

    @property
    def location(self) -> Tensor:
        """Offset (D,) between training and original units, float64 on the CPU."""
        return self._known(self._standardization, "location")[0]

    @property
    def scale(self) -> Tensor:
        """Scale between training and original units, (D,) or, where columns are mixed, (D, D), float64 on the CPU."""
        return self._known(self._standardization, "scale")[1]

    @property
    def log_scale(self) -> float:
        """log |det scale|: negative log-likelihood in original units = that in training units + ``log_scale``."""
        return float(self.units.log_det)

    @property
    def support(self) -> Tensor:
        """Support (2, D), lower and upper ends, infinite where open, in training units."""
        return self._known(self._range, "support")[0]

    @property
    def window(self) -> Tensor:
        """Finite comparison and plot window (2, D), in training units."""
        return self._known(self._range, "window")[1]

    def check_splits(self, splits: dict[str, Tensor]) -> dict[str, Tensor]:
        """Refuse splits that are missing, have a wrong shape or hold values that are not finite in float32.

        Args:
            splits: What ``load`` gave.

        Returns:
            The splits in float32.

        Raises:
            ValueError: Naming the split.
        """
        splits = {key: value.to(torch.float32) for key, value in splits.items()}
        required = {"val", "test"} | (set() if "train" in splits else {"calibration"})
        if splits.keys() == {"predict"}:
            required = set()
        if missing := required - splits.keys():
            raise ValueError(f"{type(self).__name__}.load() gave no {sorted(missing)} split(s)")
        for key, value in splits.items():
            if value.ndim != 2 or value.shape[1] != self.dim or value.shape[0] < 1:
                raise ValueError(f"{self.name}: split {key!r} must be (rows, {self.dim}), got {tuple(value.shape)}")
            if bad := int((~torch.isfinite(value)).any(dim=1).sum()):
                raise ValueError(
                    f"{self.name}: {bad} of {value.shape[0]} rows of split {key!r} are not finite in float32"
                )
        if required and "train" not in splits and self.batches_per_epoch is None:
            raise ValueError(f"{type(self).__name__} draws its training rows and must give batches_per_epoch")
        return splits

    def split(self, key: str) -> Tensor:
        """Return the rows of one split, setting up first if need be.

        Args:
            key: ``train``, ``val``, ``test``, ``predict`` or ``calibration``.

        Returns:
            Rows (N, D) float32, in training units. Not a copy.

        Raises:
            ValueError: If there is no such split (``train`` of rows drawn fresh).
        """
        self.setup()
        fallback = {"predict": "test", "calibration": "train"}.get(key, key)
        rows = self._splits.get(key, self._splits.get(fallback))
        if rows is None:
            raise ValueError(f"{self.name} has no split {key!r}, only {sorted(self._splits)}")
        return rows

    @property
    def draws_fresh_rows(self) -> bool:
        """Whether every training batch is drawn anew, so that no training row is seen twice."""
        self.setup()
        return "train" not in self._splits

    def rows_source(self, key: str, shuffle: bool) -> Source:
        """Return the rows of a split as the loader's source; fresh rows where there is no training split."""
        if key == "train" and "train" not in self._splits and self.batches_per_epoch is not None:
            return StreamSource(self.draw, self._training_seed(), self.batches_per_epoch)
        return TensorSource(self.split(key), self._training_seed(), shuffle)

    def calibration_dataloader(self) -> BatchLoader:
        """Return the rows of the lift's reference summary: the training split in order, or draws of a fixed seed.

        Not shared over processes: every process computes the same summary. No generator is shared with training.
        """
        rows = self.split("calibration")
        batch = max(self.batch_size, _CALIBRATION_BATCH)
        return BatchLoader.fixed(rows, batch, shard=False, label=f"calibration rows of {self.name}")

    def probe_batches(self, num_batches: int, seed: int = 0) -> Iterator[Tensor]:
        """Return batches distributed like training batches, without touching the training's own stream.

        Args:
            num_batches: How many.
            seed: Seed of the probe; with ``data_seed`` it decides the batches.

        Yields:
            Batches (batch_size, D) float32, the same in every process. From a fixed training set each is drawn without
            replacement within the batch.
        """
        self.setup()
        base = stream_seed(self.data_seed, "probe", seed)
        train = self._splits.get("train")
        for index in range(num_batches):
            generator = generator_at(base, index)
            if train is None:
                yield self.draw(self.batch_size, generator).to(torch.float32)
            else:
                yield train[torch.randperm(train.shape[0], generator=generator)[: self.batch_size]]

    def _known(self, pair: tuple[Tensor, Tensor] | None, what: str) -> tuple[Tensor, Tensor]:
        if pair is None:
            raise RuntimeError(f"{what} of {self.name!r} is computed from the data: call setup() first")
        return pair
