"""Two processes on gloo train a control as one process on the joined batch does."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes import assert_same_weights, train

WORKER = Path(__file__).parent / "workers" / "controls_worker.py"
ARMS = ["frozen_batch", "independent_batch", "direct_noise", "admm"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("controls")
    return train(WORKER, 1, folder / "one", ARMS), train(WORKER, 2, folder / "two", ARMS)


@pytest.mark.parametrize("arm", ARMS)
def test_two_processes_equal_one_on_the_joined_batch(runs: tuple[dict[str, Any], dict[str, Any]], arm: str) -> None:
    one, two = runs[0][arm], runs[1][arm]
    assert_same_weights(one["weights"], two["weights"])
    assert one["metrics"].keys() == two["metrics"].keys()
    for name, value in one["metrics"].items():
        assert two["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
