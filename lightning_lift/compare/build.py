"""From settings to the objects of a run, and the two numbers that need them: its steps and its parameters."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L

from lightning_lift.compare.records import RunSpec
from lightning_lift.parameterizations import ProjectedGradient
from lightning_lift.settings import instantiated

_TRIES = 20


def make(spec: RunSpec) -> tuple[L.LightningModule, L.LightningDataModule, dict[str, Any]]:
    """Make what a run needs; the same spec makes the same.

    Args:
        spec: the run.

    Returns:
        Module, data module, and the keyword arguments of its ``Trainer``. All random numbers are drawn after seeding
        with the spec's seed, the network's before the parameterization's: every arm of a seed starts from one network.

    Raises:
        ValueError: settings that a constructor refuses.
    """
    return make_from(spec.config, spec.seed)


def make_from(config: Mapping[str, Any], seed: int) -> tuple[L.LightningModule, L.LightningDataModule, dict[str, Any]]:
    """``make`` from settings and a seed.

    Args:
        config: what ``resolve`` gave.
        seed: of every random number.

    Raises:
        ValueError: settings that a constructor refuses.
    """
    L.seed_everything(seed, workers=True, verbose=False)
    made = instantiated(config)
    return made["model"], made["data"], dict(made["trainer"])


def make_reference(spec: RunSpec) -> L.LightningModule:
    """The module of a run under projected gradient: it holds the network's own first numbers (see ``start_hash``).

    Args:
        spec: the run.

    Raises:
        ValueError: settings that a constructor refuses.
    """
    config = copy.deepcopy(spec.config)
    if "parameterization" in config["model"]["init_args"]:
        path = f"{ProjectedGradient.__module__}.{ProjectedGradient.__qualname__}"
        config["model"]["init_args"]["parameterization"] = {"class_path": path}
    return make_from(config, spec.seed)[0]


def make_data(config: Mapping[str, Any]) -> L.LightningDataModule:
    """The data module alone.

    Args:
        config: settings with a ``data`` section.

    Raises:
        ValueError: settings that its constructor refuses.
    """
    made: L.LightningDataModule = instantiated({"data": config["data"]})["data"]
    return made


def count_parameters(config: Mapping[str, Any]) -> int:
    """``trained_numbers`` of the module of these settings.

    Args:
        config: what ``resolve`` gave.
    """
    return trained_numbers(instantiated({key: config[key] for key in ("model", "data")})["model"])


def trained_numbers(module: L.LightningModule) -> int:
    """How many numbers a module trains, the parameterization's included.

    Args:
        module: any.
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


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


def matched_widths(
    config: Mapping[str, Any], target: Mapping[str, Any], count: Callable[[Mapping[str, Any]], int]
) -> list[int]:
    """Widths of a network with which a module trains as many numbers as another one does, as nearly as they can.

    All widths are multiplied by one factor and rounded. The number of parameters grows about as the factor's square, so
    its root is interpolated; a handful of networks is built.

    Args:
        config: settings whose ``model.init_args.network.init_args.widths`` are to be scaled.
        target: settings of the module whose number is matched.
        count: number of trained parameters of a module, from its settings.

    Raises:
        ValueError: there are no widths.
    """
    own = config["model"]["init_args"]["network"]["init_args"].get("widths")
    if not own:
        raise ValueError(f"match_parameters scales the widths of the network, and they are {own!r}: state them.")
    wanted = count(target)
    counts: dict[tuple[int, ...], int] = {}

    @functools.cache
    def excess(factor: float) -> float:
        widths = tuple(max(1, round(factor * width)) for width in own)
        if widths not in counts:
            counts[widths] = count(_with_widths(config, widths))
        return math.sqrt(counts[widths]) - math.sqrt(wanted)

    low, high = 0.0, max(1.0, math.sqrt(wanted / max(1, count(config))))
    while excess(high) < 0.0:
        # A network of one layer grows with the factor itself, any other one is nearly there.
        low, high = high, high * max(1.1, wanted / (excess(high) + math.sqrt(wanted)) ** 2)
    for _ in range(_TRIES):
        if (high - low) * max(own) < 0.5:  # the widths of both ends are neighbours
            break
        # Kept off the ends: interpolation alone can leave one of them where it is.
        below = excess(low) if low > 0.0 else -math.sqrt(wanted)
        middle = low + (high - low) * min(0.95, max(0.05, -below / (excess(high) - below)))
        if excess(middle) < 0.0:
            low = middle
        else:
            high = middle
    nearest = min(counts.items(), key=lambda item: abs(item[1] - wanted))
    return list(nearest[0])


def _with_widths(config: Mapping[str, Any], widths: tuple[int, ...]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    changed["model"]["init_args"]["network"]["init_args"]["widths"] = list(widths)
    return changed
