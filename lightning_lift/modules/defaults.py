"""What a task on convex networks is trained with where nothing is set: optimizer, schedule and parameterization.

Measured against the alternatives by ``benchmarks/defaults.py``.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from lightning_lift.parameterizations import DirectGain

DefaultParameterization = DirectGain


class DefaultAdam(torch.optim.Adam):
    """Adam at the rate that suits the scaled start, 0.04, and with betas (0.9, 0.99), which follow a short schedule.

    A task's ``learning_rate`` changes the rate; whoever wants more changed gives ``torch.optim.Adam``. It has no
    arguments of its own because the command line's parser hands the default's on to whichever class replaces it.

    Args:
        params: what is trained, as for ``torch.optim.Adam``.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> None:
        super().__init__(params, lr=4e-2, betas=(0.9, 0.99))


class ConditionalAdam(torch.optim.Adam):
    """Adam at the rate that suits the path of a context, 0.01, and with betas (0.9, 0.99).

    Four times that rate is too much for it: measured on the posterior of SLCP, one rate for all of a PICNN.

    Args:
        params: what is trained, as for ``torch.optim.Adam``.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> None:
        super().__init__(params, lr=1e-2, betas=(0.9, 0.99))


class WarmupCosine(LRScheduler):
    """A linear warm-up, then half a cosine down to zero at the trainer's last step.

    The module sets ``total_steps`` from the trainer's own number of optimizer steps, so there is nothing to keep in
    step with ``max_steps`` by hand; a fit that is resumed with more steps follows the longer schedule from there on.
    Where that number is not known (no ``max_steps`` and no ``max_epochs``, or an iterable data set without a length)
    the rate stays constant, and a line says so.

    Args:
        optimizer: whose rates are scheduled.
        warmup: fraction of the steps over which the rate rises to its full value.
        total_steps: number of optimizer steps; None for the trainer's.

    Raises:
        ValueError: a fraction outside [0, 1), or fewer than one step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, warmup: float = 0.05, total_steps: int | None = None) -> None:
        if not 0.0 <= warmup < 1.0:
            raise ValueError(f"warmup={warmup}: give a fraction of the steps in [0, 1).")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps={total_steps}: give 1 step or more, or None for the trainer's number.")
        self.warmup, self.total_steps = warmup, total_steps
        super().__init__(optimizer)

    def follow(self, estimated_steps: float) -> None:
        """Take over the trainer's number of steps, where none was given.

        Args:
            estimated_steps: ``trainer.estimated_stepping_batches``, infinite where it is not known.
        """
        if self.total_steps is not None:
            return
        if math.isinf(estimated_steps):
            rank_zero_info(
                "The number of training steps is not known, so the learning rate stays constant: give the trainer "
                "max_steps or max_epochs for a warm-up and a cosine down to zero."
            )
            return
        self.total_steps = max(1, int(estimated_steps))
        self._set_rates()

    def factor(self, step: int) -> float:
        """The rate of a step over the full rate.

        Args:
            step: optimizer steps taken before it.
        """
        if self.total_steps is None:
            return 1.0
        rising = int(self.warmup * self.total_steps)
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - rising) / (self.total_steps - rising))))

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group at the present step."""
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state's step, on this schedule's own horizon.

        Args:
            state_dict: what ``state_dict`` gave.
        """
        super().load_state_dict({**state_dict, "warmup": self.warmup, "total_steps": self.total_steps})
        self._set_rates()

    def _set_rates(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]
