from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lightning_lift.callbacks import FlowFigure
from lightning_lift.callbacks import flow_figure as module_under_test
from lightning_lift.callbacks._flow_plot import FlowPicture, MarginalPicture, draw_flow, draw_marginals
from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule, TabularDataModule
from lightning_lift.modules import ConvexPotentialFlow, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift
from tests.lightning_lift.callbacks.runs import events, make_trainer, small_model

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_features": 8, "num_blocks": 1, "num_bins": 4, "learning_rate": 1e-2}


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was drawn; the grids are coarse."""
    kept: list[Any] = []

    def keeping(draw: Any) -> Any:
        def drawn(picture: Any) -> Any:
            kept.append(picture)
            return draw(picture)

        return drawn

    monkeypatch.setattr(module_under_test, "_POINTS", 41)
    monkeypatch.setattr(module_under_test, "_LINE_POINTS", 21)
    for name in ("draw_flow", "draw_marginals"):
        monkeypatch.setattr(module_under_test, name, keeping(getattr(module_under_test, name)))
    return kept


@pytest.fixture(autouse=True)
def coarse_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lightning_lift.modules.density._TRUTH_POINTS", {stage: {1: 100, 2: 20} for stage in ("val", "test")}
    )


def plane(**arguments: Any) -> EightGaussiansDataModule:
    sizes = {"batch_size": 32, "batches_per_epoch": 10, "num_val": 300, "num_test": 400, "num_calibration": 64}
    return EightGaussiansDataModule(**{**sizes, "std": 0.4, **arguments})


def potential_flow(dim: int, parameterization: Any = DirectSoftplus) -> ConvexPotentialFlow:
    torch.manual_seed(0)
    network = partial(ICNN, widths=[8, 8], strong_convexity=0.1)
    return ConvexPotentialFlow(dim, network, parameterization, learning_rate=1e-2)


def convex(parameterization: Any) -> Any:
    return lambda: potential_flow(2, parameterization)


@pytest.mark.parametrize("make", [convex(DirectSoftplus), convex(Lift), lambda: NormalizingFlow(2, **SMALL)])
def test_a_flow_in_the_plane(tmp_path: Path, pictures: list[Any], make: Any) -> None:
    module, data = make(), plane()
    trainer = make_trainer(tmp_path, [FlowFigure(num_samples=600)], max_steps=10)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    names = sorted(path.name for path in tmp_path.rglob("*.png"))
    assert names == ["flow_step_00000010.png", "flow_test.png"]
    assert [event.step for event in events(tmp_path).Images("flow/val")] == [10]
    picture = pictures[-1]
    assert isinstance(picture, FlowPicture)
    assert picture.truth is not None and picture.grid is not None
    assert len(picture.rows) == 400
    assert picture.samples.shape == (600, 2)
    assert picture.grid.shape == (2, 17, 21, 2)
    # The middle of the grid is the pre-image of 0: there the base density is largest.
    with torch.no_grad():
        middle = torch.tensor(picture.grid[0, 8, 10]).float()[None]
        torch.testing.assert_close(module.eval().map(middle), torch.zeros(1, 2), rtol=0.0, atol=1e-3)
    with Image.open(next(tmp_path.rglob("flow_test.png"))) as image:
        assert image.size[0] > 1000
        assert len(set(image.convert("RGB").resize((64, 64)).getcolors(4096) or [])) > 20, "the picture is empty"


def test_original_units_of_a_standardised_table(tmp_path: Path, pictures: list[Any]) -> None:
    data = TabularDataModule(table="load_iris", columns=["sepal length (cm)", "sepal width (cm)"], batch_size=16)
    module = NormalizingFlow(2, **SMALL)
    make_trainer(tmp_path, [FlowFigure(1)], max_steps=7).fit(module, data)
    picture = pictures[-1]
    assert picture.truth is None
    assert picture.columns == ("sepal length (cm)", "sepal width (cm)")
    centre = data.location.numpy()
    for points in (picture.rows, picture.samples, picture.grid.reshape(-1, 2)):
        assert np.abs(points.mean(0) - centre).max() < 1.0
    cells = [axis[1] - axis[0] for axis in picture.axes]
    assert 0.5 < picture.model.sum() * cells[0] * cells[1] < 1.05, "the density must be per square centimetre"


def test_more_columns_are_marginals_of_the_first_four(tmp_path: Path, pictures: list[Any]) -> None:
    data = TabularDataModule(table="load_wine", columns=[0, 2, 3, 4, 6], batch_size=32)
    module = potential_flow(5)
    make_trainer(tmp_path, max_steps=3).fit(module, data)
    make_trainer(tmp_path, [FlowFigure(num_samples=50)]).test(module, data, verbose=False)
    (picture,) = pictures
    assert isinstance(picture, MarginalPicture)
    assert picture.samples.shape == (50, 4)
    assert picture.rows.shape == (len(data.split("test")), 4)
    assert picture.columns == tuple(data.columns[:4])
    # One more number a column than training units: means in their own units, the third column is about 100.
    assert 80.0 < picture.rows[:, 3].mean() < 120.0


def test_one_column_and_a_model_without_a_map(tmp_path: Path, pictures: list[Any]) -> None:
    data = GumbelDataModule(batch_size=32, batches_per_epoch=5, num_val=64, num_test=64, loc=5.0)
    trainer = make_trainer(tmp_path, [FlowFigure(num_samples=50)], max_steps=5)
    trainer.fit(small_model(), data)
    assert pictures[-1].samples.shape == (50, 1)
    make_trainer(tmp_path, [FlowFigure(num_samples=50)], max_steps=5).fit(
        small_model(dim=2), plane(batches_per_epoch=5)
    )
    assert pictures[-1].grid is None


def test_what_cannot_be_drawn_is_said_once(tmp_path: Path) -> None:
    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return (batch - self.weight).square().mean()

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    with pytest.warns(UserWarning) as caught:
        make_trainer(tmp_path, [FlowFigure(1)], max_steps=30).fit(Plain(), plane())
    assert len([w for w in caught if "Plain has no sample" in str(w.message)]) == 1

    class Broken(L.Callback):
        def on_validation_batch_start(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
            for parameter in pl_module.parameters():
                parameter.data.fill_(float("nan"))

    trainer = make_trainer(tmp_path, [Broken(), FlowFigure(1)])
    with pytest.warns(UserWarning) as caught:
        trainer.validate(NormalizingFlow(2, **SMALL), plane(), verbose=False)
    assert len([w for w in caught if "FlowFigure" in str(w.message)]) == 1
    assert not list(tmp_path.rglob("*.png"))


def test_arguments_and_state() -> None:
    with pytest.raises(ValueError, match="every_n_steps=0"):
        FlowFigure(0)
    with pytest.raises(ValueError, match="num_samples=0"):
        FlowFigure(num_samples=0)
    callback = FlowFigure(5)
    callback.load_state_dict({"last_step": 15})
    assert callback.state_dict() == {"last_step": 15}
    assert callback.state_key != FlowFigure(6).state_key


def test_a_failed_inverse_breaks_the_lines_and_a_collapsed_model_does_not_hide_the_data() -> None:
    x = np.linspace(-1.0, 1.0, 5)
    grid = np.zeros((2, 3, 4, 2))
    grid[:, :, 1] = np.nan
    picture = FlowPicture((x, x), np.ones((5, 5)), np.zeros((3, 2)), None, np.zeros((4, 2)), grid, ("a", "b"), "t")
    panels = draw_flow(picture).axes
    assert [axes.get_title() for axes in panels[:3]] == [
        "held-out rows, model's contours",
        "model, samples",
        "grid of the base, mapped back",
    ]
    rows = np.random.default_rng(0).normal(size=(500, 1))
    figure = draw_marginals(MarginalPicture(np.zeros((500, 1)), rows, ("a",), "t"))
    assert figure.axes[0].get_ylim()[1] < 1.2
