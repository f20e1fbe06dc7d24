"""What the targets of the 1-D gallery share: a standard variable, moved and scaled."""

import math
from typing import Any, ClassVar

import torch
from scipy import integrate
from torch import Tensor

from lightning_lift.datamodules.sampled import SampledDataModule


class OneDimensionalDataModule(SampledDataModule):
    """Base of the 1-D gallery: X = loc + scale * Z with a standard variable Z of known density.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Subclass requirements:
        ``source``, ``standard_support`` and ``standard_window`` (class attributes); ``standard_log_prob(z)``, which is
        asked only for finite points of the closed support; ``standard_draw(num_rows, generator)`` in float64;
        ``standard_entropy`` if there is a closed form (otherwise it is integrated numerically, error stated).

    Args:
        loc: Location: the standard variable is scaled, then moved by it.
        scale: Scale, positive.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    source: ClassVar[str]
    standard_support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    standard_window: ClassVar[tuple[float, float]]

    def __init__(
        self,
        loc: float = 0.0,
        scale: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dim=1,
            name=self.source,
            **kwargs,
        )
        if not math.isfinite(loc):
            raise ValueError(f"loc must be finite, got {loc}")
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be positive and finite, got {scale}")
        # Rounded as the float32 rows are, so that a row at the end of the support is not found outside it.
        self._loc, self._unit = (float(value) for value in torch.tensor([loc, scale], dtype=torch.float32))
        support, window = torch.tensor([self.standard_support, self.standard_window], dtype=torch.float64)
        self.set_range((self._loc + self._unit * support)[:, None], (self._loc + self._unit * window)[:, None])
        self._quadrature: tuple[float, float] | None = None
        self.save_hyperparameters()

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return the log-density of the standard variable.

        Args:
            z: Finite points (N,) of the closed standard support.

        Returns:
            Log-densities (N,).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement standard_log_prob()")

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw the standard variable exactly.

        Args:
            num_rows: How many.
            generator: The only source of randomness.

        Returns:
            Samples (num_rows,), float64.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement standard_draw()")

    def standard_entropy(self) -> float | None:
        """Return the entropy of the standard variable in nats if it has a closed form, else None."""
        return None

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows (num_rows, 1) float32; see the base class."""
        return (self._loc + self._unit * self.standard_draw(num_rows, generator)).to(torch.float32)[:, None]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density of points (N, 1), in their dtype: (N,), -inf outside the support."""
        z = (x[:, 0] - self._loc) / self._unit
        low, high = self.standard_support
        largest = torch.finfo(z.dtype).max
        # The formula sees finite points of the closed support only: elsewhere it may be NaN.
        inside = z.clamp(max(low, -largest), min(high, largest))
        value = self.standard_log_prob(inside) - math.log(self._unit)
        outside = (z < low) | (z > high) | torch.isinf(z)
        result: Tensor = value.masked_fill(outside, -math.inf)
        return result

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        closed = self.standard_entropy()
        return (self._integrated()[0] if closed is None else closed) + math.log(self._unit)

    @property
    def entropy_error(self) -> float:
        """Error bound of ``entropy``: 0 for a closed form, else that of the quadrature."""
        return self._integrated()[1] if self.standard_entropy() is None else 0.0

    def _integrated(self) -> tuple[float, float]:
        """Integrate -p log p over the support, in float64: value and error estimate of the adaptive quadrature."""
        if self._quadrature is None:

            def integrand(point: float) -> float:
                log_density = float(self.standard_log_prob(torch.tensor([point], dtype=torch.float64)))
                return -log_density * math.exp(log_density) if log_density > -700 else 0.0

            low, high = self.standard_support
            left, right = self.standard_window  # the mass is inside: a whole-line rule could step over it
            pieces = [(low, left), (left, right), (right, high)]
            parts = [
                integrate.quad(integrand, a, b, epsabs=1e-12, epsrel=1e-12, limit=400)[:2] for a, b in pieces if a < b
            ]
            self._quadrature = sum(part[0] for part in parts), sum(part[1] for part in parts)
        return self._quadrature
