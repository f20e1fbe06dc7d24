"""What data modules of rows share that lift, tasks and comparisons rely on: units, fresh rows, calibration, probes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import UNKNOWN, Rows, num_rows, parts_of, take_rows
from lightning_lift.datamodules.in_memory import InMemoryDataModule, check_counts
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.sources import Source, StreamSource, TensorSource
from lightning_lift.datamodules.units import Units

_CALIBRATION_BATCH = 4096  # rows only pass through the lift's small body, so larger batches only save time
_EVALUATION_BATCH = 1024  # evaluation keeps no graph: its batches can be larger than small training batches


class RowsDataModule(InMemoryDataModule[Rows]):
    """Base of :class:`DensityDataModule` and :class:`PartsDataModule`: float32 rows in *training units*.

    Training units are what the model sees: ``original = location + scale * training``, or ``location + scale @
    training`` with a matrix (``units``).

    Rows come in splits. ``val`` and ``test`` are always fixed sets; ``train`` is a fixed set, or absent, and then each
    training batch is drawn fresh by :meth:`draw`. Every split, every epoch's order and every fresh batch is a function
    of ``data_seed`` (and epoch and batch index) alone, so two data modules of equal settings serve equal rows, and a
    resumed run continues with the rows it would have had. The global random state is neither read nor advanced.

    Args:
        dim: Number of columns D that a network is convex in.
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
        self.row_marks: dict[str, Tensor] = {}
        self.row_numbers: dict[str, Tensor] = {}

    # What a subclass gives.

    def load(self) -> dict[str, Rows]:
        """Make the splits, in training units.

        Returns:
            ``val`` and ``test``, optionally ``train``, ``predict`` (rows for ``predict``, else those of ``test``) and
            ``calibration`` (rows for the reference summary, else those of ``train``).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    def draw(self, num_rows: int, generator: torch.Generator) -> Rows:
        """Make independent training rows from a generator and nothing else.

        Args:
            num_rows: How many.
            generator: The CPU generator to use.

        Returns:
            That many rows, in training units.
        """
        raise NotImplementedError(f"{type(self).__name__} has a fixed training set: it cannot draw fresh rows")

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

    # What everyone uses.

    @property
    def units(self) -> Units:
        """Training units, float64 on the CPU."""
        if self._standardization is None:
            raise RuntimeError(f"units of {self.name!r} are computed from the data: call setup() first")
        return self._standardization

    @property
    def location(self) -> Tensor:
        """Offset (D,) between training and original units, float64 on the CPU."""
        return self.units.location

    @property
    def scale(self) -> Tensor:
        """Scale between training and original units, (D,) or, where columns are mixed, (D, D), float64 on the CPU."""
        return self.units.scale

    @property
    def log_scale(self) -> float:
        """log |det scale|: negative log-likelihood in original units = that in training units + ``log_scale``."""
        return float(self.units.log_det)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row's entry in each part that a split has."""
        return {"x": (self.dim,)}

    def check_splits(self, splits: dict[str, Rows]) -> dict[str, Rows]:
        """Refuse splits that are missing, have a wrong shape or hold values that are not finite in float32.

        Args:
            splits: What ``load`` gave.

        Returns:
            The splits in float32.

        Raises:
            ValueError: Naming the split and the part.
        """
        required = {"val", "test"} | (set() if "train" in splits else {"calibration"})
        if splits.keys() == {"predict"}:
            required = set()
        if missing := required - splits.keys():
            raise ValueError(f"{type(self).__name__}.load() gave no {sorted(missing)} split(s)")
        splits = {key: take_rows(rows, slice(None)) for key, rows in splits.items()}
        for key, rows in splits.items():
            _check_parts(parts_of(rows), self.shapes, key, self.name)
        if required and "train" not in splits and self.batches_per_epoch is None:
            raise ValueError(f"{type(self).__name__} draws its training rows and must give batches_per_epoch")
        return splits

    def split(self, key: str) -> Rows:
        """Return the rows of one split, setting up first if need be.

        Args:
            key: ``train``, ``val``, ``test``, ``predict`` or ``calibration``.

        Returns:
            Its rows, float32, in training units. Not a copy.

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
        rows = self.rows_source("calibration", shuffle=False)
        batch = max(self.batch_size, _CALIBRATION_BATCH)
        return BatchLoader(rows, batch, shard=False, label=f"calibration rows of {self.name}")

    def probe_batches(self, num_batches: int, seed: int = 0) -> Iterator[Rows]:
        """Return batches distributed like training batches, without touching the training's own stream.

        Args:
            num_batches: How many.
            seed: Seed of the probe; with ``data_seed`` it decides the batches.

        Yields:
            Batches of ``batch_size`` rows, float32, the same in every process. From a fixed training set each is drawn
            without replacement within the batch.
        """
        self.setup()
        base = stream_seed(self.data_seed, "probe", seed)
        train = self._splits.get("train")
        for index in range(num_batches):
            generator = generator_at(base, index)
            if train is None:
                yield take_rows(self.draw(self.batch_size, generator), slice(None))
            else:
                yield take_rows(train, torch.randperm(num_rows(train), generator=generator)[: self.batch_size])


def _check_parts(parts: dict[str, Tensor], shapes: dict[str, tuple[int, ...]], key: str, source: str) -> None:
    count = len(parts["x"])
    for name in shapes | parts:
        what = f"split {key!r}" if list(shapes) == ["x"] == list(parts) else f"{name} of split {key!r}"
        if name not in parts and key == "predict" and name in UNKNOWN:
            continue
        if name not in parts or name not in shapes:
            raise ValueError(f"{source}: {what} is {'missing' if name in shapes else 'not stated by shapes'}")
        part = parts[name]
        if part.shape != (count, *shapes[name]) or count < 1:
            expected = str(("rows", *shapes[name])).replace("'", "")
            raise ValueError(f"{source}: {what} must be {expected}, got {tuple(part.shape)}")
        if bad := int((~torch.isfinite(part)).reshape(count, -1).any(dim=1).sum()):
            raise ValueError(f"{source}: {bad} of {count} rows of {what} are not finite in float32")
