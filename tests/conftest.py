"""What every test file may use."""

from pathlib import Path

import pytest

from lightning_lift.callbacks import FlowFigure, SampleDistance

SPAWN = ("subprocess", "WORKER", "LocalEngine")  # what a test file that starts processes has imported or named


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each file on one worker, for its fixtures, and all that start processes on the same one, at the start."""

    def starts_processes(item: pytest.Item) -> bool:
        return any(hasattr(getattr(item, "module", None), name) for name in SPAWN)

    items.sort(key=lambda item: not starts_processes(item))
    for item in items:
        group = "processes" if starts_processes(item) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


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
