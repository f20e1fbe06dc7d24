"""Activation normalisation: one learnable scale and shift a feature, started from data."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Normalization(NamedTuple):
    """y = exp(log_scale) * (x - center) + shift, feature by feature.

    Attributes:
        center: shape (F,), in the units of x.
        log_scale: shape (F,); its sum is log |d y / d x|.
        shift: shape (F,), in the units of y.
    """

    center: Tensor
    log_scale: Tensor
    shift: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """The y of x: shape (..., F) to (..., F)."""
        return self.log_scale.exp() * (x - self.center) + self.shift

    def invert(self, y: Tensor) -> Tensor:
        """The x of y: shape (..., F) to (..., F)."""
        return (y - self.shift) * (-self.log_scale).exp() + self.center


class ActNorm(nn.Module):
    """y = exp(log_scale) * (x - center) + shift, feature by feature (Kingma & Dhariwal, Glow, 2018, section 3.1).

    Scale and shift are learned, and both are numbers of order one whatever the units of x: an optimizer's step means
    the same for data of 1e-6 and of 1e6. The centre is that of the data it was started from and stays. The scale is
    positive, so a convex function of the features stays convex behind it. ``initialize_`` starts it from data, once;
    whether it has done so is a buffer and travels in the state dictionary, because a layer that started again from the
    first batch after a reload would be another function. State dictionaries of version 0.1, with ``bias`` before the
    scale, are converted when they are loaded.

    Args:
        num_features: number of features F.

    Raises:
        ValueError: fewer than one feature.

    Shapes: (..., F) to (..., F).
    """

    initialized: Tensor
    center: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features={num_features}: an ActNorm needs at least one feature.")
        self.num_features = num_features
        self.log_scale = nn.Parameter(torch.zeros(num_features))
        self.shift = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("center", torch.zeros(num_features))
        self.register_buffer("initialized", torch.tensor(False))

    @property
    def normalization(self) -> Normalization:
        """The map under the present scale and shift."""
        return Normalization(self.center, self.log_scale, self.shift)

    @torch.no_grad()
    def initialize_(self, rows: Tensor) -> None:
        """Set centre and scale so that these rows come out with mean 0 and variance 1; a no-op after the first time.

        A feature that is constant over the rows is centred and keeps the scale 1.

        Args:
            rows: shape (N, F).

        Raises:
            ValueError: the wrong shape, no rows, or rows that are not finite.
        """
        if self.initialized:
            return
        if rows.ndim != 2 or rows.shape[1] != self.num_features or not len(rows):
            raise ValueError(
                f"rows of shape {tuple(rows.shape)} cannot start an ActNorm: expected (N, {self.num_features}), N >= 1."
            )
        if not torch.isfinite(rows).all():
            raise ValueError("rows that are not finite cannot start an ActNorm; remove them from the first batch.")
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        constant = std <= 8.0 * torch.finfo(std.dtype).eps * mean.abs()  # all that is left there is round-off
        self.log_scale.copy_(-torch.where(constant, torch.ones_like(std), std).log())
        self.center.copy_(mean)
        self.initialized.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """exp(log_scale) * (x - center) + shift: shape (..., F) to (..., F)."""
        return self.normalization.apply(x)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        upgrade_actnorm_(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def upgrade_actnorm_(state: dict[str, Any], prefix: str) -> bool:
    """Convert the entries of an ActNorm of version 0.1, exp(log_scale) * (x + bias); others stay as they are.

    That of an ICNN's layer had the layer's own bias before its scale, too; it now stands behind it.

    Args:
        state: a state dictionary, changed in place.
        prefix: of the ActNorm's entries in it.

    Returns:
        Whether there were such entries.
    """
    before, log_scale = state.get(f"{prefix}bias"), state.get(f"{prefix}log_scale")
    if not isinstance(before, Tensor) or not isinstance(log_scale, Tensor) or before.shape != log_scale.shape:
        return False  # what is damaged is for the loader to name
    del state[f"{prefix}bias"]
    own = state.get(prefix.removesuffix("actnorm.") + "bias", torch.zeros_like(before))
    state[f"{prefix}shift"] = log_scale.exp() * (before + own) - own
    state[f"{prefix}center"] = torch.zeros_like(before)
    return True
