"""What every test file may use."""

import functools
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.callbacks import FlowFigure, SampleDistance

_SPAWN = ("import subprocess", "WORKER = ", "LocalEngine")  # of a test file that starts processes


@functools.cache
def _group(file: str) -> str:
    """What shares a worker: the tests of a file, for its fixtures, and all that start processes."""
    text = (Path(__file__).parent.parent / file).read_text()
    return "processes" if any(word in text for word in _SPAWN) else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that start processes: they take longest."""
    items.sort(key=lambda item: _group(item.nodeid.partition("::")[0]) != "processes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker one group at a time; xdist's own groups have no effect on pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0])

    return GroupScheduling(config, log)


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write into the working directory, and Lightning reads the command line of the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning-lift"])


@pytest.fixture
def coarse_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of figures and of comparisons with the truth as small as a test needs that asks whether they are there."""
    monkeypatch.setattr("lightning_lift.callbacks.density_figure._POINTS", {1: 101, 2: 31})
    monkeypatch.setattr("lightning_lift.callbacks.flow_figure._POINTS", 31)
    monkeypatch.setattr("lightning_lift.callbacks.flow_figure._LINE_POINTS", 31)
    monkeypatch.setattr(FlowFigure.__init__, "__defaults__", (1000, 64))  # every_n_steps, num_samples
    monkeypatch.setattr(SampleDistance.__init__, "__defaults__", (64,))
    small = {"val": {1: 500, 2: 30}, "test": {1: 500, 2: 30}}
    monkeypatch.setattr("lightning_lift.modules.density._TRUTH_POINTS", small)
