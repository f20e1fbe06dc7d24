"""Projected gradient: the weights themselves are trained and put back into the feasible set after each step."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization


class ProjectedGradient(Parameterization):
    """Theta is stored as it is; after each optimizer step theta <- max(theta, floor).

    The module that owns it calls ``project_`` in a post-step hook of the optimizer, so that checkpoints, averages and
    accumulated gradients only ever see feasible weights.

    Args:
        floor: smallest weight, nonnegative; 0 is the plain projection onto the nonnegative orthant.

    Raises:
        ValueError: a negative or non-finite floor.
    """

    flat_weights: nn.Parameter

    def __init__(self, floor: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= floor < float("inf"):
            raise ValueError(f"floor={floor}: the projection needs a finite floor of at least 0.")
        self.floor = floor

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        self.flat_weights = nn.Parameter(initial.clamp(min=self.floor))
        return ()

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """Theta itself, shape (d,): there is no readout."""
        return self.flat_weights

    def _set_weights(self, flat: Tensor) -> int:
        self.flat_weights.copy_(flat.clamp(min=self.floor))
        return int((flat < self.floor).sum())

    @torch.no_grad()
    def project_(self) -> None:
        """theta <- argmin |theta' - theta| subject to theta' >= floor, which is max(theta, floor)."""
        self.flat_weights.clamp_(min=self.floor)

    @torch.no_grad()
    def is_feasible(self) -> bool:
        """Whether every weight is at least the floor."""
        return bool((self.flat_weights >= self.floor).all())
