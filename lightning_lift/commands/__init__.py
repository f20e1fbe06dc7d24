"""Commands of ``lightning-lift`` beside fit, validate, test and predict: one file each, with ``main(args)``."""

import sys
from collections.abc import Sequence

# By module name: a command is imported when it is called, so that fit does not wait for what only a report needs.
COMMANDS = {
    "rescale": "lightning_lift.commands.rescale",
    "export": "lightning_lift.commands.export",
    "compare": "lightning_lift.commands.compare",
    "escape": "lightning_lift.commands.escape",
    "landscape": "lightning_lift.commands.landscape",
    "configs": "lightning_lift.commands.configs",
}


def underscored(args: Sequence[str]) -> list[str]:
    """Arguments whose flags are spelled with underscores, as Lightning's are; an old spelling with dashes is told.

    ``lightning_lift.cli.main`` calls it for every command, so a command's own parser knows underscores only.

    Args:
        args: the arguments, such as ``--tuning-seeds=3``.
    """
    return [_underscored(arg) for arg in args]


def _underscored(arg: str) -> str:
    flag = arg.partition("=")[0].partition(".")[0]
    if not flag.startswith("--") or "-" not in flag[2:]:
        return arg
    name = "--" + flag[2:].replace("-", "_")
    sys.stderr.write(f"lightning-lift: warning: {flag} is spelled {name} now.\n")
    return name + arg.removeprefix(flag)
