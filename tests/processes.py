"""Training in one and in two processes, and what must agree between the two."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def train(worker: Path, processes: int, folder: Path, arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a worker script left for each arm: ``weights`` and ``metrics``.

    Args:
        worker: script, called with the number of processes and the folder.
        processes: of the process group.
        folder: made, for the results.
        arms: names of the worker's results.
    """
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(worker), str(processes), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {arm: torch.load(folder / f"{arm}.pt", weights_only=True) for arm in arms}


def assert_same_weights(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> None:
    """Each tensor within 1e-5 of the other, relative to its norm."""
    for name, weight in one.items():
        error = float((weight - two[name]).norm() / weight.norm().clamp(min=1e-12))
        assert error <= 1e-5, f"{name}: relative error {error:.2e}"
