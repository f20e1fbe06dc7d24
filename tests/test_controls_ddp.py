"""Two processes on gloo train a control as one process on the joined batch does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WORKER = Path(__file__).parent / "workers" / "controls_worker.py"
ARMS = ["frozen_batch", "independent_batch", "direct_noise", "admm"]


def train(processes: int, folder: Path) -> dict[str, dict[str, Any]]:
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(WORKER), str(processes), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {arm: torch.load(folder / f"{arm}.pt", weights_only=True) for arm in ARMS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("controls")
    return train(1, folder / "one"), train(2, folder / "two")


@pytest.mark.parametrize("arm", ARMS)
def test_two_processes_equal_one_on_the_joined_batch(runs: tuple[dict[str, Any], dict[str, Any]], arm: str) -> None:
    one, two = runs[0][arm], runs[1][arm]
    for name, weight in one["weights"].items():
        error = float((weight - two["weights"][name]).norm() / weight.norm().clamp(min=1e-12))
        assert error <= 1e-5, f"{name}: relative error {error:.2e}"
    assert one["metrics"].keys() == two["metrics"].keys()
    for name, value in one["metrics"].items():
        assert two["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
