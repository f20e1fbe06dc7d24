"""Options of ``lightning-lift compare``: from the command line, the configuration, or the defaults."""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.build import make_data, read_config
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.plan import Settings
from lightning_lift.compare.schedule import own_steps

DEFAULTS: dict[str, Any] = {
    "parameterizations": "pgd,direct,lift",
    "seeds": 10,
    "learning_rates": (),
    "budget": "steps",
    "steps": None,
    "seconds": None,
    "tuning_seeds": 3,
    "tuning_steps": None,
    "vectorize": False,
    "checkpoint_every": None,
    "look_every": None,
    "engine": "local",
    "jobs": None,
    "output": None,
    "metrics": (),
}
_DESCRIPTION = """\
Trains every parameterization on the same seeds, each from the same network start and data stream, chooses each one's
learning rate on validation data beforehand, and writes a report with paired statistics. Killed at any moment, the same
command goes on from there."""
_EPILOG = """\
The configuration may have a `compare:` mapping with defaults of these options (learning_rates: [3e-4, 1e-3]); flags
win. An arm is [LABEL=]NAME[:key=value...], such as gain10=direct:latent_gain=10; keys that begin with `network.` change
the network."""


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; options that it does not state are None.

    Args:
        args: the arguments after ``compare``.

    Raises:
        ValueError: an option that is not known or not valid.
    """
    return _parser().parse_args([_hyphened(arg) for arg in args])


def from_options(parsed: argparse.Namespace) -> tuple[dict[str, Any], PairedComparison]:
    """The comparison of a command line and the configuration's own ``compare`` mapping.

    Args:
        parsed: the command line.

    Returns:
        All options by name, and the comparison; nothing is written yet.

    Raises:
        ValueError: an option that is not known or not valid.
    """
    if not parsed.config:
        raise ValueError("--config is missing: give the configuration of a fit.")
    path = Path(parsed.config[0])
    overlays = [item for extra in parsed.config[1:] for item in ("--config", extra)]
    config = read_config(path, overlays + [f"--{setting}" for setting in parsed.set])
    own = config.pop("compare", None) or {}
    if unknown := sorted(set(own) - set(DEFAULTS)):
        raise ValueError(f"{path}: compare has no option {unknown[0]!r}; its options are {', '.join(DEFAULTS)}.")
    given = {name: getattr(parsed, name) for name in DEFAULTS if getattr(parsed, name) is not None}
    options = {**DEFAULTS, **{key: value for key, value in own.items() if value is not None}, **given}
    options["seeds"] = seed_list(options["seeds"])
    options["learning_rates"] = rate_list(options["learning_rates"])
    for name in ("steps", "tuning_seeds", "tuning_steps", "checkpoint_every", "look_every", "jobs"):
        options[name] = _count(name, options[name])
    options["seconds"] = None if options["seconds"] is None else _number("seconds", options["seconds"])
    if not isinstance(options["vectorize"], bool):
        raise ValueError(f"vectorize={options['vectorize']!r}: write true or false.")
    if options["engine"] not in ("local", "ray"):
        raise ValueError(f"engine={options['engine']!r}: give 'local' or 'ray'.")
    if options["jobs"] is not None and options["jobs"] < 1:
        raise ValueError(f"jobs={options['jobs']}: give the number of runs at a time, 1 or more.")
    steps = options["steps"]
    fields = ("seeds", "learning_rates", "tuning_seeds", "tuning_steps", "budget", "seconds", "vectorize")
    settings = Settings(
        config=config,
        arms=parse_arms(options["parameterizations"]),
        steps=own_steps(config, functools.partial(make_data, config)) if steps is None else steps,
        **{name: options[name] for name in (*fields, "checkpoint_every", "look_every")},
    )
    directory = Path(options["output"] or Path("runs") / "compare" / path.stem)
    return options, PairedComparison(settings, directory, path.stem, metrics=name_list(options["metrics"]))


def seed_list(value: Any) -> tuple[int, ...]:
    """The seeds of an option.

    Args:
        value: a number of seeds, of which the first is 0, or a list of seeds, as text with commas or as a list.

    Raises:
        ValueError: it is neither.
    """
    try:
        if isinstance(value, str):
            value = [int(piece) for piece in value.split(",") if piece.strip()] if "," in value else int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return tuple(range(value))
        return tuple(_whole(item) for item in value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"seeds={value!r}: give a number of seeds, or a list such as 100,101.") from error


def rate_list(value: Any) -> tuple[float, ...]:
    """The learning rates of an option, in increasing order.

    Args:
        value: text with commas, a number, or a list.

    Raises:
        ValueError: something in it is no number.
    """
    if isinstance(value, str):
        value = [piece for piece in value.split(",") if piece.strip()]
    try:
        return tuple(sorted(float(rate) for rate in ([value] if isinstance(value, int | float) else value)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"learning_rates={value!r}: give numbers, such as 3e-4,1e-3,3e-3.") from error


def name_list(value: Any) -> tuple[str, ...]:
    """Names, from text with commas or a list.

    Args:
        value: as said.
    """
    pieces = value.split(",") if isinstance(value, str) else value
    return tuple(str(piece).strip() for piece in pieces)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(value)
    return int(value)


def _count(name: str, value: Any) -> int | None:
    try:
        return None if value is None else _whole(int(value) if isinstance(value, str) else value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r}: give a whole number.") from error


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r}: give a number.") from error


def _hyphened(argument: str) -> str:
    """``--tuning_seeds=3`` as ``--tuning-seeds=3``: fit spells its flags with underscores."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage: the command line prints one line."""
        raise ValueError(f"compare: {message} (lightning-lift compare --help lists the options).")


def _parser() -> _Parser:
    parser = _Parser(
        prog="lightning-lift compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", action="append", metavar="FILE", help="configuration of a fit; further ones are laid over it")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override, as in model.init_args.dim=2")
    add("--parameterizations", metavar="ARMS", help=f"arms, with commas (default: {DEFAULTS['parameterizations']})")
    add("--seeds", help=f"number of seeds, or a list as in 100,101 (default: {DEFAULTS['seeds']})")
    add("--learning-rates", metavar="RATES", help="grid from which each arm gets its rate (default: no tuning)")
    add("--tuning-seeds", metavar="N", help=f"seeds of the tuning runs (default: {DEFAULTS['tuning_seeds']})")
    add("--tuning-steps", metavar="N", help="steps of the tuning runs (default: those of the final runs)")
    add("--budget", choices=["steps", "seconds"], help="what the arms get alike (default: steps)")
    add("--steps", metavar="N", help="optimizer steps (default: the configuration's)")
    add("--seconds", metavar="S", help="training time of each arm (default: the fastest one's for --steps)")
    add("--jobs", metavar="N", help="runs at a time, one thread each (default: the cores)")
    add("--engine", choices=["local", "ray"], help="this machine, or Ray's cluster at RAY_ADDRESS (default: local)")
    add("--vectorize", action="store_const", const=True, help="train all seeds of an arm at once where possible")
    add("--checkpoint-every", metavar="N", help="keep a checkpoint each N steps besides best and last")
    add("--look-every", metavar="N", help="steps between points of the curves (default: the validations)")
    add("--output", metavar="DIR", help="where everything goes (default: runs/compare/NAME of the configuration)")
    add("--metrics", metavar="NAMES", help="test metrics to compare, with commas (default: total variation and NLL)")
    add("--retry-failed", action="store_true", help="do failed runs again (default: they are kept and counted)")
    add("--plan", action="store_true", help="print the runs, write plan.jsonl and slurm_array.sh, run nothing")
    add("--only", type=int, metavar="INDEX", help="do one line of plan.jsonl, for schedulers")
    add("--report-only", action="store_true", help="write the report of what is there")
    return parser
