"""What every callback keeps to: names of its own, states of its own, and nothing written where nothing is wanted."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_lift.callbacks import (
    CrossCovariance,
    DensityFigure,
    FlowFigure,
    LatentImages,
    LatentStep,
    PathConditioning,
    RunSummary,
    SampleDistance,
    ShoulderOccupancy,
    ShoulderVisits,
    TrailingCrossCovariance,
    UpdateNoise,
    WeightHistograms,
)
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, make_trainer, small_data, small_model

# Each kind with two settings that differ in one argument, never in the cadence.
TWINS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (ShoulderOccupancy, {"every_n_steps": 2}, {"slope": 0.2}),
    (LatentStep, {"every_n_steps": 2}, {"every_n_steps": 4}),
    (WeightHistograms, {"every_n_steps": 5}, {"every_n_steps": 4}),
    (CrossCovariance, {"every_n_steps": 5, "num_batches": 4, "num_permutations": 5}, {"num_permutations": 6}),
    (UpdateNoise, {"every_n_steps": 5, "num_batches": 3}, {"num_batches": 4}),
    (TrailingCrossCovariance, {"every_n_steps": 8, "window": 5, "num_permutations": 5}, {"detrend": False}),
    (ShoulderVisits, {"every_n_steps": 2, "num_trajectories": 1}, {"absorbed_after": 3}),
    (DensityFigure, {"every_n_steps": 1000}, {"every_n_steps": 2000}),
    (FlowFigure, {"num_samples": 10}, {"num_samples": 20}),
    (LatentImages, {"num_images": 4}, {"seed": 3}),
    (SampleDistance, {"num_samples": 8}, {"num_samples": 16}),
    (PathConditioning, {"method": "enorm"}, {"max_sweeps": 3}),
]


def pairs(*kinds: Any) -> list[L.Callback]:
    chosen = [(kind, one, one | other) for kind, one, other in TWINS if not kinds or kind in kinds]
    return [kind(**settings) for kind, *both in chosen for settings in both]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_lift.callbacks.density_figure._POINTS", {1: 31})


def test_two_of_a_kind_keep_their_rows_tags_and_files_apart(tmp_path: Path) -> None:
    readings = (CrossCovariance, UpdateNoise, TrailingCrossCovariance)
    kinds = (*readings, ShoulderOccupancy, LatentStep, WeightHistograms, ShoulderVisits, DensityFigure, SampleDistance)
    model, data = small_model(), small_data()
    trainer = make_trainer(tmp_path, pairs(*kinds), max_steps=10, limit_val_batches=0)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    log, folder = events(tmp_path), tmp_path / "logs" / "a"
    scalars = set(log.Tags()["scalars"])
    tags = ("cross_covariance{}/slack/trace", "trailing_cross_covariance{}/slack/trace", "update_noise{}/random/total")
    for tag in (*tags, "shoulder{}/occupancy", "latent{}/step", "test/energy_distance{}"):
        assert {tag.format(""), tag.format("_2")} <= scalars
    first, second = (log.Scalars(f"shoulder{n}/occupancy")[0].value for n in ("", "_2"))
    assert first < second, "a shoulder of slope 0.2 is wider than one of 0.05"
    assert [e.step for e in log.Scalars("latent/step")] == [2, 4, 6, 8, 10]
    assert [e.step for e in log.Scalars("latent_2/step")] == [4, 8]
    assert any(tag.startswith("weights_2/") for tag in log.Tags()["histograms"])
    assert {"density/val", "density_2/val", "shoulder_visits", "shoulder_visits_2"} <= set(log.Tags()["images"])
    for name in ("cross_covariance", "update_noise", "trailing_cross_covariance"):
        tables = [(folder / f"{name}{number}.csv").read_text().splitlines() for number in ("", "_2")]
        assert len(tables[0]) == len(tables[1]) > 2
        assert tables[0] != tables[1]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in (".png", ".npz")}
    assert found == {
        f"{stem}{number}{rest}"
        for number in ("", "_2")
        for stem, rest in (
            ("shoulder_visits", ".npz"),
            ("figures/shoulder_visits", ".png"),
            ("figures/density", "_step_00000010.png"),
            ("figures/density", "_test.png"),
        )
    }


def test_every_setting_is_in_the_state_key() -> None:
    callbacks = pairs()
    assert len({callback.state_key for callback in callbacks}) == len(callbacks) == 2 * len(TWINS)


def test_two_of_a_kind_resume_with_their_own_states(tmp_path: Path) -> None:
    def both() -> list[L.Callback]:
        return [ShoulderVisits(2, absorbed_after=after, num_trajectories=0) for after in (3, 5)][:: 1 if first else -1]

    first = True
    trainer = make_trainer(tmp_path, both(), loggers=False, max_steps=6)
    trainer.fit(small_model(), small_data())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    stored = torch.load(tmp_path / "half.ckpt", weights_only=True)["callbacks"]
    first = False  # in the other order
    again = both()
    make_trainer(tmp_path, again, loggers=False, max_steps=6).fit(
        small_model(), small_data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True
    )
    for callback in again:
        assert callback.state_dict()["steps"] == stored[callback.state_key]["steps"] == [0, 2, 4, 6]


def test_a_state_of_version_0_1_is_found_under_its_shorter_key() -> None:
    # That version left max_sweeps and two more settings out: a resumed run would be rescaled anew.
    callback = PathConditioning("enorm", every_n_epochs=2, max_sweeps=7)
    old = {"PathConditioning{'method': 'enorm', 'every_n_epochs': 2}": {"last_epoch": 4}}
    other = {"PathConditioning{'method': 'pathcond', 'every_n_epochs': 2}": {"last_epoch": 9}}
    checkpoint: dict[str, Any] = {"callbacks": other | old}
    callback.on_load_checkpoint(None, None, checkpoint)  # type: ignore[arg-type]
    assert checkpoint["callbacks"][callback.state_key] == {"last_epoch": 4}


@pytest.mark.parametrize("kwargs", [{"fast_dev_run": 2}, {"loggers": False, "max_steps": 10}])
@pytest.mark.parametrize("name", ["lift", "pgd"])
def test_nothing_is_written_where_nothing_is_wanted(
    name: str, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks = [RunSummary(), *(callback for callback in pairs() if not isinstance(callback, PathConditioning))]
    model, data = small_model(PARAMETERIZATIONS[name]), small_data()
    trainer = make_trainer(tmp_path, callbacks, **kwargs)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_a_log_folder_in_memory_has_figures_in_the_logger_and_says_why_there_are_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks = [RunSummary(), *pairs(CrossCovariance, ShoulderVisits, DensityFigure)]
    logger = TensorBoardLogger("memory://diag", name="logs", version="a")
    trainer = make_trainer(tmp_path, callbacks, logger, max_steps=5)
    with pytest.warns(UserWarning, match="memory://diag/logs/a is not on this machine's file system"):
        trainer.fit(small_model(), small_data())
    assert list(tmp_path.iterdir()) == []
    assert any("tfevents" in path for path in MemoryFileSystem.store)


def test_a_log_folder_by_file_address_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    logger = TensorBoardLogger(f"file://{tmp_path}/there", name="logs", version="a")
    callbacks = [RunSummary(), *pairs(CrossCovariance, ShoulderVisits, DensityFigure), ModelCheckpoint()]
    trainer = make_trainer(tmp_path, callbacks, logger, max_steps=5, enable_checkpointing=True)
    trainer.fit(small_model(), small_data())
    assert list((tmp_path / "here").iterdir()) == []
    folder = tmp_path / "there" / "logs" / "a"
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.json", "cross_covariance.csv", "cross_covariance_2.csv", "shoulder_visits.npz"} <= names
    written = json.loads((folder / "metrics.json").read_text())
    assert written["checkpoint_steps"] == {"last": 5}
    figures = written["figures"]
    assert figures == sorted(str(path) for path in folder.rglob("*.png"))
    assert len(figures) == 4
