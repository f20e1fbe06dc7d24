"""The configuration of a run in words, as short as it can be understood."""

import json
from collections.abc import Mapping
from typing import Any

from lightning_lift.compare.wording import NONE

# Of the trainer's settings those that change what is trained or how exactly.
_TRAINING = (
    "gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches", "precision", "accelerator", "devices",
    "num_nodes", "strategy", "deterministic", "val_check_interval", "check_val_every_n_epoch", "limit_train_batches",
)  # fmt: skip


def class_and_arguments(config: Mapping[str, Any], part: str) -> tuple[str, str]:
    """Short class name and arguments of a part of the model.

    Args:
        config: of a run.
        part: an argument of the model, like ``network``.
    """
    model = config.get("model") or {}
    setting = (model.get("init_args") or {}).get(part) if isinstance(model, Mapping) else None
    return _named(setting)


def _named(setting: Any) -> tuple[str, str]:
    """Short class name and arguments of a ``{class_path, init_args}``, or of a class path alone."""
    if not setting:
        return NONE, ""
    if not isinstance(setting, Mapping):
        return str(setting).rpartition(".")[2], ""
    name = str(setting.get("class_path", NONE)).rpartition(".")[2]
    arguments = setting.get("init_args") or {}
    return name, ", ".join(f"{key}={plain(value)}" for key, value in arguments.items() if value is not None)


def plain(value: Any) -> str:
    """A setting as compact JSON, so that lists and strings can be told apart; null is None."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, sort_keys=True).replace("null", "None")


def _joined(named: tuple[str, str]) -> str:
    return f"{named[0]}({named[1]})"


def network_text(config: Mapping[str, Any]) -> str:
    """The network."""
    return _joined(class_and_arguments(config, "network"))


def data_text(config: Mapping[str, Any]) -> str:
    """The data module, without its seed, which is each run's own."""
    setting = config.get("data")
    if isinstance(setting, Mapping):
        arguments = {k: v for k, v in (setting.get("init_args") or {}).items() if k != "data_seed"}
        setting = {**setting, "init_args": arguments}
    return _joined(_named(setting))


def optimizer_text(config: Mapping[str, Any]) -> str:
    """Optimizer and scheduler, without the learning rate."""
    init_args = (config.get("model") or {}).get("init_args") or {}
    optimizer, scheduler = (_named(_telling(init_args.get(part))) for part in ("optimizer", "lr_scheduler"))
    return _joined(optimizer) + ("" if scheduler[0] == NONE else f", {_joined(scheduler)}")


def _telling(setting: Any) -> Any:
    """Without the switches that are off, of which torch has many, and the rate, which is each arm's own."""
    if not isinstance(setting, Mapping):
        return setting
    arguments = setting.get("init_args") or {}
    kept = {key: value for key, value in arguments.items() if value not in (None, False) and key != "lr"}
    return {**setting, "init_args": kept}


def trainer_text(config: Mapping[str, Any]) -> str:
    """What of the trainer changes the training."""
    trainer = config.get("trainer") or {}
    said = {key: trainer[key] for key in _TRAINING if trainer.get(key) not in (None, [], {}, False)}
    return ", ".join(f"{key}={plain(value)}" for key, value in said.items()) or NONE
