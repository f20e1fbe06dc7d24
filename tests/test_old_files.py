"""Files that version 0.1 wrote before the data modules moved; ``fixtures/expected.json`` holds what it made of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_lift.cli import LiftCLI
from lightning_lift.commands._landscape_runs import find_runs, load_rows
from lightning_lift.compare import RecordStore
from lightning_lift.compare.directory import read_settings
from lightning_lift.compare.report import runs_frame
from lightning_lift.datamodules import ConvAutoencoder, GumbelDataModule
from lightning_lift.modules import ConvexModule, ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.modules.checkpoints import load_module

FOLDER = Path(__file__).parent / "fixtures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())
QUIET = ["--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]


def values(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(EXPECTED[name]["points"]), torch.tensor(EXPECTED[name]["values"])


@pytest.mark.parametrize(
    ("name", "cls"), [("ebm_lift.ckpt", LogConcaveEBM), ("flow_actnorm.ckpt", ConvexPotentialFlow)]
)
def test_densities_are_what_they_were(name: str, cls: type[ConvexModule]) -> None:
    points, known = values(name)
    for module in (load_module(FOLDER / name), cls.load_from_checkpoint(FOLDER / name, weights_only=True)):
        assert isinstance(module, cls)
        found = module.freeze().log_prob(points)
        torch.testing.assert_close(found, known.to(found), rtol=1e-5, atol=1e-5)


def test_the_autoencoder_of_the_old_data_package_is_ours() -> None:
    points, known = values("autoencoder.ckpt")
    for module in (
        load_module(FOLDER / "autoencoder.ckpt"),
        ConvAutoencoder.load_from_checkpoint(FOLDER / "autoencoder.ckpt", weights_only=True),
    ):
        assert type(module) is ConvAutoencoder
        torch.testing.assert_close(module.eval().encode(points), known, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        ("LogConcaveEBM", ["GumbelDataModule", "--data.num_test=64"], "ebm_lift.ckpt"),
        (
            "ConvAutoencoder",
            ["MNISTDataModule", "--data.source=digits", "--data.standardize=false"],
            "autoencoder.ckpt",
        ),
    ],
)
def test_the_command_line_tests_them(model: str, data: list[str], name: str) -> None:
    arguments = ["test", "--model", model, "--data", *data, "--ckpt_path", str(FOLDER / name), *QUIET]
    tested = LiftCLI(arguments).trainer.callback_metrics
    assert all(torch.isfinite(value) for value in tested.values())
    assert "test/loss" in tested or "test/nll" in tested


def test_the_landscape_finds_their_data(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint = torch.load(FOLDER / "ebm_lift.ckpt", weights_only=True)
        torch.save(checkpoint | {"global_step": step}, tmp_path / f"{step}.ckpt")
    (run,) = find_runs([str(tmp_path)])
    assert run.data["class_path"] == "lightning_lift.datamodules.GumbelDataModule"
    module = load_module(run.checkpoints[0])
    assert isinstance(module, ConvexModule)
    assert load_rows(run.data, module, 10).validation.shape == (10, 1)


def test_a_vectorised_comparison_is_read(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "compare", tmp_path / "compare")
    directory = tmp_path / "compare"
    assert read_settings(directory)["name"] == "ebm_gumbel"
    records = RecordStore(directory).all()
    assert {(r.arm, r.seed) for r in records} == {(arm, seed) for arm in ("pgd", "direct") for seed in (0, 1)}
    assert {record.engine for record in records} == {"vectorized"}
    assert len(runs_frame(records)) == 4
    (record,) = [record for record in records if record.key == "final-pgd-lrconfig-steps10-seed000"]
    assert record.metrics["last"]["test/nll"] == 1.9098471403121948
    module = load_module(directory / record.checkpoints["last"])
    assert isinstance(module, LogConcaveEBM)
    # its own test: the number in the record is the mean over the seed's first 64 test rows
    data = GumbelDataModule(batch_size=32, num_test=64, data_seed=0)
    data.setup("test")
    (rows,) = data.test_dataloader()
    assert -module.freeze().log_prob(rows).mean().item() == pytest.approx(1.9098471403121948, abs=1e-4)
