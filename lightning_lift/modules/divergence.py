"""When training has diverged, and the error that says so."""

import lightning as L
import torch

_BLOWN_UP = 1e3  # no sane training makes the largest weight that many times as large


class DivergenceError(ArithmeticError):
    """Training has diverged. The message says what is not finite, at which step and rate, and what to try."""


@torch.no_grad()
def largest_weight(module: L.LightningModule) -> float:
    """The largest size among all trained numbers; NaN or infinity where one is not finite.

    Args:
        module: any; 0 for one without parameters.
    """
    sizes = [p.abs().max() for p in module.parameters() if p.numel()]
    return float(torch.stack(sizes).max()) if sizes else 0.0


def has_diverged(error: Exception, module: L.LightningModule, start_size: float) -> bool:
    """Whether an error of a training run is a divergence.

    Linear algebra and quadrature refuse a diverged model before a loss is NaN: an error of arithmetic is a divergence,
    and so is any that comes with weights that are not finite or have grown a thousandfold.

    Args:
        error: what was raised.
        module: that was trained.
        start_size: its ``largest_weight`` before the first step.
    """
    by_arithmetic = isinstance(error, ArithmeticError | torch.linalg.LinAlgError)  # type: ignore[attr-defined]
    return by_arithmetic or not largest_weight(module) <= _BLOWN_UP * max(1.0, start_size)
