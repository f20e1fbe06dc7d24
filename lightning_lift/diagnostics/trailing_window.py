"""The cross-covariance over the last T training steps, in place of a probe at a fixed iterate.

The rows are those of training itself: at each step the latent that the batch gave and the gradient that it met. What
differs from the probe, and biases the reading by terms that vanish with the learning rate:

- the iterate drifts, and latent and gradient drift with it. A straight line in time is taken off each column
  (``detrend``); what is curved stays, and reads as covariance.
- each step's gradient moves the next latents, so that rows depend on their neighbours. Errors are by the jackknife over
  blocks of neighbouring steps. The permutation null takes rows as exchangeable: beside a latent that wanders, as a
  direct one does, its p-value is too small, and only the probe says that such a latent does not move with the batch.
- on several processes a lift's latent is that of the joined batch, and the gradient that of the process's own rows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_lift.diagnostics.cross_covariance import CrossCovarianceResult, read_cross_covariance
from lightning_lift.diagnostics.probe import Probed, probe_row


@dataclass
class TrailingWindow:
    """The rows of the training steps since it was last cleared; plain tensors on the CPU.

    Memory: two or three numbers a weight and step.

    Attributes:
        steps: the optimizer steps made before each row.
        latents: rows of shape (d,).
        gradients: d loss / d latent, rows of shape (d,).
        slack_gradients: d loss / d slack per unit of latent, rows of shape (d,); empty without a slack.
    """

    steps: list[int] = field(default_factory=list)
    latents: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    slack_gradients: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def record(self, module: Probed, batch: Any, step: int) -> None:
        """Add the row of a training step, before it is made; one forward and backward pass.

        The global random state is put back, so that the step then draws the same numbers: the row is the step's own.

        Args:
            module: see ``probe.collect``.
            batch: the training batch, shape (N, D) or with parts.
            step: optimizer steps made so far.
        """
        latent, gradient, slack_gradient = probe_row(module, batch)
        self.steps.append(step)
        self.latents.append(latent)
        self.gradients.append(gradient)
        if slack_gradient is not None:
            self.slack_gradients.append(slack_gradient)

    def clear(self) -> None:
        """Forget all rows."""
        for rows in (self.steps, self.latents, self.gradients, self.slack_gradients):
            rows.clear()

    def read(
        self, detrend: bool = True, num_permutations: int = 200, seed: int = 0, block: int | None = None
    ) -> CrossCovarianceResult:
        """Both readings of the rows; see ``read_window``.

        Args:
            detrend: take a straight line in time off each column, not its mean alone.
            num_permutations: shuffles of the permutation null.
            seed: of the shuffles.
            block: neighbouring steps that the jackknife leaves out together; None for the root of T, or 1 below
            16 steps.
        """
        slack = torch.stack(self.slack_gradients) if self.slack_gradients else None
        rows = (torch.stack(self.latents), torch.stack(self.gradients), slack) if self.latents else _no_rows()
        return read_window(self.steps, *rows, detrend, num_permutations, seed, block)

    def state_dict(self) -> dict[str, Any]:
        """The rows, for a checkpoint inside a window."""
        state: dict[str, Any] = {"steps": list(self.steps)}
        for name in ("latents", "gradients", "slack_gradients"):
            state[name] = list(getattr(self, name))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.steps = list(state["steps"])
        for name in ("latents", "gradients", "slack_gradients"):
            setattr(self, name, [row.cpu() for row in state[name]])


def read_window(
    steps: Sequence[int],
    latents: Tensor,
    gradients: Tensor,
    slack_gradients: Tensor | None = None,
    detrend: bool = True,
    num_permutations: int = 200,
    seed: int = 0,
    block: int | None = None,
) -> CrossCovarianceResult:
    """Read both cross-covariances from the rows of T training steps.

    There is no objective part: it needs all gradients at one latent and one iterate, which only the probe has.

    Args:
        steps: of the rows, T of them, increasing.
        latents: shape (T, d).
        gradients: d loss / d latent, shape (T, d).
        slack_gradients: d loss / d slack per unit of latent, shape (T, d); None without a slack.
        detrend: take a straight line in time off each column, not its mean alone.
        num_permutations: shuffles of the permutation null.
        seed: of the shuffles.
        block: neighbouring steps that the jackknife leaves out together; None for the root of T, or 1 below
            16 steps.

    Raises:
        ValueError: too few rows, steps that do not increase, or a model that has diverged.
    """
    if len(steps) != len(latents) or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"{len(steps)} steps for {len(latents)} rows: give one a row, increasing.")
    times = torch.tensor(steps, dtype=torch.float64) if detrend and len(steps) > 1 else None
    if block is None:  # a short window has too few blocks
        block = math.isqrt(len(steps)) if len(steps) >= 16 else 1

    def read(rows: Tensor) -> Any:
        return read_cross_covariance(latents, rows, None, num_permutations, seed, times, block)

    return CrossCovarianceResult(read(gradients), None if slack_gradients is None else read(slack_gradients))


def _no_rows() -> tuple[Tensor, Tensor, None]:
    return torch.zeros(0, 1), torch.zeros(0, 1), None
