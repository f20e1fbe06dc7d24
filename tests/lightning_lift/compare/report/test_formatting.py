import math

import pytest

from lightning_lift.compare.report.formatting import NONE, counted, number, plain_name, ranges, unit_of, with_error


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.012345, "0.0123"), (-1.5, "-1.50"), (1234.5, "1234"), (1.5e-7, "1.50e-07"), (2e8, "2.00e+08"),
     (math.nan, NONE), (math.inf, "∞"), (-math.inf, "-∞")],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [(1.23456, 0.0123, "1.235 ± 0.012"), (25.5, 3.21, "25.5 ± 3.2"), (1234.0, 56.0, "1234 ± 56"),
     (0.5, 1e-19, "0.5000"), (0.5, math.nan, "0.5000"), (math.nan, math.nan, NONE)],
)  # fmt: skip
def test_numbers_with_an_error(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


def test_names_and_units() -> None:
    assert plain_name("test/total_variation") == "test total variation"
    assert plain_name("val/nll") == "validation NLL"
    assert unit_of("test/nll") == " nats" and unit_of("test/total_variation") == ""


def test_counts_and_ranges() -> None:
    assert counted(1, "seed") == "1 seed" and counted(1200, "run") == "1,200 runs"
    assert ranges([0, 1, 2, 3, 4, 7, 9, 10]) == "0-4, 7, 9-10" and ranges([]) == ""
