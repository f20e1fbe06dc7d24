"""When training has diverged, and the error that says so."""

import dis
import math

import lightning as L
import torch

_EXPLODED = 1e6  # no sane training makes the loss that many times as large
_BLOWN_UP = 1e3  # no sane training makes the largest weight that many times as large


class DivergenceError(ArithmeticError):
    """Training has diverged. The message says what is not finite, at which step and rate, and what to try."""


def has_exploded(loss: float, first: float) -> bool:
    """Whether a training loss is beyond return: not finite, or a million times the first one.

    Log-partition estimators follow an exploding energy in float64 for long, so a loss can stay finite.

    Args:
        loss: of a later batch.
        first: of the first batch.
    """
    return not loss <= _EXPLODED * max(1.0, abs(first)) or math.isinf(loss)


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

    Linear algebra and log-partition estimators refuse a diverged model before a loss is NaN: an error of arithmetic is
    a divergence, and so is one that the estimators or the flows raise, or that comes with weights that are not finite
    or have grown a thousandfold.

    Args:
        error: what was raised.
        module: that was trained.
        start_size: its ``largest_weight`` before the first step.
    """
    if isinstance(error, ArithmeticError | torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return True
    refused = isinstance(error, RuntimeError) and is_raised_by(
        error, "lightning_lift.partition", "lightning_lift.flows"
    )
    return refused or is_blown_up(module, start_size)


def is_blown_up(module: L.LightningModule, start_size: float) -> bool:
    """Whether weights are not finite, or have grown a thousandfold.

    Args:
        module: in training.
        start_size: its ``largest_weight`` before the first step.
    """
    return not largest_weight(module) <= _BLOWN_UP * max(1.0, start_size)


def is_raised_by(error: Exception, *packages: str) -> bool:
    """Whether a ``raise`` statement of these packages made it: its text is written for the user, unlike a bug's.

    Args:
        error: that was caught.
        packages: how the names of their modules start.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or not str(place.tb_frame.f_globals.get("__name__")).startswith(packages):
        return False
    return place.tb_frame.f_code.co_code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]
