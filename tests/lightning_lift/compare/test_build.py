"""A configuration's own number of steps, and widths of a network that is to have as many parameters as another."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_lift.compare.build import matched_widths, own_steps
from lightning_lift.datamodules import GumbelDataModule


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


def size(widths: Sequence[int]) -> int:
    """Parameters of a fully connected network on one input with skips from the input to every layer."""
    inner = sum(before * after for before, after in itertools.pairwise(widths))
    return inner + 2 * sum(widths) + widths[-1] + 1


def settings(widths: Sequence[int]) -> dict[str, Any]:
    return {"model": {"init_args": {"network": {"init_args": {"widths": list(widths)}}}}}


class Counter:
    """Counts parameters, and how often it was asked."""

    def __init__(self, target: int) -> None:
        self.target, self.asked = target, 0

    def __call__(self, config: Mapping[str, Any]) -> int:
        if "model" not in config:
            return self.target
        self.asked += 1
        return size(config["model"]["init_args"]["network"]["init_args"]["widths"])


@pytest.mark.parametrize("own", [(32, 32, 32), (6, 6), (1, 1), (16, 8, 4), (512,) * 5, (64,)])
@pytest.mark.parametrize("target", [10, 50, 500, 5000, 69969, 102_000_000])
def test_no_other_factor_comes_nearer(own: tuple[int, ...], target: int) -> None:
    count = Counter(target)
    widths = matched_widths(settings(own), {}, count)
    assert count.asked <= 12
    miss = abs(size(widths) - target)
    middle = widths[0] / own[0]
    for step in range(-60, 61):
        factor = max(0.0, middle + step / 10 / max(own))
        assert abs(size([max(1, round(factor * width)) for width in own]) - target) >= miss


def test_a_network_that_fits_already_stays() -> None:
    assert matched_widths(settings((7, 9)), {}, Counter(size((7, 9)))) == [7, 9]


def test_the_settings_stay_as_they_are() -> None:
    given = settings((4, 4))
    matched_widths(given, {}, Counter(1000))
    assert given == settings((4, 4))


@pytest.mark.parametrize("widths", [None, []])
def test_a_network_without_widths_cannot_be_scaled(widths: Any) -> None:
    given = {"model": {"init_args": {"network": {"init_args": {"widths": widths}}}}}
    with pytest.raises(ValueError, match="state them"):
        matched_widths(given, {}, Counter(1000))
