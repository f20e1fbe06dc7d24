"""The list of runs for a scheduler: ``plan.jsonl``, one task a line, and an array script for Slurm."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from lightning_lift.compare.record import RunSpec
from lightning_lift.compare.tasks import Task
from lightning_lift.files import whole_file

PLAN = "plan.jsonl"
SCRIPT = "slurm_array.sh"


def write_plan(directory: Path, tasks: Sequence[Task]) -> list[Path]:
    """Writes the tasks, and a script that does each of them in one element of a Slurm array.

    Any other scheduler can do the same: element i runs ``lightning-lift compare --output DIRECTORY --only i``.

    Args:
        directory: of the comparison; every machine must see it under this path.
        tasks: what is to be done, at least one.

    Returns:
        The files.
    """
    with whole_file(directory / PLAN) as temporary:
        lines = [json.dumps({"index": i, **dataclasses.asdict(task)}) for i, task in enumerate(tasks)]
        temporary.write_text("\n".join(lines) + "\n")
    with whole_file(directory / SCRIPT) as temporary:
        temporary.write_text(_script(directory, len(tasks)))
    (directory / SCRIPT).chmod(0o755)
    return [directory / PLAN, directory / SCRIPT]


def read_task(directory: Path, index: int) -> Task:
    """The task of one line of the plan.

    Args:
        directory: of the comparison.
        index: of the line, from 0.

    Raises:
        ValueError: there is no plan, or it has no such line.
    """
    path = directory / PLAN
    if not path.is_file():
        raise ValueError(f"--only {index}: there is no {path}: write it with --plan first.")
    lines = path.read_text().splitlines()
    if not 0 <= index < len(lines):
        raise ValueError(f"--only {index}: {path} has the tasks 0 to {len(lines) - 1}.")
    plain = json.loads(lines[index])
    return Task(tuple(RunSpec(**spec) for spec in plain["specs"]), plain["vectorized"])


def _script(directory: Path, count: int) -> str:
    output = shlex.quote(str(directory))
    return f"""#!/usr/bin/env bash
# Submit with sbatch from the folder where --plan was called; sbatch's options on the command line win over those below.
# After the array call the command with --plan again: it lists what then follows (the final runs need the results of the
# tuning runs), for another array. When nothing is missing, call it without --plan for the report. A task whose records
# exist ends at once, so the array may be submitted again. Write no new plan while elements of this one wait.
#SBATCH --job-name=lightning-lift-compare
#SBATCH --array=0-{count - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
set -euo pipefail
export OMP_NUM_THREADS=1
lightning-lift compare --output {output} --only "${{SLURM_ARRAY_TASK_ID:?this script is an element of a job array}}"
"""
