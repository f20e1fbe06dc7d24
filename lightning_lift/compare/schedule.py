"""Lengths in a configuration: its own number of steps, its validations, and schedules made to fit another number."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning as L

# Arguments of torch's schedulers that count steps. PolynomialLR, LinearLR and ConstantLR end at total_iters, OneCycleLR
# at total_steps, CosineAnnealingWarmRestarts starts again after T_0.
_LENGTHS = ("T_max", "total_steps", "total_iters", "T_0", "step_size", "step_size_up", "step_size_down")
_RATES = {"ExponentialLR": "gamma"}  # per step: gamma^steps is what the whole run multiplies the rate by
LOOKS = 30


def own_steps(
    config: Mapping[str, Any], make_data: Callable[[], L.LightningDataModule], epochs: float | None = None
) -> int:
    """Optimizer steps of a fit of this configuration, or of a number of its epochs.

    Args:
        config: with ``trainer`` and ``data`` as plain settings.
        make_data: makes the data module; called only where the settings do not say how many batches an epoch has.
        epochs: how many; None for the whole fit.

    Raises:
        ValueError: the configuration does not bound the fit, or its data have no length.
    """
    trainer, data = config["trainer"], config["data"].get("init_args") or {}
    steps, limit = trainer.get("max_steps", -1), trainer.get("max_epochs")
    bounded = limit is not None and limit >= 0
    if epochs is None:
        if steps is not None and steps > 0 and not bounded:
            return int(steps)
        if not bounded:
            raise ValueError("the configuration has neither trainer.max_steps nor trainer.max_epochs: give --steps.")
        epochs = limit
    fixed = data.get("num_train") is not None
    batches = None if fixed else data.get("batches_per_epoch")
    if batches is None:
        batches = _length_of(make_data())
    allowed = trainer.get("overfit_batches") or trainer.get("limit_train_batches")
    if allowed is not None:
        batches = int(batches * allowed) if isinstance(allowed, float) else min(batches, allowed)
    accumulated = int(trainer.get("accumulate_grad_batches") or 1)
    assert epochs is not None
    count = max(1, int(epochs * -(-batches // accumulated)))  # an epoch's last batches make a step of their own
    return min(count, int(steps)) if bounded and steps is not None and steps > 0 else count


def _length_of(data: L.LightningDataModule) -> int:
    data.prepare_data()
    data.setup("fit")
    try:
        return len(data.train_dataloader())
    except TypeError as error:
        raise ValueError(
            f"{type(data).__name__} does not say how many batches an epoch has (its loader has no length): give "
            "trainer.max_steps and trainer.val_check_interval with trainer.check_val_every_n_epoch: null."
        ) from error


def look_interval(trainer: Mapping[str, Any], steps: int, epoch_steps: Callable[[], int]) -> int:
    """Optimizer steps from one point of the curves to the next: every validation, and at least ``LOOKS`` of them.

    Args:
        trainer: settings of the trainer.
        steps: of the run.
        epoch_steps: gives the optimizer steps of an epoch; called only where validation is counted in epochs.
    """
    often = max(1, steps // LOOKS)
    every, interval = trainer.get("check_val_every_n_epoch"), trainer.get("val_check_interval")
    accumulated = int(trainer.get("accumulate_grad_batches") or 1)
    if isinstance(interval, int):
        own = max(1, interval // accumulated)
    elif every is None or isinstance(interval, str | Mapping):  # seconds: no number of steps
        return often
    else:
        own = max(1, int(epoch_steps() * (every if interval in (None, 1.0) else interval)))
    return min(own, often)


def scaled_scheduler(
    scheduler: Mapping[str, Any] | str, steps: int, own: Callable[[], int]
) -> dict[str, Any] | Mapping[str, Any] | str:
    """A learning-rate scheduler whose lengths fit another number of steps.

    Args:
        scheduler: ``{class_path, init_args}``.
        steps: of the run.
        own: gives the configuration's own number of steps, for which the lengths were chosen; called only if there are
            lengths.

    Raises:
        ValueError: what ``own`` raises.
    """
    if isinstance(scheduler, str):
        return scheduler
    init_args = dict(scheduler.get("init_args") or {})
    name = str(scheduler.get("class_path", "")).rpartition(".")[2]
    lengths = [key for key in _LENGTHS if isinstance(init_args.get(key), int)]
    listed = isinstance(init_args.get("milestones"), list)
    decay = _RATES.get(name)
    if not lengths and not listed and decay is None:
        return scheduler
    factor = steps / own()
    if factor == 1.0:
        return scheduler
    for key in lengths:
        init_args[key] = max(1, round(init_args[key] * factor))
    if listed:
        init_args["milestones"] = [max(1, round(step * factor)) for step in init_args["milestones"]]
    if decay is not None:
        init_args[decay] = init_args[decay] ** (1.0 / factor)
    return {**scheduler, "init_args": init_args}
