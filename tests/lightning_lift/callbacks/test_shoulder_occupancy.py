import math
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_lift.callbacks import ShoulderOccupancy
from lightning_lift.diagnostics import shoulder_mask, transitions
from lightning_lift.parameterizations import ProjectedGradient
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, make_trainer, small_data, small_model


def test_scalars_are_those_of_the_weights(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"])
    before = shoulder_mask(model.parameterization.readout, model.parameterization.latent())
    with torch.no_grad():
        model.parameterization.raw_latent[:10] = -5.0
    before[:10] = True
    # One step of a rate that throws many latents on the shoulder.
    model.learning_rate = 2.0
    make_trainer(tmp_path, [ShoulderOccupancy(1)], max_steps=1, limit_val_batches=0).fit(model, small_data())
    after = shoulder_mask(model.parameterization.readout, model.parameterization.latent())
    moved = transitions(before, after)
    log = events(tmp_path)
    values = {tag: [e.value for e in log.Scalars(tag)] for tag in log.Tags()["scalars"] if "shoulder" in tag}
    assert values["shoulder/occupancy"] == pytest.approx([before.double().mean().item(), after.double().mean().item()])
    assert values["shoulder/entry_rate"] == pytest.approx([moved.entry_rate])
    assert values["shoulder/exit_rate"] == pytest.approx([moved.exit_rate])
    parts = [f"shoulder/occupancy/{name}" for name in model.parameterization.names]
    sizes = torch.tensor([shape.numel() for shape in model.parameterization.shapes.values()])
    fractions = torch.tensor([values[part][1] for part in parts])
    assert ((fractions * sizes).sum() / sizes.sum()).item() == pytest.approx(values["shoulder/occupancy"][1])
    assert 0.0 < values["shoulder/occupancy"][0] < values["shoulder/occupancy"][1]


@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_projected_weights_go_under_a_tag_of_their_own(floor: float, tmp_path: Path) -> None:
    model = small_model(partial(ProjectedGradient, floor=floor))
    make_trainer(tmp_path, [ShoulderOccupancy(5)], max_steps=10).fit(model, small_data())
    log = events(tmp_path)
    tags = log.Tags()["scalars"]
    assert not [tag for tag in tags if tag.startswith("shoulder")]
    weights = model.parameterization.latent().detach()
    expected = (weights == torch.tensor(floor)).double().mean().item()
    assert expected > 0.0
    assert log.Scalars("zeros/fraction")[-1].value == pytest.approx(expected)
    assert [e.step for e in log.Scalars("zeros/fraction")] == [0, 5, 10]


def test_every_logger_hears_of_it(tmp_path: Path) -> None:
    loggers = [TensorBoardLogger(tmp_path, name="one"), CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "two")]
    make_trainer(tmp_path, [ShoulderOccupancy(10)], loggers).fit(small_model(), small_data())
    for name in ("one", "two"):
        assert len(events(tmp_path / name / "version_0").Scalars("shoulder/occupancy")) == 3
    assert "shoulder/occupancy" in (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()


def test_rates_survive_a_resume(tmp_path: Path) -> None:
    whole = small_model(PARAMETERIZATIONS["direct"], lr=0.3)
    make_trainer(tmp_path / "whole", [ShoulderOccupancy(5)], max_steps=20).fit(whole, small_data())
    half = small_model(PARAMETERIZATIONS["direct"], lr=0.3)
    trainer = make_trainer(tmp_path / "first", [ShoulderOccupancy(5)], max_steps=10)
    trainer.fit(half, small_data())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    torch.load(tmp_path / "half.ckpt", weights_only=True)
    trainer = make_trainer(tmp_path / "second", [ShoulderOccupancy(5)], max_steps=20)
    trainer.fit(half, small_data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    for tag in ("shoulder/occupancy", "shoulder/entry_rate", "shoulder/exit_rate"):
        expected = [(e.step, e.value) for e in events(tmp_path / "whole").Scalars(tag) if e.step > 10]
        assert [(e.step, e.value) for e in events(tmp_path / "second").Scalars(tag)] == expected
        assert expected


def test_a_second_training_has_no_look_before_it(tmp_path: Path) -> None:
    callback = ShoulderOccupancy(10)
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback], max_steps=10).fit(small_model(), small_data())
        assert [e.step for e in events(tmp_path / name).Scalars("shoulder/entry_rate")] == [10]


@pytest.mark.parametrize("slope", [0.0, -1.0, math.nan])
def test_bad_slope_is_refused(slope: float) -> None:
    with pytest.raises(ValueError, match="slope="):
        ShoulderOccupancy(slope=slope)
