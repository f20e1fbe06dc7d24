import io
import math
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from lightning_lift.compare.report import figures
from lightning_lift.compare.report.figures import PALETTE, Picture, style_of
from lightning_lift.compare.report.results import Comparison
from tests.lightning_lift.compare.report.synthetic import synthetic_records, synthetic_settings

EVERY: dict[str, Callable[[Comparison], Picture | None]] = {
    "distribution": lambda one: figures.distribution(one, "test/nll", "best"),
    "pairs": lambda one: figures.paired_lines(one, "test/total_variation", "last"),
    "steps": lambda one: figures.curves(one, "val/nll", "steps", 3000.0),
    "seconds": lambda one: figures.curves(one, "val/total_variation", "seconds", 18.0),
    "shoulder": lambda one: figures.curves(one, "shoulder/occupancy", "steps"),
    "tuning": figures.tuning,
}


@pytest.mark.parametrize("name", EVERY)
def test_every_figure_is_drawn_and_told(name: str) -> None:
    picture = EVERY[name](Comparison.of(synthetic_settings(6), synthetic_records(6)))
    assert picture is not None
    image = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50
    assert picture.svg.lstrip().startswith("<?xml") and "lift" in picture.svg + picture.alt
    assert len(picture.alt) > 40 and picture.caption.endswith(".")


@pytest.mark.parametrize("name", EVERY)
def test_one_seed_of_one_arm(name: str) -> None:
    picture = EVERY[name](Comparison.of({}, synthetic_records(1, ("lift",), looks=1)))
    assert (picture is None) == (name == "pairs")
    assert picture is None or len(picture.png) > 1000


@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_draw(name: str) -> None:
    records = synthetic_records(2, tuning=False)
    for record in records:
        record.outcome = "failed"
    assert EVERY[name](Comparison.of({}, records)) is None


def test_equal_numbers_have_no_violin() -> None:
    records = synthetic_records(5, ("pgd", "lift"), unfinished=False)
    for record in records:
        record.metrics["best"]["test/nll"] = 1.5
    picture = figures.distribution(Comparison.of({}, records), "test/nll", "best")
    assert picture is not None and len(picture.png) > 1000


def test_total_variations_over_orders_are_drawn_on_a_logarithmic_axis() -> None:
    records = synthetic_records(5, ("pgd", "lift"), unfinished=False)
    for record in records:
        record.metrics["best"]["test/nll"] *= 100.0 if record.arm == "pgd" else 1.0
    for draw in (figures.distribution, figures.paired_lines):
        picture = draw(Comparison.of({}, records), "test/nll", "best")
        assert picture is not None and picture.figure.axes[0].get_yscale() == "log"


def test_a_steep_start_does_not_hide_the_end() -> None:
    records = synthetic_records(5, unfinished=False)
    for record in records:
        record.curves["val/nll"][0] = 500.0
    picture = figures.curves(Comparison.of({}, records), "val/nll", "steps")
    # A logarithmic axis shows both; a linear one is cut, and says so.
    assert picture is not None and picture.figure.axes[0].get_yscale() == "log"
    for record in records:
        record.curves["val/nll"] = [value - 2.0 for value in record.curves["val/nll"]]
    picture = figures.curves(Comparison.of({}, records), "val/nll", "steps")
    assert picture is not None and "beyond the axis" in picture.caption
    assert picture.figure.axes[0].get_ylim()[1] < 100.0


def test_labels_are_no_formulas() -> None:
    records = synthetic_records(3, ("pgd", "lift"), unfinished=False)
    for record in records:
        record.arm = "$\\frac{broken$" if record.arm == "pgd" else record.arm
    comparison = Comparison.of({}, records)
    for name in ("distribution", "steps", "tuning"):
        picture = EVERY[name](comparison)
        assert picture is not None and len(picture.png) > 1000


def test_an_arm_keeps_its_style_and_no_two_of_the_first_24_share_one() -> None:
    assert len({style_of(index) for index in range(24)}) == 24
    assert style_of(2).color == PALETTE[2]
    comparison = Comparison.of(synthetic_settings(3), synthetic_records(3))
    picture = figures.curves(comparison, "shoulder/occupancy", "steps")  # pgd, the first arm, has none
    assert picture is not None
    assert to_rgb(picture.figure.axes[0].lines[0].get_color()) == to_rgb(PALETTE[1])


def test_colours_stay_apart_without_red_green_vision() -> None:
    # Machado, Oliveira and Fernandes (2009), deuteranomaly of severity 1, on linear RGB.
    matrix = np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    )
    colours = np.array([to_rgb(colour) for colour in PALETTE[:6]])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ matrix.T, 0.0, 1.0) ** (1 / 2.2)
    distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)[np.triu_indices(6, 1)]
    assert distances.min() > 0.1 and not math.isnan(distances.min())
