"""``lightning-lift configs [NAME]``: the configurations that the package ships."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from lightning_lift.shipped import CONFIGS, configurations


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``configs``.

    Raises:
        ValueError: no configuration of that name is shipped, or a file of that name is there already.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-lift configs",
        description="Lists the configurations that the package ships; --config takes each by its name. With a name, "
        "copies that one into the working directory, for you to change: a file of yours wins over a shipped one.",
    )
    parser.add_argument("name", nargs="?", help="configuration to copy, such as ebm_gumbel.yaml")
    name = parser.parse_args(args).name
    if name is None:
        print("\n".join(configurations()))
        return
    if name not in configurations():
        raise ValueError(f"configs {name}: no such configuration; `lightning-lift configs` lists them.")
    target = Path(name)
    if target.exists():
        raise ValueError(f"configs {name}: {target} is there already and stays as it is: move it away first.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CONFIGS / name, target)
    print(f"wrote {target}: --config {name} means this file now")
