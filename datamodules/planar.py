"""What the targets in the plane share: float64 formulas behind float32 rows, and an entropy that is integrated once."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lightning_lift.datamodules.sampled import SampledDataModule

_T = TypeVar("_T")
_FARTHEST = 1e150
_NARROWEST = 5000.0  # widths of the noise across a figure: beyond it, nodes and grids take gigabytes


class Integral(NamedTuple):
    """A number that was integrated numerically.

    Attributes:
        value: The integral.
        error: Bound on its error, as far as a comparison of two rules can tell.
    """

    value: float
    error: float


class PlanarDataModule(SampledDataModule):
    """Base of the targets in the plane. Training units are original units, those of the literature's figures.

    Subclass requirements:
        ``plane_draw(num_rows, generator)`` and ``plane_log_prob(x)``, both in float64; ``plane_entropy()``, called
        once, when the entropy is first asked for; in ``__init__``, after ``super().__init__``, ``set_window`` or
        ``set_range``, and ``save_hyperparameters()`` at the end.

    Args:
        name: Name of the source, as it appears in results.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        *,
        name: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim=2,
            name=name,
            **kwargs,
        )
        self._integral: Integral | None = None

    def plane_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw points exactly, up to float64 rounding.

        Args:
            num_rows: How many.
            generator: The only source of randomness.

        Returns:
            Points (num_rows, 2), float64.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement plane_draw()")

    def plane_log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of points.

        Args:
            x: Finite points (N, 2), float64.

        Returns:
            Log-densities (N,), float64.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement plane_log_prob()")

    def plane_entropy(self) -> Integral:
        """Integrate -p log p, in nats."""
        raise NotImplementedError(f"{type(self).__name__} must implement plane_entropy()")

    def set_window(self, low: tuple[float, float], high: tuple[float, float]) -> None:
        """State the plot window of a density on the whole plane.

        Args:
            low: Lower ends.
            high: Upper ends.
        """
        support = torch.tensor([[-math.inf] * 2, [math.inf] * 2])
        self.set_range(support, torch.tensor([low, high], dtype=torch.float64))

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows (num_rows, 2) float32; see the base class."""
        return self.plane_draw(num_rows, generator).to(torch.float32)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density of points (N, 2), computed in float64 and returned in their dtype: (N,).

        It is -inf at infinity and where it is below every number of that dtype, NaN for NaN.
        """
        points = x.double()
        infinite, missing = torch.isinf(points).any(dim=1), torch.isnan(points).any(dim=1)
        # farther out not even a square is a float64 number
        inner = torch.where((infinite | missing)[:, None], 0.0, points).clamp(-_FARTHEST, _FARTHEST)
        value = self.plane_log_prob(inner).masked_fill(infinite, -math.inf).masked_fill(missing, math.nan)
        return value.to(x.dtype)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats, by numerical integration."""
        return self._integrated().value

    @property
    def entropy_error(self) -> float:
        """Error bound of ``entropy``."""
        return self._integrated().error

    def _integrated(self) -> Integral:
        if self._integral is None:
            self._integral = self.plane_entropy()
        return self._integral


def check_positive(**values: float) -> None:
    """Refuse values that are not positive and finite.

    Args:
        **values: Values by the names of their arguments.

    Raises:
        ValueError: Naming the argument and its value.
    """
    for label, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{label} must be positive and finite, got {value}")


def check_width(extent: float, **values: float) -> None:
    """Refuse noise that is not positive and finite, or too narrow for quadrature over a figure of some extent.

    Args:
        extent: Length of a side of the figure.
        **values: Standard deviations by the names of their arguments.

    Raises:
        ValueError: Naming the argument, its value and the least value.
    """
    check_positive(**values)
    for label, value in values.items():
        if value < extent / _NARROWEST:
            raise ValueError(
                f"{label} {value} is too narrow to integrate over a figure {extent:.3g} wide: give at least "
                f"{extent / _NARROWEST:.3g}"
            )


def check_choice(choices: Mapping[str, _T], **values: str) -> _T:
    """Look one value up among its choices.

    Args:
        choices: What each choice stands for.
        **values: One value by the name of its argument.

    Returns:
        What it stands for.

    Raises:
        ValueError: Naming the argument, its value and the choices.
    """
    ((label, value),) = values.items()
    if value not in choices:
        raise ValueError(f"{label} must be one of {sorted(choices)}, got {value!r}")
    return choices[value]
