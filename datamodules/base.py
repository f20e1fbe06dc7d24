"""The contract of a data module for density estimation: rows, and what is known about their density."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_lift.datamodules.rows import RowsDataModule

_WINDOW_MARGIN = 0.1  # of the range of the training rows, on each side


class DensityDataModule(RowsDataModule[Tensor]):
    """Base of data modules for density estimation: rows (N, D), whose density, support and window may be known.

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
    """

    has_log_prob: bool = False
    _range: tuple[Tensor, Tensor] | None = None

    # What a subclass gives.

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

    @property
    def support(self) -> Tensor:
        """Support (2, D), lower and upper ends, infinite where open, in training units."""
        return self._known_range("support")[0]

    @property
    def window(self) -> Tensor:
        """Finite comparison and plot window (2, D), in training units."""
        return self._known_range("window")[1]

    def _known_range(self, what: str) -> tuple[Tensor, Tensor]:
        if self._range is None:
            raise RuntimeError(f"{what} of {self.name!r} is computed from the data: call setup() first")
        return self._range
