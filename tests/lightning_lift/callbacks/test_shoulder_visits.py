from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lift.callbacks import ShoulderOccupancy, ShoulderVisits
from lightning_lift.parameterizations import ProjectedGradient
from tests.lightning_lift.callbacks.runs import (
    PARAMETERIZATIONS,
    GoesOn,
    break_,
    events,
    flat,
    make_trainer,
    small_data,
    small_model,
)

LOGS = Path("logs") / "a"


def test_it_sees_what_shoulder_occupancy_sees(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"], lr=0.3)
    callbacks = [ShoulderVisits(2, 10, absorbed_after=6, num_trajectories=5), ShoulderOccupancy(2)]
    make_trainer(tmp_path, callbacks, max_steps=20).fit(model, small_data())
    log = events(tmp_path)
    occupancy = [e.value for e in log.Scalars("shoulder/occupancy")]
    file = np.load(tmp_path / LOGS / "shoulder_visits.npz")
    assert file["steps"].tolist() == list(range(0, 21, 2))
    np.testing.assert_allclose(file["occupancy"], occupancy, rtol=1e-6)
    assert file["latents"].shape == (11, 5)
    final = model.parameterization.latent().detach()[torch.tensor(file["coordinates"])]
    np.testing.assert_allclose(file["latents"][-1], final.numpy(), rtol=1e-6)
    assert [e.step for e in log.Scalars("shoulder_visits/absorbed")] == [10, 20]
    assert log.Scalars("shoulder_visits/absorbed")[-1].value == pytest.approx(float(file["absorbed"]))
    assert 0.0 < file["absorbed"] <= occupancy[-1]
    summary = callbacks[0].counter.summary(6)
    assert summary.entries > 10
    assert file["entries"] == summary.entries
    np.testing.assert_array_equal(file["survival"], summary.survival.survival.numpy())
    assert set(file["lengths"].tolist()) <= set(range(2, 21, 2))
    assert (tmp_path / LOGS / "figures" / "shoulder_visits.png").stat().st_size > 10_000
    assert "shoulder_visits" in log.Tags()["images"]


@pytest.mark.parametrize("name", ["lift", "pgd"])
def test_a_resume_goes_on_exactly(name: str, tmp_path: Path) -> None:
    def callback() -> ShoulderVisits:
        return ShoulderVisits(3, 50, num_trajectories=2)

    whole = small_model(PARAMETERIZATIONS[name], lr=0.1)
    make_trainer(tmp_path / "whole", [callback()], max_steps=20).fit(whole, small_data())
    half = small_model(PARAMETERIZATIONS[name], lr=0.1)
    trainer = make_trainer(tmp_path / "first", [callback()], max_steps=10)
    trainer.fit(half, small_data())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    trainer = make_trainer(tmp_path / "second", [callback()], max_steps=20)
    trainer.fit(half, small_data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    group = "zero_visits" if name == "pgd" else "shoulder_visits"
    one, two = (np.load(tmp_path / run / LOGS / f"{group}.npz") for run in ("whole", "second"))
    assert one["steps"].tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert set(one.files) == set(two.files)
    for key in one.files:
        np.testing.assert_array_equal(one[key], two[key], err_msg=key)
    assert torch.equal(flat(whole), flat(half))


def test_projected_weights_go_under_a_name_of_their_own(tmp_path: Path) -> None:
    model = small_model(partial(ProjectedGradient, floor=1e-3))
    make_trainer(tmp_path, [ShoulderVisits(5)], max_steps=10).fit(model, small_data())
    tags = events(tmp_path).Tags()["scalars"]
    assert "zero_visits/absorbed" in tags
    assert not [tag for tag in tags if tag.startswith("shoulder")]
    file = np.load(tmp_path / LOGS / "zero_visits.npz")
    weights = model.parameterization.latent().detach()
    assert file["occupancy"][-1] == (weights == torch.tensor(1e-3)).double().mean().item() > 0.0


def test_a_second_training_starts_anew_and_a_diverged_model_is_said(tmp_path: Path) -> None:
    callback = ShoulderVisits(5, num_trajectories=0)
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback], max_steps=10).fit(small_model(), small_data())
        assert callback.counter.num_looks == 3
    model = small_model(PARAMETERIZATIONS["direct"])
    break_(model)
    with pytest.warns(UserWarning, match="diverged"):
        make_trainer(tmp_path / "c", [callback, GoesOn()], max_steps=5, limit_val_batches=0).fit(model, small_data())
    assert not (tmp_path / "c" / LOGS / "shoulder_visits.npz").exists()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"every_n_steps": 0},
        {"report_every_n_steps": 0},
        {"slope": 0.0},
        {"absorbed_after": -1},
        {"num_trajectories": -1},
        {"coordinates": -1},
        {"seed": -1},
    ],
)
def test_bad_arguments_are_refused(kwargs: dict[str, int]) -> None:
    ((name, value),) = kwargs.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        ShoulderVisits(**kwargs if name != "coordinates" else {name: [3, value]})


def test_chosen_coordinates(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"])
    make_trainer(tmp_path, [ShoulderVisits(5, coordinates=[7, 0])], max_steps=5).fit(model, small_data())
    file = np.load(tmp_path / LOGS / "shoulder_visits.npz")
    assert file["coordinates"].tolist() == [0, 7]
    np.testing.assert_allclose(file["latents"][-1], model.parameterization.latent().detach()[[0, 7]].numpy())
    with pytest.raises(ValueError, match="72 constrained weights"):
        make_trainer(tmp_path, [ShoulderVisits(5, coordinates=[72])], max_steps=5).fit(model, small_data())
