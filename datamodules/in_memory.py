"""What data modules of rows in memory share: splits made once, and the loaders over them."""

import copy
import inspect
import itertools
from abc import abstractmethod
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn

from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import check_data_seed, stream_seed
from lightning_lift.datamodules.sources import Source
from lightning_lift.trusted import TrustedLoading

Split = TypeVar("Split")


class InMemoryDataModule(TrustedLoading, LightningDataModule, Generic[Split]):
    """Base of :class:`DensityDataModule` and :class:`LabelledDataModule`: a batch is indexed out of rows in memory.

    Every epoch's order and every fresh batch is a function of ``data_seed`` (and epoch and batch index) alone, and a
    resumed run goes on with the rows it would have had. The global random state is neither read nor advanced.

    Subclass requirements: ``load()``, ``check_splits(splits)`` and ``rows_source(key, shuffle)``.

    Args:
        dim: Numbers in a row.
        name: Name of the source, as it appears in results.
        batch_size: Rows of one process's training batch.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation.

    Raises:
        ValueError: If an argument is out of range.
    """

    context_shape: tuple[int, ...] | None = None
    """Shape of a row's context; None for rows without. The command line hands it to a model that asks for it."""

    columns: Any = None
    """Names of the columns of x, a list where they have names; handed on in the same way."""

    def __init__(self, *, dim: int, name: str, batch_size: int, data_seed: int, eval_batch_size: int) -> None:
        super().__init__()
        self._passed: dict[str, Any] = {}  # the arguments of the constructors below, as they were called
        frame = inspect.currentframe()
        while (frame := frame.f_back if frame else None) and frame.f_locals.get("self") is self:
            plain = {k: v for k, v in frame.f_locals.items() if v is None or isinstance(v, int | float | str)}
            self._passed = plain | self._passed
        check_data_seed(data_seed)
        check_counts(dim=dim, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.dim = dim
        self.name: str = name
        self.data_seed = data_seed
        self.eval_batch_size = eval_batch_size
        self._batch_size = batch_size
        self._splits: dict[str, Split] = {}

    def save_hyperparameters(self, *args: Any, frame: FrameType | None = None, **kwargs: Any) -> None:
        """Do what Lightning's method does, and keep the defaults of the arguments behind a constructor's ``**kwargs``.

        Args:
            *args: See Lightning; where names are given, nothing else is kept.
            frame: See Lightning.
            **kwargs: See Lightning.
        """
        current = inspect.currentframe()
        super().save_hyperparameters(*args, frame=frame or (current.f_back if current else None), **kwargs)
        constructors = [vars(cls)["__init__"] for cls in type(self).__mro__ if "__init__" in vars(cls)]
        for constructor, inherited in itertools.pairwise([] if args else constructors):
            if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values()):
                break  # it hands nothing on
            for name, parameter in inspect.signature(inherited).parameters.items():
                # a constructor that passes a value of its own takes no such argument
                own = self._passed.get(name, parameter.default) is not parameter.default
                if parameter.default is not parameter.empty and name not in (kwargs.get("ignore") or ()) and not own:
                    self.hparams.setdefault(name, parameter.default)
        self._hparams_initial = copy.deepcopy(self._hparams)

    @property
    def batch_size(self) -> int:
        """Rows of one process's training batch; once the rows are known it cannot be set above their number."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        check_counts(batch_size=value)
        rows = self.rows_source("train", True).num_rows() if "train" in self._splits else None
        if rows is not None and value > rows:
            rank_zero_warn(f"{self.name}: batch_size {value} becomes {rows}: the training split has no more rows.")
        self._batch_size = value if rows is None else min(value, rows)

    def load(self) -> dict[str, Split]:
        """Make the splits by name."""
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    @abstractmethod
    def check_splits(self, splits: dict[str, Split]) -> dict[str, Split]:
        """Refuse splits that cannot be used; return those to keep."""

    @abstractmethod
    def rows_source(self, key: str, shuffle: bool) -> Source:
        """Return what serves the rows of a split, shuffled anew each epoch or in order."""

    def setup(self, stage: str | None = None) -> None:
        """Make the splits, once; later calls change nothing.

        Args:
            stage: Lightning's stage; all the splits are made whatever it is.

        Raises:
            ValueError: If a split is missing or empty, or its rows cannot be used.
        """
        if self._splits:
            return
        # Under the inference mode of a first `test`, the kept tensors would be refused by a later `fit`.
        with torch.inference_mode(False):
            self._splits = self.check_splits(self.load())

    def train_dataloader(self) -> BatchLoader:
        """Return the training loader: an epoch's shuffled rows without a last incomplete batch, or fresh rows.

        Raises:
            ValueError: If the rows do not suffice for one batch in each process.
        """
        self.setup()
        if "batch_size" in self.hparams:  # a batch-size finder sets, and reads, a size there that may have been lowered
            self.hparams["batch_size"] = self.batch_size
        loader = BatchLoader(
            self.rows_source("train", shuffle=True),
            self.batch_size,
            drop_last=True,
            same_every_epoch=getattr(self.trainer, "overfit_batches", 0) > 0,
            label=f"training split of {self.name}",
        )
        length = len(loader)  # raises here if there are too few rows
        limit: Any = getattr(self.trainer, "limit_train_batches", None)
        if limit is not None:
            loader.limit = int(limit * length) if isinstance(limit, float) else limit
        if self.trainer is not None:
            loader.fit_loop = self.trainer.fit_loop
        return loader

    def val_dataloader(self) -> BatchLoader:
        """Return the validation rows in order, each once."""
        return self._in_order("val")

    def test_dataloader(self) -> BatchLoader:
        """Return the test rows in order, each once."""
        return self._in_order("test")

    def predict_dataloader(self) -> BatchLoader:
        """Return the rows to predict in order, each once: the test split unless the data module has others."""
        return self._in_order("predict")

    def _in_order(self, key: str) -> BatchLoader:
        self.setup()
        return BatchLoader(
            self.rows_source(key, shuffle=False), self.eval_batch_size, label=f"{key} split of {self.name}"
        )

    def _training_seed(self) -> int:
        return stream_seed(self.data_seed, "train")


def check_counts(**counts: int | None) -> None:
    """Refuse counts below 1; None passes.

    Args:
        **counts: Values by the names of their arguments.

    Raises:
        ValueError: Naming the argument and its value.
    """
    for label, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{label} must be an integer of at least 1, got {value!r}")


def check_fractions(**fractions: float) -> None:
    """Refuse fractions of held-out rows that leave a split empty.

    Args:
        **fractions: Values by the names of their arguments.

    Raises:
        ValueError: Naming the arguments and their values.
    """
    for label, fraction in fractions.items():
        if not 0 < fraction < 1:
            raise ValueError(f"{label} must be between 0 and 1, exclusive, got {fraction}")
    if sum(fractions.values()) >= 1:
        named = " + ".join(f"{label} {fraction}" for label, fraction in fractions.items())
        raise ValueError(f"{named} leaves no training rows")
