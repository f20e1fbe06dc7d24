"""ADMM: free weights in training, tied to a nonnegative copy by a penalty and a dual."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization


class ADMM(Parameterization):
    r"""The weights are free in training; a nonnegative copy of them is what evaluation uses.

    The alternating direction method of multipliers in scaled form (Boyd et al., Foundations and Trends in Machine
    Learning 3(1), 2011, section 3.1.1) on min f(theta) subject to theta = v, v >= 0. The optimizer's steps take the
    place of the exact minimisation over theta::

        theta <- steps on f(theta) + (rho/2) |theta - v + u|^2
        v     <- max(theta + u, 0)
        u     <- u + theta - v

    At a fixed point theta = v, u <= 0, u v = 0 and grad f = -rho u: the optimality (KKT) conditions of the projected
    gradient, for every rho. On the way theta may be a little negative, so that a network in training is convex only up
    to that. The control asks whether it is enough to leave the feasible set for a while, without any lift.

    Args:
        rho: weight of the penalty, positive. It is added to the mean loss over a batch. Large values are the stiff
            limit, in which theta hardly leaves v.
        inner_steps: optimizer steps from one update of v and u to the next.

    Raises:
        ValueError: a rho that is not finite and positive, or fewer than one inner step.
    """

    flat_weights: nn.Parameter
    feasible_weights: nn.Parameter
    dual: nn.Parameter

    def __init__(self, rho: float = 1.0, inner_steps: int = 1) -> None:
        super().__init__()
        if not (rho > 0.0 and math.isfinite(rho)):
            raise ValueError(f"rho={rho}: the penalty's weight must be finite and positive.")
        if inner_steps < 1:
            raise ValueError(f"inner_steps={inner_steps}: v and u are updated after at least one optimizer step.")
        self.rho = rho
        self.inner_steps = inner_steps
        self._steps = 0

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        self.flat_weights = nn.Parameter(initial.clone())
        # Parameters without gradient, not buffers: weight averaging always covers them, and a mean of nonnegative
        # weights is nonnegative, so that averaged weights can be evaluated.
        self.feasible_weights = nn.Parameter(initial.clone(), requires_grad=False)
        self.dual = nn.Parameter(torch.zeros_like(initial), requires_grad=False)
        return ()

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """Theta in training mode, shape (d,); the nonnegative v in evaluation mode and without a batch."""
        return self.flat_weights if self.training and batch is not None else self.feasible_weights

    def _set_weights(self, flat: Tensor) -> int:
        self.flat_weights.copy_(flat)
        self.feasible_weights.copy_(flat)
        self.dual.zero_()
        self._steps = 0
        return 0

    def penalty(self) -> Tensor:
        """(rho/2) |theta - v + u|^2, a scalar: the sum over all d weights."""
        return 0.5 * self.rho * (self.flat_weights - self.feasible_weights + self.dual).square().sum()

    @torch.no_grad()
    def after_step_(self) -> None:
        """Update v and u, every ``inner_steps`` optimizer steps."""
        self._steps += 1
        if self._steps % self.inner_steps:
            return
        # By max(., 0) and min(., 0) both are exact: u <- u + theta - max(u + theta, 0) = min(u + theta, 0).
        shifted = self.flat_weights + self.dual
        self.feasible_weights.copy_(shifted.clamp(min=0.0))
        self.dual.copy_(shifted.clamp(max=0.0))

    @torch.no_grad()
    def project_(self) -> None:
        """v <- max(v, 0); theta stays where it is, else a resumed run would differ from an uninterrupted one."""
        self.feasible_weights.clamp_(min=0.0)

    @torch.no_grad()
    def is_feasible(self) -> bool:
        """Whether v, the weights of evaluation, is nonnegative."""
        return bool((self.feasible_weights >= 0.0).all())

    @torch.no_grad()
    def residual(self) -> float:
        """Largest |theta - v|: how far the weights of training are from those of evaluation."""
        return float((self.flat_weights - self.feasible_weights).abs().max())

    def get_extra_state(self) -> dict[str, Any]:
        """Optimizer steps so far, for checkpoints."""
        return {"steps": self._steps}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        self._steps = state["steps"]
