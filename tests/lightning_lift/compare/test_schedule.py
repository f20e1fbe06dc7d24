"""A configuration's own number of steps, its looks, and schedules of another length."""

from typing import Any, NoReturn

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_lift.compare.schedule import look_interval, own_steps, scaled_scheduler
from lightning_lift.datamodules import GumbelDataModule

SCHEDULERS = "torch.optim.lr_scheduler"


def not_asked() -> NoReturn:
    raise AssertionError("the settings say it already")


def fixed() -> GumbelDataModule:
    return GumbelDataModule(num_train=100, batch_size=16)  # 6 whole batches


def config(data: dict[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    return {"trainer": {"max_epochs": None, "max_steps": -1, **trainer}, "data": {"init_args": data or {}}}


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        ({"max_steps": 70}, 70),
        ({"max_steps": 70, "max_epochs": -1}, 70),
        ({"max_epochs": 3}, 30),
        ({"max_epochs": 3, "max_steps": 12}, 12),
        ({"max_epochs": 3, "accumulate_grad_batches": 4}, 9),
        ({"max_epochs": 3, "limit_train_batches": 5}, 15),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 15),
        ({"max_epochs": 3, "overfit_batches": 2}, 6),
    ],
)
def test_own_steps_of_data_drawn_fresh(trainer: dict[str, Any], steps: int) -> None:
    assert own_steps(config({"batches_per_epoch": 10}, **trainer), not_asked) == steps


def test_own_steps_of_a_fixed_set_are_asked_of_the_data() -> None:
    given = {"num_train": 100, "batches_per_epoch": 10}
    assert own_steps(config(given, max_epochs=2), fixed) == 12
    assert own_steps(config(given, max_steps=70), fixed, epochs=1) == 6


def test_a_fit_without_end_needs_steps() -> None:
    for trainer in ({}, {"max_epochs": -1}):
        with pytest.raises(ValueError, match="give --steps"):
            own_steps(config(**trainer), not_asked)


def test_data_without_a_length_need_steps() -> None:
    class Endless(L.LightningDataModule):
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(torch.utils.data.IterableDataset())  # type: ignore[abstract]

    with pytest.raises(ValueError, match="Endless does not say"):
        own_steps(config(max_epochs=2), Endless)


@pytest.mark.parametrize(
    ("trainer", "every"),
    [
        ({"check_val_every_n_epoch": 1, "val_check_interval": None}, 10),  # 300 // 30: more often than each 50
        ({"check_val_every_n_epoch": 1, "val_check_interval": 0.1}, 5),
        ({"check_val_every_n_epoch": None, "val_check_interval": 4}, 4),
        ({"check_val_every_n_epoch": None, "val_check_interval": 8, "accumulate_grad_batches": 2}, 4),
        ({"check_val_every_n_epoch": None, "val_check_interval": 100}, 10),
        ({"check_val_every_n_epoch": None, "val_check_interval": "00:01:00:00"}, 10),
    ],
)
def test_looks(trainer: dict[str, Any], every: int) -> None:
    assert look_interval(trainer, 300, lambda: 50) == every


def test_a_short_run_has_a_look_each_step() -> None:
    assert look_interval({"check_val_every_n_epoch": None, "val_check_interval": 100}, 5, not_asked) == 1


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("CosineAnnealingLR", {"T_max": 300, "eta_min": 0.1}, {"T_max": 30, "eta_min": 0.1}),
        ("OneCycleLR", {"total_steps": 300, "pct_start": 0.3}, {"total_steps": 30, "pct_start": 0.3}),
        ("StepLR", {"step_size": 100, "gamma": 0.1}, {"step_size": 10, "gamma": 0.1}),
        ("MultiStepLR", {"milestones": [100, 250], "gamma": 0.1}, {"milestones": [10, 25], "gamma": 0.1}),
        ("ExponentialLR", {"gamma": 0.99}, {"gamma": 0.99**10}),
        ("ConstantLR", {"total_iters": 4}, {"total_iters": 1}),
    ],
)
def test_lengths_scale_with_the_steps(name: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    scheduler = {"class_path": f"{SCHEDULERS}.{name}", "init_args": given}
    before = {**scheduler, "init_args": dict(given)}
    scaled = scaled_scheduler(scheduler, 30, lambda: 300)
    assert isinstance(scaled, dict) and scaled["init_args"].keys() == wanted.keys()
    for key, value in wanted.items():
        assert scaled["init_args"][key] == pytest.approx(value)
    assert scheduler == before and scaled_scheduler(scheduler, 300, lambda: 300) == scheduler


def test_a_scheduler_without_lengths_stays_and_nothing_is_asked() -> None:
    plateau = {"class_path": f"{SCHEDULERS}.ReduceLROnPlateau", "init_args": {"patience": 10}}
    assert scaled_scheduler(plateau, 30, not_asked) == plateau
