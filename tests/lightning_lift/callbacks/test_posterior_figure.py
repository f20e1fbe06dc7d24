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
from lightning_lift.datamodules import Batch
from lightning_lift.datamodules.parts import PartsDataModule
from lightning_lift.modules.task import TaskModule
from tests.lightning_lift.callbacks.runs import events, make_trainer

DEVIATION = math.sqrt(0.5)


class Pairs(PartsDataModule):
    """theta ~ N(100, I_3), data = theta + N(0, I_3): the posterior is N(50 + data / 2, I / 2)."""

    def __init__(self, known: bool = True) -> None:
        super().__init__(dim=3, name="pairs", batch_size=50, context_shape=(3,))
        self.known = known

    def load(self) -> dict[str, Batch]:
        source = torch.Generator().manual_seed(0)
        splits = {}
        for key in ("train", "val", "test"):
            theta = 100.0 + torch.randn(60, 3, generator=source)
            splits[key] = Batch(theta, theta + torch.randn(60, 3, generator=source))
        self.original = splits
        return self.standardize(splits, ("x", "context"))

    def reference_draws(self, context: Tensor, num_draws: int, seed: int) -> Tensor | None:
        source = torch.Generator().manual_seed(seed + 1)
        mean = 50.0 + context / 2.0
        return mean + DEVIATION * torch.randn(num_draws, 3, generator=source) if self.known else None


class Exact(TaskModule):
    """The posterior itself."""

    batch_fields = ("x", "context")

    def __init__(self) -> None:
        super().__init__(3)
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        return self.unused.square()

    def sample(self, num_samples: int, context: Tensor, seed: int | None = None) -> Tensor:
        assert seed is not None and not self.training
        noise = torch.randn(num_samples, len(context), 3, generator=torch.Generator().manual_seed(seed))
        return 50.0 + context / 2.0 + DEVIATION * noise


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
    data, module = Pairs(), Exact()
    trainer = make_trainer(tmp_path, [PosteriorFigure(num_samples=3000, observation=7)], max_steps=1)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == [
        "posterior_step_00000001.png",
        "posterior_test.png",
    ]
    assert [event.step for event in events(tmp_path).Images("posterior/val")] == [1]
    for picture, key in zip(pictures, ("val", "test"), strict=True):
        theta, observed = data.original[key].x[7], data.original[key].context[7]
        assert picture.truth is not None and picture.rows is not None
        torch.testing.assert_close(torch.tensor(picture.truth), theta.double(), rtol=1e-6, atol=0.0)
        for draws in (picture.samples, picture.rows):
            assert abs(draws.mean(0) - (50.0 + observed.numpy() / 2.0)).max() < 4.0 * DEVIATION / math.sqrt(3000)
    with Image.open(next(tmp_path.rglob("posterior_test.png"))) as image:
        assert image.size[0] > 900
        red = sum(
            count for count, (r, g, b) in image.convert("RGB").getcolors(1 << 24) if r > 180 and g < 80 and b < 80
        )
        assert red > 300, "the truth is marked in every panel"


def test_without_a_reference_and_where_there_is_nothing_to_draw(
    tmp_path: Path, pictures: list[MarginalPicture], recwarn: pytest.WarningsRecorder
) -> None:
    make_trainer(tmp_path, [PosteriorFigure(num_samples=100)]).test(Exact(), Pairs(known=False), verbose=False)
    (picture,) = pictures
    assert picture.rows is None
    figure = draw_marginals(picture)
    assert [axes.axison for axes in figure.axes] == [True, False, False, True, True, False, True, True, True]
    make_trainer(tmp_path, [PosteriorFigure(observation=60)]).test(Exact(), Pairs(), verbose=False)
    assert any("observation=60 is no row" in str(warning.message) for warning in recwarn)
    with pytest.raises(ValueError, match="observation=-1"):
        PosteriorFigure(observation=-1)
