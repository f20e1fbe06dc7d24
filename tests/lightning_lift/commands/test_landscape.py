"""``lightning-lift landscape`` on small real trainings."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_lift.cli import main
from lightning_lift.commands import _landscape_grid
from lightning_lift.commands._landscape_runs import find_runs, load_module, load_rows
from lightning_lift.commands.landscape import load_trajectory
from lightning_lift.compare import RecordStore, RunSpec
from lightning_lift.compare.run import run

PARAMETERIZATIONS = {
    "pgd": ("ProjectedGradient", {}),
    "direct": ("DirectSoftplus", {}),
    "lift": ("Lift", {"body_widths": [5, 4]}),
}


def spec(arm: str, seed: int) -> RunSpec:
    name, init_args = PARAMETERIZATIONS[arm]
    network = {
        "class_path": "lightning_lift.networks.ICNN",
        "init_args": {"widths": [6, 5], "weight_init": "folded_normal", "strong_convexity": 0.02},
    }
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    config: dict[str, Any] = {
        "seed_everything": seed,
        "model": {
            "class_path": "lightning_lift.modules.LogConcaveEBM",
            "init_args": {
                "network": network,
                "parameterization": {"class_path": f"lightning_lift.parameterizations.{name}", "init_args": init_args},
                "learning_rate": 0.02,
            },
        },
        "data": {
            "class_path": "lightning_lift.datamodules.GumbelDataModule",
            "init_args": {
                "batch_size": 32,
                "batches_per_epoch": 12,
                "num_val": 200,
                "num_test": 100,
                "num_calibration": 200,
                "data_seed": seed,
            },
        },
        "trainer": {"accelerator": "cpu", "max_steps": 12, "num_sanity_val_steps": 0, **quiet},
    }
    return RunSpec(arm, "final", None, seed, 12, config)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison")
    for arm in PARAMETERIZATIONS:
        record = run(spec(arm, 3), directory, checkpoint_every=3)
        assert record.outcome == "finished", record.error
        RecordStore(directory).write(record)
    return directory


def command(comparison: Path, output: Path, *options: str) -> None:
    small = ["--points", "5", "--rows", "100", "--jobs", "1"]
    main(["landscape", str(comparison), *small, "--output", str(output), *options])


def arrays(output: Path) -> dict[str, np.ndarray]:
    with np.load(output / "landscape.npz") as file:
        return dict(file)


def test_a_comparison_gives_both_panels(comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(comparison, tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("weights: losses in nats", "lift: losses in nats", "wrote landscape.png", "is negative"):
        assert part in printed
    found = arrays(tmp_path)
    for panel, arms in (("weights", PARAMETERIZATIONS), ("lift", ["lift"])):
        assert found[f"{panel}_loss"].shape == (5, 5)
        assert np.isfinite(found[f"{panel}_loss"]).any()
        for arm in arms:
            assert found[f"{panel}_trajectory_{arm}"].shape == (5, 2)  # steps 0, 3, 6, 9, 12
    # Both ends of the first plane lie in it, at 0 and on the first axis; all arms start in one point.
    np.testing.assert_allclose(found["weights_trajectory_lift"][-1], 0.0, atol=1e-6)
    np.testing.assert_allclose(found["weights_trajectory_pgd"][-1, 1], 0.0, atol=1e-5)
    starts = [found[f"weights_trajectory_{arm}"][0] for arm in PARAMETERIZATIONS]
    np.testing.assert_allclose(starts[1:], [starts[0]] * 2, atol=1e-4)
    assert (tmp_path / "landscape.png").stat().st_size > 10_000


def test_the_ends_have_the_losses_of_their_runs(comparison: Path, tmp_path: Path) -> None:
    """The slice at an end in its plane is the run's own validation loss, by another way."""
    command(comparison, tmp_path, "--rows", "200")
    found = arrays(tmp_path)
    store = RecordStore(comparison)
    for record in store.all():
        assert float(found[f"weights_end_loss_{record.arm}"]) == pytest.approx(
            record.metrics["last"]["val/nll"], abs=1e-4
        )


@pytest.mark.slow
def test_interrupted_and_resumed_equals_uninterrupted(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(comparison, tmp_path / "whole")
    values = _landscape_grid._values
    calls = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(len(arguments[2]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return values(*arguments)

    monkeypatch.setattr(_landscape_grid, "_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command(comparison, tmp_path / "parts")
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["slice_weights.npz"]
    with np.load(tmp_path / "parts" / "slice_weights.npz") as partial:
        assert partial["done"].sum() == 16
    command(comparison, tmp_path / "parts")
    assert calls == [16, 9, 9, 16, 9]  # the 16 points of the first call are not evaluated again
    whole, parts = arrays(tmp_path / "whole"), arrays(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], parts[name])
    command(comparison, tmp_path / "parts")
    assert len(calls) == 5
    with pytest.raises(SystemExit):
        command(comparison, tmp_path / "parts", "--points", "4")  # another grid does not go on from this one


@pytest.mark.slow
def test_processes_give_the_same_numbers(comparison: Path, tmp_path: Path) -> None:
    command(comparison, tmp_path / "one")
    command(comparison, tmp_path / "two", "--jobs", "2")
    one, two = arrays(tmp_path / "one"), arrays(tmp_path / "two")
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_runs_by_directory(comparison: Path, tmp_path: Path) -> None:
    folders = {arm: comparison / "checkpoints" / spec(arm, 3).key for arm in PARAMETERIZATIONS}
    options = ["--through", "B,A", "--points", "3", "--rows", "50", "--jobs", "1", "--output", str(tmp_path)]
    main(["landscape", f"A={folders['direct']}", f"B={folders['pgd']}", *options])
    found = arrays(tmp_path)
    assert "lift_loss" not in found  # no lift, no second panel
    np.testing.assert_allclose(found["weights_trajectory_B"][-1], 0.0, atol=1e-6)


def test_trajectories_are_of_the_weights_under_evaluation(comparison: Path) -> None:
    (found,) = [t for t in find_runs([str(comparison)]) if t.label == "lift"]
    trajectory = load_trajectory(found)
    assert found.steps == (0, 3, 6, 9, 12)
    assert trajectory.is_lift
    assert bool((trajectory.weights.diff(dim=0).norm(dim=1) > 0.0).all())


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(["landscape", *arguments])
    return capsys.readouterr().err


def test_errors_are_one_clear_line(comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lift = comparison / "checkpoints" / spec("lift", 3).key
    assert "no such directory" in fails(capsys, str(tmp_path / "none"))
    assert "has 0 checkpoints" in fails(capsys, str(tmp_path))
    assert "--seed 9" in fails(capsys, str(comparison), "--seed", "9")
    assert "--points 1" in fails(capsys, str(comparison), "--points", "1")
    assert "give both, or name two runs" in fails(capsys, str(lift), "--output", str(tmp_path))
    assert "give two labels of" in fails(capsys, str(comparison), "--through", "lift,other")
    assert "two runs are called" in fails(capsys, str(lift), str(lift))
    (tmp_path / "few").mkdir()
    shutil.copy(lift / "last.ckpt", tmp_path / "few")
    assert "has 1 checkpoints" in fails(capsys, str(tmp_path / "few"))
    torch.save({"state_dict": {}}, tmp_path / "few" / "other.ckpt")
    assert "no checkpoint of lightning_lift" in fails(capsys, str(tmp_path / "few"))
    (tmp_path / "slice_weights.npz").write_bytes(b"cut off")
    small = ("--points", "2", "--rows", "10", "--jobs", "1", "--output", str(tmp_path))
    assert "slice_weights.npz cannot be read" in fails(capsys, str(comparison), *small)
    assert not list(tmp_path.glob("*.png"))


def test_data_of_another_dimension_are_refused(comparison: Path) -> None:
    found = find_runs([str(comparison)])[0]
    with pytest.raises(ValueError, match="has 2 columns and the run 1"):
        load_rows({"class_path": "TwoSpiralsDataModule"}, load_module(found.checkpoints[-1]), 10)
