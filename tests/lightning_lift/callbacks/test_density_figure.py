import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch import Tensor

from lightning_lift.callbacks import DensityFigure
from lightning_lift.callbacks._density_plot import DensityPicture, draw_density, histogram
from lightning_lift.datamodules.tabular import TabularDataModule
from tests.lightning_lift.callbacks.runs import events, make_trainer, small_data, small_model


class Pictures(DensityFigure):
    """Keeps what was drawn."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pictures: list[DensityPicture] = []

    def _picture(self, *args: Any) -> DensityPicture | None:
        picture = super()._picture(*args)
        if picture is not None:
            self.pictures.append(picture)
        return picture


def test_one_column_with_a_known_truth(tmp_path: Path) -> None:
    callback = Pictures()
    model, data = small_model(), small_data(loc=5.0, scale=2.0)
    loggers = [TensorBoardLogger(tmp_path, "logs", "a"), TensorBoardLogger(tmp_path, "logs", "b")]
    trainer = make_trainer(tmp_path, [callback], loggers, max_steps=10)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    names = sorted(path.name for path in (tmp_path / "logs" / "a" / "figures").iterdir())
    assert names == ["density_step_00000010.png", "density_test.png"]
    for version in ("a", "b"):
        log = events(tmp_path / "logs" / version)
        assert [e.step for e in log.Images("density/val")] == [10]
        assert len(log.Images("density/test")) == 1
    picture = callback.pictures[-1]
    (x,) = picture.axes
    assert picture.truth is not None
    for density in (picture.model, picture.truth):
        assert np.trapezoid(density, x) == pytest.approx(1.0, abs=2e-2)
    # In original units: the log-density of the data module is in training units, which are shifted or not.
    training = torch.tensor((x - data.location.numpy()) / data.scale.numpy()).float()[:, None]
    expected = np.exp(data.log_prob(training).double().numpy() - data.log_scale)
    np.testing.assert_allclose(picture.truth, expected, rtol=1e-3, atol=1e-9)
    with Image.open(tmp_path / "logs" / "a" / "figures" / "density_test.png") as image:
        assert image.size[0] > 500
        assert len(set(image.convert("RGB").resize((64, 64)).getcolors(4096) or [])) > 10, "the picture is empty"


def test_two_columns_against_held_out_data(tmp_path: Path) -> None:
    callback = Pictures(1)
    data = TabularDataModule(table="load_iris", columns=["sepal length (cm)", "sepal width (cm)"], batch_size=16)
    model = small_model(dim=2)
    trainer = make_trainer(tmp_path, [callback], max_steps=7)
    trainer.fit(model, data)
    picture = callback.pictures[-1]
    assert picture.truth is None
    assert picture.rows is not None
    assert picture.columns == ("sepal length (cm)", "sepal width (cm)")
    assert 4.0 < picture.rows[:, 0].mean() < 8.0, "rows must be in centimetres, not standardised"
    assert len(picture.rows) == len(data.split("val"))
    figure = draw_density(picture)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == [f"{len(picture.rows)} held-out rows, model's contours", "model"]
    assert figure.axes[0].get_xlabel() == "sepal length (cm)"
    assert figure.axes[0].get_ylabel() == "sepal width (cm)"


def test_many_rows_in_the_plane_are_a_histogram_on_the_scale_of_the_model() -> None:
    rows = np.random.default_rng(0).normal(size=(5000, 2))
    x = np.linspace(-3.0, 3.0, 61)
    model = np.exp(-0.5 * (x[:, None] ** 2 + x**2)) / (2 * np.pi)
    figure = draw_density(DensityPicture((x, x), model, None, rows, ("a", "b"), "normal"))
    left, right = figure.axes[:2]
    assert left.get_title() == "held-out data (5000 rows)"
    assert left.collections[0].get_clim()[1] == pytest.approx(right.collections[0].get_clim()[1], rel=0.1)


def test_more_columns_are_said_once_and_not_drawn(tmp_path: Path) -> None:
    class Three(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.dim = 3
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def log_prob(self, x: Tensor) -> Tensor:
            return -(x - self.weight).square().sum(1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return -self.log_prob(batch).mean()

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    data = TabularDataModule(table="load_iris", columns=[0, 1, 2], batch_size=16)
    with pytest.warns(UserWarning) as caught:
        make_trainer(tmp_path, [DensityFigure(1)], max_steps=20).fit(Three(), data)
    assert len([w for w in caught if "3 columns" in str(w.message)]) == 1
    assert not list(tmp_path.rglob("*.png"))


def test_a_diverged_model_gives_one_warning_and_no_file(tmp_path: Path) -> None:
    class Broken(L.Callback):
        def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
            pl_module.log_prob_scaled = lambda x: torch.full((len(x),), float("nan"))

    model, data = small_model(), small_data()
    make_trainer(tmp_path, max_steps=2, limit_val_batches=0).fit(model, data)
    with pytest.warns(UserWarning) as caught:
        make_trainer(tmp_path, [Broken(), DensityFigure(1)]).validate(model, data, verbose=False)
    assert len([w for w in caught if "DensityFigure" in str(w.message)]) == 1
    assert not list(tmp_path.rglob("*.png"))


def test_histogram_is_a_density_with_rows_outside_counted() -> None:
    rows = np.random.default_rng(0).normal(size=(20000, 2))
    axes = (np.linspace(-1.0, 1.0, 5), np.linspace(-2.0, 2.0, 7))
    heights, edges = histogram(rows, axes, bins=20)
    mass = heights.sum() * (edges[0][1] - edges[0][0]) * (edges[1][1] - edges[1][0])
    assert mass == pytest.approx(0.6827 * 0.9545, abs=0.015)


def test_a_spike_does_not_flatten_the_truth_and_no_pyplot_is_needed() -> None:
    x = np.linspace(-3.0, 3.0, 301)
    truth = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    model = truth.copy()
    model[150] = 1e4
    before = "matplotlib.pyplot" in sys.modules
    figure = draw_density(DensityPicture((x,), model, truth, None, ("x",), "spike"))
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert figure.axes[0].get_ylim()[1] < 1.0
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["truth", "model"]
    with pytest.raises(ValueError, match="3 dimensions"):
        draw_density(DensityPicture((x, x, x), model, None, None, ("a", "b", "c"), ""))
