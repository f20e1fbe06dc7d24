"""What one run of a comparison is: a configuration of fit, with an arm, a rate, a seed and a number of steps put in."""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import callbacks as watching

from lightning_lift.callbacks import PathConditioning
from lightning_lift.compare.arms import Arm, arguments_of, imported
from lightning_lift.compare.build import count_parameters, make_data, matched_widths, own_steps
from lightning_lift.parameterizations import Lift
from lightning_lift.settings import SECTIONS, checked

# Early stopping among them: it would end arms at different steps.
_OBSERVERS = (watching.Checkpoint, watching.DeviceStatsMonitor, watching.EarlyStopping, watching.LearningRateMonitor,
              watching.ModelSummary, watching.ProgressBar, watching.ThroughputMonitor, watching.Timer)  # fmt: skip
_OURS = "lightning_lift.callbacks."
_TRAINING = (PathConditioning,)
_PLAIN = (bool, int, float, str, list, type(None))
# Arguments of torch's schedulers that count steps. PolynomialLR, LinearLR and ConstantLR end at total_iters, OneCycleLR
# at total_steps, CosineAnnealingWarmRestarts starts again after T_0.
_LENGTHS = ("T_max", "total_steps", "total_iters", "T_0", "step_size", "step_size_up", "step_size_down")
_RATES = {"ExponentialLR": "gamma"}  # per step: gamma^steps is what the whole run multiplies the rate by
EVALUATIONS = 30


def resolve(
    config: Mapping[str, Any],
    arm: Arm,
    learning_rate: float | None,
    seed: int,
    steps: int,
    evaluate_every: int | None = None,
) -> dict[str, Any]:
    """The configuration of one run of a comparison.

    Beside arm, rate and seed: training ends after ``steps`` optimizer steps, whatever the epochs; lengths of the
    learning-rate schedule scale with them, and its largest rate with the rate; validation comes every
    ``evaluate_every`` steps; loggers and callbacks that only observe are left out, and so is early stopping.

    Where the configuration's own parameterization is a ``Lift``, the arguments that differ from its defaults carry over
    to arms of the same family that accept them; the arm's own win. Otherwise nothing carries over.

    Args:
        config: what ``read_config`` gave.
        arm: what is compared.
        learning_rate: of the optimizer; None for the configuration's own.
        seed: of network, parameterization and data.
        steps: optimizer steps, at least one.
        evaluate_every: optimizer steps from one point of the curves to the next; None for every validation of the
            configuration, or every ``steps // 30`` where that is more often.

    Returns:
        Plain settings, for ``RunSpec.config``.

    Raises:
        ValueError: something that this configuration does not have or does not take.
    """
    if steps < 1 or (evaluate_every is not None and evaluate_every < 1):
        raise ValueError(f"steps={steps}, evaluate_every={evaluate_every}: both need at least one step.")
    text = json.dumps({key: config.get(key) for key in SECTIONS}, sort_keys=True)
    resolved: dict[str, Any] = json.loads(_resolved(text, arm, steps, evaluate_every))
    if learning_rate is not None:
        _set_learning_rate(resolved["model"], learning_rate)
    data = resolved["data"]
    if "data_seed" in data["init_args"]:  # every default is filled in
        data["init_args"]["data_seed"] = seed
    resolved["seed_everything"] = seed
    return resolved


@functools.lru_cache(maxsize=256)  # a plan asks for each arm once a seed, and parsing takes a quarter of a second
def _resolved(text: str, arm: Arm, steps: int, evaluate_every: int | None) -> str:
    config = json.loads(text)
    model, trainer = config["model"], config["trainer"]
    init_args = model["init_args"]
    _check_slots(model, arm)
    init_args["parameterization"] = _with_carried(init_args.get("parameterization"), arm)
    if arm.network:
        init_args["network"].setdefault("init_args", {}).update(arm.network)
    own = functools.partial(own_steps, config, lambda: make_data(config))
    every = min(steps, evaluate_every or evaluation_interval(trainer, steps, lambda: own(epochs=1)))
    if init_args.get("lr_scheduler") is not None:
        init_args["lr_scheduler"] = scaled_scheduler(init_args["lr_scheduler"], steps, own)
    callbacks = trainer.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer |= dict.fromkeys(("min_epochs", "min_steps", "max_time", "check_val_every_n_epoch"))
    trainer |= dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer |= {
        "max_steps": steps,
        "max_epochs": -1,
        "val_check_interval": every * int(trainer.get("accumulate_grad_batches") or 1),
        "log_every_n_steps": every,  # the module then logs train/loss at the evaluations
        "num_sanity_val_steps": 0,
        "callbacks": [c for c in callbacks if keeps_training(c)] + list(arm.callbacks),
    }
    trainer["devices"] = 1 if trainer.get("devices") in (None, "auto") else trainer["devices"]
    config = checked(config, f"arm {arm.label!r}")
    if arm.match_parameters is not None:
        target = json.loads(_resolved(text, arm.match_parameters, steps, evaluate_every))
        network = config["model"]["init_args"]["network"]
        network["init_args"]["widths"] = matched_widths(config, target, count_parameters)
        config = checked(config, f"arm {arm.label!r}")
    return json.dumps(config)


def keeps_training(settings: Mapping[str, Any] | str) -> bool:
    """Whether a callback of a configuration belongs in a comparison: one that alters training does.

    Args:
        settings: ``{class_path, init_args}`` of the callback.

    Returns:
        False for what only observes, writes or stops (checkpoints, progress, this package's figures and measurements,
        early stopping); True for weight averaging, accumulation, path-conditioning and whatever is not known.
    """
    cls = imported(settings if isinstance(settings, str) else settings["class_path"])
    if not isinstance(cls, type):
        return True
    ours = cls.__module__.startswith(_OURS) and not issubclass(cls, _TRAINING)
    return not (ours or issubclass(cls, _OBSERVERS))


def evaluation_interval(trainer: Mapping[str, Any], steps: int, epoch_steps: Callable[[], int]) -> int:
    """Optimizer steps from one point of the curves to the next: every validation, and at least ``EVALUATIONS`` of them.

    Args:
        trainer: settings of the trainer.
        steps: of the run.
        epoch_steps: gives the optimizer steps of an epoch; called only where validation is counted in epochs.
    """
    often = max(1, steps // EVALUATIONS)
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


def _accepted(settings: Mapping[str, Any]) -> dict[str, Any]:
    cls = imported(settings["class_path"])
    return {} if cls is None else dict(arguments_of(cls))


def _check_slots(model: Mapping[str, Any], arm: Arm) -> None:
    accepted = _accepted(model)
    if "parameterization" not in accepted:
        raise ValueError(
            f"{model['class_path']} has no parameterization, so arm {arm.label!r} cannot be run on it: compare on a "
            "task of convex networks (a ConvexModule)."
        )
    if (arm.network or arm.match_parameters) and not isinstance(model["init_args"].get("network"), dict):
        raise ValueError(f"arm {arm.label!r} changes the network, and {model['class_path']} states none.")
    if arm.match_parameters and "widths" not in _accepted(model["init_args"]["network"]):
        network = model["init_args"]["network"]["class_path"]
        raise ValueError(f"arm {arm.label!r}: match_parameters scales the network's widths, and {network} has none.")


def _with_carried(own: Mapping[str, Any] | None, arm: Arm) -> dict[str, Any]:
    """The arm's parameterization with what carries over from the configuration's own."""
    init_args = dict(arm.parameterization.get("init_args") or {})
    cls = imported(arm.parameterization["class_path"])
    source = None if own is None else imported(own["class_path"])
    carried: dict[str, Any] = {}
    if own is not None and isinstance(source, type) and issubclass(source, Lift) and issubclass(cls, Lift):
        # The configuration was read with every default filled in; a default of its class must not replace another of
        # the arm's class.
        defaults, accepted = arguments_of(source), arguments_of(cls)
        for key, value in (own.get("init_args") or {}).items():
            if key in accepted and _listed(value) != _listed(defaults[key].default):
                carried[key] = value
    try:
        cls(**{**carried, **init_args})
    except (TypeError, ValueError) as error:
        raise ValueError(f"arm {arm.label!r}: {error}") from error
    # The defaults are spelled out: the parser keeps those of the class that it knew in this place before, where the new
    # class has an argument of that name.
    init_args = {**_plain_defaults(cls), **carried, **init_args}
    return {"class_path": arm.parameterization["class_path"], "init_args": init_args}


def _plain_defaults(cls: type) -> dict[str, Any]:
    defaults = {name: _listed(parameter.default) for name, parameter in arguments_of(cls).items()}
    return {name: value for name, value in defaults.items() if isinstance(value, _PLAIN)}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _set_learning_rate(model: dict[str, Any], learning_rate: float) -> None:
    """Put the rate where the module takes it, and scale a schedule's largest rate along."""
    if not learning_rate > 0.0:
        raise ValueError(f"learning_rate={learning_rate}: must be positive, or None for the configuration's own.")
    init_args = model["init_args"]
    optimizer = (init_args.get("optimizer") or {}).setdefault("init_args", {}) if init_args.get("optimizer") else None
    own = init_args.get("learning_rate") or (optimizer or {}).get("lr")
    if "learning_rate" in _accepted(model):
        init_args["learning_rate"] = learning_rate
    elif optimizer is not None:
        optimizer["lr"] = learning_rate
    else:
        raise ValueError(
            f"{model['class_path']} takes neither learning_rate nor an optimizer, so its rate cannot be set: compare "
            "at the configuration's own."
        )
    schedule = (init_args.get("lr_scheduler") or {}).get("init_args", {})
    if isinstance(schedule.get("max_lr"), float | int) and own:
        schedule["max_lr"] = schedule["max_lr"] * learning_rate / own
