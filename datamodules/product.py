"""Independent columns of one known distribution."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightning_lift.datamodules.beta import BetaDataModule
from lightning_lift.datamodules.gamma import GammaDataModule
from lightning_lift.datamodules.gumbel import GumbelDataModule
from lightning_lift.datamodules.half_normal import HalfNormalDataModule
from lightning_lift.datamodules.laplace import LaplaceDataModule
from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.planar import check_choice
from lightning_lift.datamodules.sampled import SampledDataModule
from lightning_lift.datamodules.skew_normal import SkewNormalDataModule
from lightning_lift.datamodules.uniform import open_uniform


class _Logistic(OneDimensionalDataModule):
    """Logistic distribution, log p(z) = -|z| - 2 log(1 + exp(-|z|)), on the whole line."""

    source: ClassVar[str] = "logistic"
    standard_window: ClassVar[tuple[float, float]] = (-15.0, 15.0)

    def standard_log_prob(self, z: Tensor) -> Tensor:
        """Return -|z| - 2 log(1 + exp(-|z|))."""
        return -z.abs() - 2.0 * torch.log1p(torch.exp(-z.abs()))

    def standard_draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw the log-odds of a uniform."""
        return torch.logit(open_uniform((num_rows,), generator))

    def standard_entropy(self) -> float:
        """Return 2."""
        return 2.0


_TARGETS: dict[str, type[OneDimensionalDataModule]] = {
    "gumbel": GumbelDataModule,
    "laplace": LaplaceDataModule,
    "logistic": _Logistic,
    "gamma": GammaDataModule,
    "beta": BetaDataModule,
    "half_normal": HalfNormalDataModule,
    "skew_normal": SkewNormalDataModule,
}


class ProductDataModule(SampledDataModule):
    """Independent columns, each a standard variable of the 1-D gallery, or logistic.

    The log-density is the sum over the columns; the entropy is that of one column times ``dim``. All targets are
    log-concave.

    Fresh samples in each batch, or a fixed training set. Training units are original units.

    Args:
        target: Distribution of each column: Gumbel(0, 1), Laplace(0, 1), logistic(0, 1), Gamma(2, 1), Beta(2, 5),
            half-normal(1) or skew-normal(0, 1, 4).
        dim: Number of columns.
        **kwargs: Arguments of :class:`SampledDataModule`: ``batch_size``, ``batches_per_epoch``, ``num_train``,
            ``num_val``, ``num_test``, ``num_calibration``, ``data_seed``, ``eval_batch_size``.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        target: Literal["gumbel", "laplace", "logistic", "gamma", "beta", "half_normal", "skew_normal"] = "gumbel",
        dim: int = 8,
        **kwargs: Any,
    ) -> None:
        column = check_choice(_TARGETS, target=target)()
        super().__init__(
            dim=dim,
            name=f"product of {dim} {target}",
            **kwargs,
        )
        self._column = column
        self.set_range(column.support.expand(2, dim), column.window.expand(2, dim))
        self.save_hyperparameters()

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows (num_rows, D) float32; see the base class."""
        return self._column.draw(num_rows * self.dim, generator).view(num_rows, self.dim)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density of points (N, D), computed in float64 and returned in their dtype: (N,)."""
        total = self._column.log_prob(x.double().reshape(-1, 1)).view(-1, self.dim).sum(dim=1)
        result: Tensor = total.to(x.dtype)
        return result

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        return self.dim * self._column.entropy

    @property
    def entropy_error(self) -> float:
        """Error bound of ``entropy``: 0 where one column has a closed form."""
        return self.dim * self._column.entropy_error
