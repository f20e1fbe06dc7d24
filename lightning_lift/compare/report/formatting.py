"""Numbers, names, counts and settings as a report writes them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NONE = "–"  # noqa: RUF001 - the dash of an empty cell


def number(value: float, digits: int = 3, unit: str = "") -> str:
    """A number to so many significant digits; a dash for NaN.

    Args:
        value: any float.
        digits: significant ones.
        unit: written after the number, with the space before it.
    """
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return ("∞" if value > 0 else "-∞") + unit
    if value == 0.0:
        return "0" + unit
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 6:
        return f"{value:.{digits - 1}e}{unit}"
    return f"{value:.{max(0, digits - 1 - size)}f}{unit}"


def with_error(value: float, error: float) -> str:
    """``value ± error``, both to the error's second significant digit.

    Args:
        value: any float.
        error: of the value, in its unit.
    """
    # Equal numbers have a standard deviation of rounding errors.
    if not math.isfinite(error) or not math.isfinite(value) or error <= 1e-12 * abs(value):
        return number(value, 4)
    size = math.floor(math.log10(error))
    if size < -6 or size >= 5:
        return f"{number(value, 4)} ± {number(error, 2)}"
    places = max(0, 1 - size)
    return f"{value:.{places}f} ± {error:.{places}f}"


def p_text(value: float) -> str:
    """A p-value; a dash for NaN.

    Args:
        value: in [0, 1].
    """
    if math.isnan(value):
        return NONE
    return f"{value:.1e}" if value < 1e-3 else f"{value:.3f}"


def rate_text(rate: float | None) -> str:
    """A learning rate, or that the configuration's own is used.

    Args:
        rate: None for the configuration's own.
    """
    return "the configuration's" if rate is None else f"{rate:g}"


def capital(text: str) -> str:
    """A text with its first letter large, the others as they are.

    Args:
        text: of a sentence or a cell.
    """
    return text[:1].upper() + text[1:]


def plain_name(metric: str) -> str:
    """A metric in words: ``test/total_variation`` is "test total variation".

    Args:
        metric: its name, stage first.
    """
    stage, _, name = metric.rpartition("/")
    words = {
        "nll": "NLL",
        "kl_divergence": "KL divergence",
        "excess_nll": "excess NLL",
        "nll_original": "NLL, original units",
        "mse": "MSE",
        "mae": "MAE",
        "r2": "R2",
    }
    stage = {"val": "validation"}.get(stage, stage)
    return f"{stage} {words.get(name, name.replace('_', ' '))}".strip()


def unit_of(metric: str) -> str:
    """The unit of a metric with a space before it: nats for log-likelihoods and divergences, nothing else.

    Args:
        metric: its name.
    """
    return " nats" if any(word in metric for word in ("nll", "kl_divergence")) else ""


def whole_numbers(values: Iterable[int]) -> str:
    """Whole numbers, each once, ascending; a dash where there is none but 0.

    Args:
        values: sizes or counts, 0 where they are not known.
    """
    return ", ".join(f"{value:,}" for value in sorted(set(values)) if value) or NONE


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 seed``, ``30 seeds``.

    Args:
        count: how many.
        noun: of one.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def slug(name: str) -> str:
    """A metric as part of a file's name or a link.

    Args:
        name: of the metric.
    """
    return name.replace("/", "-").replace("_", "-")


def ranges(seeds: Sequence[int]) -> str:
    """Whole numbers in short: ``0-4, 7`` for 0, 1, 2, 3, 4, 7.

    Args:
        seeds: ascending.
    """
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


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
    return _named(model_setting(config, part))


def model_setting(config: Mapping[str, Any], part: str) -> Any:
    """An argument of the model as it is set, None where it is not.

    Args:
        config: of a run.
        part: the argument, like ``network``.
    """
    return ((config.get("model") or {}).get("init_args") or {}).get(part)


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


def _joined(setting: Any) -> str:
    return "{}({})".format(*_named(setting))


def network_text(config: Mapping[str, Any]) -> str:
    """The network."""
    return _joined(model_setting(config, "network"))


def data_text(config: Mapping[str, Any]) -> str:
    """The data module, without its seed, which is each run's own."""
    setting = config.get("data")
    if isinstance(setting, Mapping):
        arguments = {k: v for k, v in (setting.get("init_args") or {}).items() if k != "data_seed"}
        setting = {**setting, "init_args": arguments}
    return _joined(setting)


def optimizer_text(config: Mapping[str, Any]) -> str:
    """Optimizer and scheduler, without the learning rate."""
    optimizer, scheduler = (_telling(model_setting(config, part)) for part in ("optimizer", "lr_scheduler"))
    return _joined(optimizer) + (f", {_joined(scheduler)}" if scheduler else "")


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


# What arms mostly share, each with the text of it.
SHARED = {"network": network_text, "data": data_text, "optimizer": optimizer_text, "trainer": trainer_text}
