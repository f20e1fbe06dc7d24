"""The plan as files for a scheduler."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_lift.compare.engines.slurm import read_run, write_plan
from lightning_lift.compare.records import RunSpec

RUNS = [
    RunSpec("gain=direct:latent_gain=10", "tune", 1e-3, 1000, 10, {"model": {"a": [1, None]}}),
    RunSpec("lift", "final", None, 3, 20, {}),
]


def test_the_runs_come_back(tmp_path: Path) -> None:
    files = write_plan(tmp_path, RUNS)
    assert [path.name for path in files] == ["plan.jsonl", "slurm_array.sh"]
    assert [read_run(tmp_path, i) for i in range(2)] == RUNS
    assert [read_run(tmp_path, i).fingerprint for i in range(2)] == [spec.fingerprint for spec in RUNS]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}\n", b'{"specs": []}\n', b"[1]\n", b"{"])
def test_a_damaged_plan_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"--only 0: .*plan\.jsonl cannot be read \(.*\): write it with --plan again"):
        read_run(tmp_path, 0)


def test_a_line_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--only 0: there is no .*plan\.jsonl: write it with --plan first"):
        read_run(tmp_path, 0)
    write_plan(tmp_path, RUNS)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"--only {index}: .* has the runs 0 to 1"):
            read_run(tmp_path, index)


def test_the_script_calls_the_command_once_an_element(tmp_path: Path) -> None:
    """With a stand-in for the command that prints its arguments."""
    directory = tmp_path / "with space"
    script = write_plan(directory, RUNS)[1]
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
    subprocess.run(["shellcheck", write_plan(tmp_path / "with space", RUNS)[1]], check=True)
