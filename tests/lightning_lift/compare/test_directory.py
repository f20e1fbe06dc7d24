"""Checkpoints lie whole in their place, or not at all."""

from pathlib import Path

import pytest

from lightning_lift.compare.directory import checkpoint_folder, keep


def test_a_folder_takes_its_place_whole_and_the_one_before_is_gone(tmp_path: Path) -> None:
    for name in ("run", ".run.77", ".runner.77"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "half.ckpt").touch()
    with checkpoint_folder(tmp_path, "run") as folder:
        (folder / "best.ckpt").write_text("x")
        assert {path.name for path in folder.parent.iterdir()} == {"run", folder.name, ".runner.77"}
        kept = keep(folder, tmp_path, "run", {"best": folder / "best.ckpt"})
    assert kept == {"best": "checkpoints/run/best.ckpt"} and (tmp_path / kept["best"]).read_text() == "x"
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"run", ".runner.77"}
    assert not (tmp_path / "checkpoints" / "run" / "half.ckpt").exists()


def test_a_run_that_does_not_end_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checkpoint_folder(tmp_path, "run") as folder:
        (folder / "best.ckpt").touch()
        raise KeyboardInterrupt
    assert not list((tmp_path / "checkpoints").iterdir())
