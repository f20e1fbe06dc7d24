"""One factor on all widths: of all factors, the one whose number of parameters is nearest, found with few networks."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lightning_lift.compare.matching import matched_widths


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
