"""The plan as files for a scheduler."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_lift.compare.record import RunSpec
from lightning_lift.compare.slurm import read_task, write_plan
from lightning_lift.compare.tasks import Task

TASKS = [
    Task((RunSpec("gain=direct:latent_gain=10", "tune", 1e-3, 1000, 10, {"model": {"a": [1, None]}}),)),
    Task(tuple(RunSpec("lift", "final", None, seed, 20, {}) for seed in range(3)), vectorized=True),
]


def test_the_tasks_come_back(tmp_path: Path) -> None:
    files = write_plan(tmp_path, TASKS)
    assert [path.name for path in files] == ["plan.jsonl", "slurm_array.sh"]
    assert [read_task(tmp_path, i) for i in range(2)] == TASKS
    assert [[s.fingerprint for s in read_task(tmp_path, i).specs] for i in range(2)] == [
        [s.fingerprint for s in task.specs] for task in TASKS
    ]
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1]


def test_a_line_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--only 0: there is no .*plan\.jsonl: write it with --plan first"):
        read_task(tmp_path, 0)
    write_plan(tmp_path, TASKS)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"--only {index}: .* has the tasks 0 to 1"):
            read_task(tmp_path, index)


def test_the_script_calls_the_command_once_an_element(tmp_path: Path) -> None:
    """With a stand-in for the command that prints its arguments."""
    directory = tmp_path / "with space"
    script = write_plan(directory, TASKS)[1]
    (tmp_path / "lightning-lift").write_text('#!/bin/sh\nprintf "%s|" "$@"; echo "$OMP_NUM_THREADS"\n')
    (tmp_path / "lightning-lift").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"compare|--output|{directory}|--only|1|1\n"
    assert "#SBATCH --array=0-1\n" in script.read_text()
    del environment["SLURM_ARRAY_TASK_ID"]
    outside = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert outside.returncode != 0 and "this script is an element of a job array" in outside.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_script_is_clean(tmp_path: Path) -> None:
    subprocess.run(["shellcheck", write_plan(tmp_path / "with space", TASKS)[1]], check=True)
