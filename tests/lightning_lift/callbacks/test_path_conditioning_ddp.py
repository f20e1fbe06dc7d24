"""Rescaling on two processes is rescaling on one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

WORKER = Path(__file__).parents[2] / "workers" / "path_conditioning_worker.py"


def train(processes: int, path: Path) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(WORKER), str(processes), str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    weights: dict[str, Any] = torch.load(path, weights_only=True)
    return weights


def test_two_processes_equal_one_on_the_joined_batch(tmp_path: Path) -> None:
    one, two = train(1, tmp_path / "one.pt"), train(2, tmp_path / "two.pt")
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-6)
