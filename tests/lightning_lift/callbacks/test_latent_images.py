"""Decoded draws: the right images in the right places, in the right units, or one warning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from lightning_lift.callbacks import LatentImages
from lightning_lift.callbacks.latent_images import LatentPicture, draw_latents, tiled
from lightning_lift.datamodules import MNISTLatentsDataModule
from tests.lightning_lift.callbacks.runs import events, make_trainer, small_data, small_model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def latents(cache: str, **settings: Any) -> MNISTLatentsDataModule:
    short = {"latent_dim": 2, "batch_size": 64, "autoencoder_steps": 60, "autoencoder_channels": (4, 8)}
    return MNISTLatentsDataModule(**{**short, "cache_folder": cache, **settings})


def shown(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]


class Kept(LatentImages):
    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.figures: list[Figure] = []

    def figure(self, *args: Any) -> tuple[Figure | None, str]:
        figure, reason = super().figure(*args)
        if figure is not None:
            self.figures.append(figure)
        return figure, reason


def test_files_and_tags_in_validation_and_test(cache: str, tmp_path: Path) -> None:
    model, data, callback = small_model(dim=2), latents(cache), Kept(1000, 16)
    trainer = make_trainer(tmp_path, [callback], max_steps=10, val_check_interval=10, check_val_every_n_epoch=None)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    names = sorted(path.name for path in tmp_path.rglob("*.png"))
    assert names == ["images_step_00000010.png", "images_test.png"]
    log = events(tmp_path / "logs")
    assert [e.step for e in log.Images("images/val")] == [10]
    assert len(log.Images("images/test")) == 1
    left, right = shown(callback.figures[-1])
    assert left.shape == right.shape == (36, 36)
    # on the left the first test images, each over what the decoder makes of its code
    originals, rebuilt = data.images("test")[:8, 0].numpy(), data.decode(data.split("test")[:8])[:, 0].numpy()
    for i in range(8):
        row, column = 18 * (i // 4), 9 * (i % 4)
        np.testing.assert_allclose(left[row : row + 8, column : column + 8], originals[i], atol=1e-6)
        np.testing.assert_allclose(left[row + 9 : row + 17, column : column + 8], rebuilt[i], atol=1e-5)
    # on the right draws of the model, the last weights' at the end
    draws = data.decode(model.sample_scaled(16, torch.Generator().manual_seed(0)))[:, 0].numpy()
    np.testing.assert_allclose(right[9:17, 27:35], draws[7], atol=1e-4)
    assert callback.figures[-1].get_suptitle() == "digit latents (scikit-learn, 8x8), 2-D, test"
    assert callback.figures[0].get_suptitle() == "digit latents (scikit-learn, 8x8), 2-D, step 10"
    with Image.open(next(tmp_path.rglob("images_test.png"))) as image:
        assert len(set(image.convert("L").resize((128, 64)).getcolors(9000) or [])) > 20, "the picture is empty"


def test_draws_are_decoded_in_the_units_of_the_data(cache: str, tmp_path: Path) -> None:
    class Fixed(torch.nn.Module):
        def sample(self, num_samples: int, seed: int) -> Tensor:
            return torch.arange(2.0 * num_samples).view(-1, 2) / num_samples

    data = latents(cache)
    data.setup()
    seen: list[Tensor] = []
    real = data.decode
    data.decode = lambda rows: seen.append(rows) or real(rows)  # type: ignore[method-assign, func-returns-value]
    trainer = make_trainer(tmp_path)
    figure, _ = LatentImages(num_images=4).figure(trainer, Fixed(), data, "val")  # type: ignore[arg-type]
    assert figure is not None
    torch.testing.assert_close((data.location + data.scale * seen[0]).float(), Fixed().sample(4, 0))


def test_a_picture_without_originals() -> None:
    ramp = torch.linspace(0, 1, 5).view(5, 1, 1, 1).expand(5, 1, 3, 3)
    assert tiled(ramp, 2).shape == (12, 8)
    assert tiled(ramp, 2)[8, 0] == 1.0
    assert tiled(ramp, 2)[8, 4] == 0.0, "black where there is no image"
    figure = draw_latents(LatentPicture(ramp, ramp[:4], None, "ramp"))
    left, right = shown(figure)
    assert left.shape == (8, 8)
    assert right.shape == (12, 8)
    assert [axes.get_title() for axes in figure.axes] == ["held-out, reconstructed", "decoded draws of the model"]


def test_data_that_are_no_images_are_said_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [LatentImages(1)], max_steps=30)
    with pytest.warns(UserWarning) as caught:
        trainer.fit(small_model(), small_data())
    assert trainer.global_step == 30
    said = [w for w in caught if "GumbelDataModule has no decode" in str(w.message)]
    assert len(said) == 1
    assert not list(tmp_path.rglob("*.png"))


def test_a_diverged_model_does_not_end_the_run(cache: str, tmp_path: Path) -> None:
    model = small_model(dim=2)
    model.sample = lambda n, seed: torch.full((n, 2), float("nan"))  # type: ignore[method-assign]
    trainer = make_trainer(tmp_path, [LatentImages(1)], max_steps=22, val_check_interval=10)
    with pytest.warns(UserWarning, match="diverged"):
        trainer.fit(model, latents(cache))
    assert trainer.global_step == 22
    assert not list(tmp_path.rglob("*.png"))


def test_arguments() -> None:
    with pytest.raises(ValueError, match="num_images"):
        LatentImages(num_images=0)
    with pytest.raises(ValueError, match="every_n_steps"):
        LatentImages(every_n_steps=0)
