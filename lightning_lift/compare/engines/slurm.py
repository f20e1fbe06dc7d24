"""The list of runs for a scheduler: ``plan.jsonl``, one run a line, and an array script for Slurm."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from lightning_lift.compare.records import RunSpec, from_plain
from lightning_lift.files import whole_file

PLAN = "plan.jsonl"
SCRIPT = "slurm_array.sh"


def write_plan(directory: Path, specs: Sequence[RunSpec]) -> list[Path]:
    """Write the runs, and a script that does each of them in one element of a Slurm array.

    Any other scheduler can do the same: element i runs ``lightning-lift compare --output DIRECTORY --only i``.

    Args:
        directory: of the comparison; every machine must see it under this path.
        specs: what is to be done, at least one.

    Returns:
        The files.
    """
    with whole_file(directory / PLAN) as temporary:
        temporary.write_text("".join(json.dumps(dataclasses.asdict(spec)) + "\n" for spec in specs))
    with whole_file(directory / SCRIPT) as temporary:
        temporary.write_text(_script(directory, len(specs)))
    (directory / SCRIPT).chmod(0o755)
    return [directory / PLAN, directory / SCRIPT]


def read_run(directory: Path, index: int) -> RunSpec:
    """The run of one line of the plan.

    Args:
        directory: of the comparison.
        index: of the line, from 0.

    Raises:
        ValueError: there is no plan, it is damaged, or it has no such line.
    """
    path = directory / PLAN
    if not path.is_file():
        raise ValueError(f"--only {index}: there is no {path}: write it with --plan first.")
    try:
        specs = [from_plain(RunSpec, json.loads(line)) for line in path.read_text().splitlines()]
    except ValueError as error:
        raise ValueError(f"--only {index}: {path} cannot be read ({error}): write it with --plan again.") from error
    if not 0 <= index < len(specs):
        raise ValueError(f"--only {index}: {path} has the runs 0 to {len(specs) - 1}.")
    return specs[index]


def _script(directory: Path, count: int) -> str:
    output = shlex.quote(str(directory))
    return f"""#!/usr/bin/env bash
# Submit with sbatch from the folder where --plan was called; sbatch's options on the command line win over those below.
# After the array call the command with --plan again: it lists what then follows (the final runs need the results of the
# tuning runs), for another array. When nothing is missing, call it without --plan for the report. A run whose record
# exists ends at once, so the array may be submitted again. Write no new plan while elements of this one wait.
#SBATCH --job-name=lightning-lift-compare
#SBATCH --array=0-{count - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
set -euo pipefail
export OMP_NUM_THREADS=1
lightning-lift compare --output {output} --only "${{SLURM_ARRAY_TASK_ID:?this script is an element of a job array}}"
"""
