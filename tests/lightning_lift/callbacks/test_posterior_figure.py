import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from lightning_lift.callbacks import PosteriorFigure
from lightning_lift.callbacks import posterior_figure as module_under_test
from lightning_lift.callbacks._flow_plot import MarginalPicture, draw_marginals
from lightning_lift.datamodules.simulators import LinearGaussianDataModule, TwoMoonsPosteriorDataModule
from lightning_lift.modules.task import TaskModule
from tests.lightning_lift.callbacks.runs import events, make_trainer


class Normal(TaskModule):
    """Draws from the exact posterior of theta ~ N(0, 0.1 I_3) with data theta + N(0, 0.1 I_3), or of any variance."""

    batch_fields = ("x", "context")

    def __init__(self, dim: int = 3, variance: float = 0.05) -> None:
        super().__init__(dim)
        self.variance = variance
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        return self.unused.square()

    def sample(self, num_samples: int, context: Tensor, seed: int | None = None) -> Tensor:
        assert seed is not None and not self.training
        source = torch.Generator().manual_seed(seed + 1)
        noise = torch.randn(num_samples, len(context), self.dim, generator=source)
        return context / 2.0 + math.sqrt(self.variance) * noise


def simulations(**arguments: Any) -> dict[str, Any]:
    return {"num_simulations": 100, "num_test": 60, "batch_size": 50, **arguments}


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[MarginalPicture]:
    """What was drawn."""
    kept: list[MarginalPicture] = []

    def draw(picture: MarginalPicture) -> Any:
        kept.append(picture)
        return draw_marginals(picture)

    monkeypatch.setattr(module_under_test, "draw_marginals", draw)
    return kept


def test_the_posterior_of_one_row_in_original_units(tmp_path: Path, pictures: list[MarginalPicture]) -> None:
    data, module = LinearGaussianDataModule(dim=3, **simulations()), Normal()
    trainer = make_trainer(tmp_path, [PosteriorFigure(num_samples=3000, observation=7)], max_steps=1)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == [
        "posterior_step_00000001.png",
        "posterior_test.png",
    ]
    assert [event.step for event in events(tmp_path).Images("posterior/val")] == [1]
    for picture, key in zip(pictures, ("val", "test"), strict=True):
        row = data.split(key)
        theta, observed = data.units.invert(row.x)[7], data.field_units["context"].invert(row.context)[7]
        assert picture.truth is not None and picture.rows is not None
        torch.testing.assert_close(torch.tensor(picture.truth), theta)
        for draws in (picture.samples, picture.rows):
            assert abs(draws.mean(0) - observed.numpy() / 2.0).max() < 4.0 * math.sqrt(0.05 / 3000)
    with Image.open(next(tmp_path.rglob("posterior_test.png"))) as image:
        assert image.size[0] > 900
        colours = image.convert("RGB").getcolors(1 << 24) or []
        red = sum(count for count, (r, g, b) in colours if r > 180 and g < 80 and b < 80)
        assert red > 300, "the truth is marked in every panel"


def test_draws_outside_the_prior_are_left_out(tmp_path: Path, pictures: list[MarginalPicture]) -> None:
    data = TwoMoonsPosteriorDataModule(**simulations())
    make_trainer(tmp_path, [PosteriorFigure(num_samples=300)]).test(Normal(2, variance=1.0), data, verbose=False)
    (picture,) = pictures
    assert 50 < len(picture.samples) < 250
    assert abs(picture.samples).max() <= 1.0


def test_without_a_reference_and_where_there_is_nothing_to_draw(
    tmp_path: Path,
    pictures: list[MarginalPicture],
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = LinearGaussianDataModule(dim=3, **simulations())
    make_trainer(tmp_path, [PosteriorFigure(observation=60)]).test(Normal(), data, verbose=False)
    assert any("observation=60 is no row" in str(warning.message) for warning in recwarn)
    monkeypatch.setattr(LinearGaussianDataModule, "reference_draws", lambda *_: None)
    make_trainer(tmp_path, [PosteriorFigure(num_samples=100)]).test(Normal(), data, verbose=False)
    (picture,) = pictures
    assert picture.rows is None
    figure = draw_marginals(picture)
    assert [axes.axison for axes in figure.axes] == [True, False, False, True, True, False, True, True, True]
    with pytest.raises(ValueError, match="observation=-1"):
        PosteriorFigure(observation=-1)
