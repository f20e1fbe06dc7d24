"""Two processes on gloo train as one process on the joined batch does."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes import assert_same_weights, train
from tests.workers.ddp_worker import NAMES

# In a folder of its own: a script puts its folder first on the path.
WORKER = Path(__file__).parent / "workers" / "ddp_worker.py"
WRITTEN = [*NAMES, "rescaled"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    return train(WORKER, 1, folder / "one", WRITTEN), train(WORKER, 2, folder / "two", WRITTEN)


@pytest.mark.parametrize("arm", WRITTEN)
def test_two_processes_equal_one_on_the_joined_batch(runs: tuple[dict[str, Any], dict[str, Any]], arm: str) -> None:
    one, two = runs[0][arm], runs[1][arm]
    assert_same_weights(one["weights"], two["weights"])


@pytest.mark.parametrize("arm", NAMES)
def test_metrics_are_those_of_the_whole_test_set(runs: tuple[dict[str, Any], dict[str, Any]], arm: str) -> None:
    """101 rows do not split evenly: a mean of two means, or a padded shard, would show.

    ``train/loss`` is that of the joined batch too, not the first process's half.
    """
    one, two = runs[0][arm]["metrics"], runs[1][arm]["metrics"]
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert two[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_a_loss_that_is_not_finite_in_one_process_ends_the_fit_in_all(
    runs: tuple[dict[str, Any], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder,) = tmp_path_factory.getbasetemp().glob("ddp0/two")
    errors = {path.name: path.read_text() for path in folder.glob("diverged_*.txt")}
    assert errors.keys() == {"diverged_0.txt", "diverged_1.txt"}
    assert all("at step 8 (learning rate 0.01): the training loss is nan" in error for error in errors.values())
