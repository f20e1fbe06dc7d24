"""From a fit configuration to the runs of a comparison, and from a run to its module, data module and trainer."""

import copy
import functools
import json
from collections.abc import Mapping
from typing import Any

import lightning as L

from lightning_lift.compare.arms import Arm, arguments_of, imported
from lightning_lift.compare.matching import matched_widths
from lightning_lift.compare.observers import keeps_training
from lightning_lift.compare.record import RunSpec
from lightning_lift.compare.schedule import look_interval, own_steps, scaled_scheduler
from lightning_lift.parameterizations import Lift, ProjectedGradient
from lightning_lift.settings import SECTIONS, checked, instantiated, read_config

__all__ = [
    "count_parameters",
    "make",
    "make_data",
    "make_from",
    "make_reference",
    "read_config",
    "resolve",
    "trained_numbers",
]

_PLAIN = (bool, int, float, str, list, type(None))


def resolve(
    config: Mapping[str, Any],
    arm: Arm,
    learning_rate: float | None,
    seed: int,
    steps: int,
    look_every: int | None = None,
) -> dict[str, Any]:
    """The configuration of one run of a comparison.

    Beside arm, rate and seed: training ends after ``steps`` optimizer steps, whatever the epochs; lengths of the
    learning-rate schedule scale with them, and its largest rate with the rate; validation comes every ``look_every``
    steps; loggers and callbacks that only look are left out, and so is early stopping.

    Where the configuration's own parameterization is a ``Lift``, the arguments that differ from its defaults carry over
    to arms of the same family that accept them; the arm's own win. Otherwise nothing carries over.

    Args:
        config: what ``read_config`` gave.
        arm: what is compared.
        learning_rate: of the optimizer; None for the configuration's own.
        seed: of network, parameterization and data.
        steps: optimizer steps, at least one.
        look_every: optimizer steps from one point of the curves to the next; None for every validation of the
            configuration, or every ``steps // 30`` where that is more often.

    Returns:
        Plain settings, for ``RunSpec.config``.

    Raises:
        ValueError: something that this configuration does not have or does not take.
    """
    if steps < 1 or (look_every is not None and look_every < 1):
        raise ValueError(f"steps={steps}, look_every={look_every}: both need at least one step.")
    arguments = json.dumps([{key: config.get(key) for key in SECTIONS}, _arm_settings(arm)], sort_keys=True)
    resolved: dict[str, Any] = json.loads(_resolved(arguments, arm, steps, look_every))
    if learning_rate is not None:
        _set_learning_rate(resolved["model"], learning_rate)
    data = resolved["data"]
    if "data_seed" in _accepted(data):
        data["init_args"]["data_seed"] = seed
    resolved["seed_everything"] = seed
    return resolved


@functools.lru_cache(maxsize=256)  # a plan asks for each arm once a seed, and parsing takes a quarter of a second
def _resolved(arguments: str, arm: Arm, steps: int, look_every: int | None) -> str:
    config = json.loads(arguments)[0]
    model, trainer = config["model"], config["trainer"]
    init_args = model["init_args"]
    _check_slots(model, arm)
    init_args["parameterization"] = _with_carried(init_args.get("parameterization"), arm)
    if arm.network:
        init_args["network"].setdefault("init_args", {}).update(arm.network)
    own = functools.partial(own_steps, config, lambda: make_data(config))
    every = look_interval(trainer, steps, lambda: own(epochs=1)) if look_every is None else min(look_every, steps)
    if init_args.get("lr_scheduler") is not None:
        init_args["lr_scheduler"] = scaled_scheduler(init_args["lr_scheduler"], steps, own)
    callbacks = trainer.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer |= {
        "max_steps": steps,
        "max_epochs": -1,
        "min_epochs": None,
        "min_steps": None,
        "max_time": None,
        "check_val_every_n_epoch": None,
        "val_check_interval": every * int(trainer.get("accumulate_grad_batches") or 1),
        "log_every_n_steps": every,  # the module then logs train/loss at the looks
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [c for c in callbacks if keeps_training(c)] + list(arm.callbacks),
    }
    trainer["devices"] = 1 if trainer.get("devices") in (None, "auto") else trainer["devices"]
    config = checked(config, f"arm {arm.label!r}")
    if arm.match_parameters is not None:
        target = json.loads(_resolved(_with(arguments, arm.match_parameters), arm.match_parameters, steps, look_every))
        network = config["model"]["init_args"]["network"]
        network["init_args"]["widths"] = matched_widths(config, target, count_parameters)
        config = checked(config, f"arm {arm.label!r}")
    return json.dumps(config)


def make(spec: RunSpec) -> tuple[L.LightningModule, L.LightningDataModule, dict[str, Any]]:
    """Makes what a run needs; the same spec makes the same.

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


# -- parts of a configuration ---------------------------------------------------------------------------------------


def _arm_settings(arm: Arm) -> list[Any]:
    match = None if arm.match_parameters is None else _arm_settings(arm.match_parameters)
    return [arm.label, arm.parameterization, arm.network, list(arm.callbacks), match]


def _with(arguments: str, arm: Arm) -> str:
    return json.dumps([json.loads(arguments)[0], _arm_settings(arm)], sort_keys=True)


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
    """Puts the rate where the module takes it, and scales a schedule's largest rate along."""
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
