"""Options of ``lightning-lift compare``: from the command line, the configuration, or the defaults."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.build import make_data, own_steps
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.plan import Settings
from lightning_lift.settings import read_config

_DESCRIPTION = """\
Trains every parameterization on the same seeds, each from the same network start and data stream, chooses each one's
learning rate on validation data beforehand, and writes a report with paired statistics. Killed at any moment, the same
command goes on from there."""
_EPILOG = """\
All other flags are those of fit and override the configuration: --data.batch_size 64, --trainer.gradient_clip_val 1.
The configuration may have a `compare:` mapping with defaults of the options above (learning_rates: [3e-4, 1e-3]);
flags win. An arm is [LABEL=]NAME[:key=value...], such as gain10=direct:latent_gain=10; keys that begin with `network.`
change the network."""
_VECTORIZE_IS_GONE = (
    "vectorize is gone: leave it out, and give --jobs 2 (or as many as there are cores) for as much speed; records "
    "that it made are still read."
)
_RENAMED = {"look_every": "evaluate_every"}


def seed_list(value: Any) -> tuple[int, ...]:
    """The seeds of an option.

    Args:
        value: a number of seeds, of which the first is 0, or a list of seeds, as text with commas or as a list.

    Raises:
        ValueError: it is neither, or something in it is no whole number.
    """
    if isinstance(value, str):
        value = [piece for piece in value.split(",") if piece.strip()] if "," in value else int(value)
    return tuple(range(value)) if isinstance(value, int) and value is not True else tuple(map(_whole, value))


def rate_list(value: Any) -> tuple[float, ...]:
    """The learning rates of an option, in increasing order.

    Args:
        value: text with commas, a number, or a list.

    Raises:
        ValueError: something in it is no number.
    """
    return tuple(sorted(map(float, [value] if isinstance(value, int | float) else name_list(value))))


def name_list(value: Any) -> tuple[str, ...]:
    """The names of an option.

    Args:
        value: text with commas, or a list.
    """
    pieces = value.split(",") if isinstance(value, str) else map(str, value)
    return tuple(piece.strip() for piece in pieces if piece.strip())


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value)


def _at_least_one(value: Any) -> int:
    if _whole(value) < 1:
        raise ValueError(value)
    return _whole(value)


def _one_of(*known: str) -> Callable[[Any], str]:
    return lambda value: known[known.index(value)]


class _Option(NamedTuple):
    default: Any
    convert: Callable[[Any], Any]
    wanted: str
    metavar: str
    help: str


_A_COUNT = "a whole number, 1 or more"
OPTIONS = {
    "parameterizations": _Option("pgd,direct,lift", parse_arms, "", "ARMS", "arms, with commas"),
    "seeds": _Option(
        10, seed_list, "a number of seeds, or a list such as 100,101", "SEEDS", "how many, or a list of them"
    ),
    "learning_rates": _Option(
        (),
        rate_list,
        "numbers, such as 3e-4,1e-3,3e-3",
        "RATES",
        "grid from which arms get their rates; none: no tuning",
    ),
    "tuning_seeds": _Option(3, _at_least_one, _A_COUNT, "N", "seeds of the tuning runs"),
    "tuning_steps": _Option(None, _at_least_one, _A_COUNT, "N", "steps of the tuning runs; none: those of --steps"),
    "budget": _Option(
        "steps", _one_of("steps", "seconds"), "'steps' or 'seconds'", "steps|seconds", "what the arms get alike"
    ),
    "steps": _Option(None, _at_least_one, _A_COUNT, "N", "optimizer steps; none: the configuration's"),
    "seconds": _Option(
        None, float, "a number", "S", "training time of each arm; none: what the fastest one needs for --steps"
    ),
    "jobs": _Option(None, _at_least_one, _A_COUNT, "N", "runs at a time, one thread each; none: as many as cores"),
    "engine": _Option(
        "local", _one_of("local", "ray"), "'local' or 'ray'", "local|ray", "this machine, or Ray's at RAY_ADDRESS"
    ),
    "checkpoint_every": _Option(
        None, _at_least_one, _A_COUNT, "N", "keep a checkpoint each N steps besides best and last"
    ),
    "evaluate_every": _Option(
        None, _at_least_one, _A_COUNT, "N", "steps between points of the curves; none: the configuration's validations"
    ),
    "output": _Option(None, str, "", "DIR", "where everything goes; none: runs/compare/NAME of the configuration"),
    "metrics": _Option((), name_list, "names", "NAMES", "test metrics to compare; none: total variation and NLL"),
}


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Args:
        args: the arguments after ``compare``.

    Returns:
        The options of ``OPTIONS`` as they were written, None where they are not stated; ``retry_failed``, ``plan``,
        ``only`` and ``report_only``; ``fit``, the arguments for fit's own parser, in order.

    Raises:
        ValueError: a flag that is incomplete, or of an earlier version and gone.
    """
    parser = _parser()
    known = parser._option_string_actions
    args = [_renamed(arg) if arg.startswith("--") else arg for arg in args]
    for flag in dict.fromkeys(arg.partition("=")[0] for arg in args):
        if flag == "--vectorize":
            raise ValueError(_VECTORIZE_IS_GONE)
        if flag.startswith("--") and flag not in known:
            parser.add_argument(flag, action=_ForFit, dest="fit", nargs="?")
    return parser.parse_args(args)


def from_options(parsed: argparse.Namespace) -> tuple[dict[str, Any], PairedComparison]:
    """The comparison of a command line and the configuration's own ``compare`` mapping.

    Args:
        parsed: the command line.

    Returns:
        All options by name, and the comparison; nothing is written yet.

    Raises:
        ValueError: an option that is not known or not valid.
        FileNotFoundError: there is no such configuration.
    """
    fit: list[str] = parsed.fit
    first = next((place for place, arg in enumerate(fit) if arg.startswith("--config=")), None)
    if first is None:
        raise ValueError("--config is missing: give the configuration of a fit.")
    path = Path(fit[first].removeprefix("--config="))
    config = read_config(path, fit if first else fit[1:])  # what stands before a configuration gives way to it
    own = {_renamed(name): value for name, value in (config.pop("compare", None) or {}).items()}
    if "vectorize" in own:
        raise ValueError(f"{path}: compare.{_VECTORIZE_IS_GONE}")
    if unknown := sorted(set(own) - set(OPTIONS)):
        raise ValueError(f"{path}: compare has no option {unknown[0]!r}; its options are {', '.join(OPTIONS)}.")
    options = {name: _converted(name, getattr(parsed, name), own.get(name)) for name in OPTIONS}
    if options["steps"] is None:
        options["steps"] = own_steps(config, functools.partial(make_data, config))
    shared = {name: options[name] for name in options.keys() & Settings.__dataclass_fields__.keys()}
    settings = Settings(config=config, arms=options["parameterizations"], **shared)
    directory = Path(options["output"] or Path("runs") / "compare" / path.stem)
    return options, PairedComparison(settings, directory, path.stem, metrics=options["metrics"])


def _converted(name: str, *given: Any) -> Any:
    """The first of some values that is given, as its option has it."""
    option = OPTIONS[name]
    value = next((value for value in (*given, option.default) if value is not None), None)
    try:
        return None if value is None else option.convert(value)
    except (TypeError, ValueError) as error:
        if not option.wanted:  # it says it better
            raise
        raise ValueError(f"{name}={value!r}: give {option.wanted}.") from error


def _renamed(text: str) -> str:
    for old, new in _RENAMED.items():
        if text.partition("=")[0].removeprefix("--") == old:
            sys.stderr.write(f"lightning-lift: warning: {old} is called {new} now.\n")
            return text.replace(old, new, 1)
    return text


class _ForFit(argparse.Action):
    """Leave a flag to fit's own parser."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string == "--set":  # of earlier versions
            sys.stderr.write("lightning-lift: warning: --set KEY=VALUE is spelled --KEY=VALUE now.\n")
            arguments = [f"--{values}"]
        else:
            arguments = [str(option_string) if values is None else f"{option_string}={values}"]
        namespace.fit = [*namespace.fit, *arguments]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage: the command line prints one line."""
        raise ValueError(f"compare: {message} (lightning-lift compare --help lists the options).")


def _parser() -> _Parser:
    parser = _Parser(prog="lightning-lift compare", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("--config", action=_ForFit, dest="fit", default=[], metavar="FILE",
        help="configuration of a fit; further ones are laid over it")  # fmt: skip
    for name, option in OPTIONS.items():
        add(f"--{name}", metavar=option.metavar, help=f"{option.help} (default: {option.default or 'none'})")
    add("--retry_failed", action="store_true", help="do failed runs again (default: they are kept and counted)")
    add("--plan", action="store_true", help="print the runs, write plan.jsonl and slurm_array.sh, run nothing")
    add("--only", type=int, metavar="INDEX", help="do one line of plan.jsonl, for schedulers")
    add("--report_only", action="store_true", help="write the report of what is there")
    return parser
