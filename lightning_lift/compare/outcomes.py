"""How a run ends: what is a divergence, which is an outcome, and what is a failure."""

import math
from collections.abc import Mapping

import lightning as L
import torch

from lightning_lift.compare.record import Outcome, monitored

_BLOWN_UP = 1e3  # no sane training makes the largest weight that many times as large


class DivergenceError(Exception):
    """The loss or a metric is not finite; the message says which, and at which step."""


@torch.no_grad()
def largest_weight(module: L.LightningModule) -> float:
    """The largest size among all trained numbers; NaN or infinity where one is not finite.

    Args:
        module: any; 0 for one without parameters.
    """
    sizes = [p.abs().max() for p in module.parameters() if p.numel()]
    return float(torch.stack(sizes).max()) if sizes else 0.0


def ending(error: Exception, module: L.LightningModule | None, start_size: float | None) -> tuple[Outcome, str]:
    """The outcome of a run that an error ended, and what its record says of it.

    Linear algebra and quadrature refuse a diverged model before a loss is NaN: an error of arithmetic is a divergence,
    and so is any that comes with weights that have grown a thousandfold.

    Args:
        error: what was raised.
        module: the run's; None where it could not be made.
        start_size: its ``largest_weight`` before the first step; None where training did not begin.
    """
    if isinstance(error, DivergenceError):
        return "diverged", str(error)
    diverged = False
    if module is not None and start_size is not None:
        by_arithmetic = isinstance(error, ArithmeticError | torch.linalg.LinAlgError)  # type: ignore[attr-defined]
        diverged = by_arithmetic or not largest_weight(module) <= _BLOWN_UP * max(1.0, start_size)
    return "diverged" if diverged else "failed", f"{type(error).__name__}: {error}"


def check_tested(metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Refuses a run whose best or last state has no finite test metric.

    Args:
        metrics: as in a record: by state, then by name.

    Raises:
        DivergenceError: the test's counterpart of the monitored metric is not finite.
    """
    for state, found in metrics.items():
        name = (monitored(found) or "val/loss").replace("val/", "test/")
        if not math.isfinite(found.get(name, 0.0)):
            raise DivergenceError(f"{name} of the {state} state is {found[name]}")
