"""The autoencoder: shapes, learning, checkpoint."""

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from datamodules import ConvAutoencoder


def _loss(model: ConvAutoencoder, batch: Any) -> float:
    with torch.no_grad():
        return float(model.reconstruction_loss(batch))


@pytest.mark.parametrize("side", [8, 28])
def test_shapes(side: int) -> None:
    model = ConvAutoencoder(dim=side**2, code_dim=5, channels=(3, 4))
    images = torch.rand(6, 1, side, side)
    assert model.encode(images).shape == (6, 5)
    assert model(images).shape == images.shape
    assert _loss(model, (images, torch.zeros(6))) == _loss(model, images)


def test_it_learns_and_reloads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ConvAutoencoder(64, 4, (8, 8), functools.partial(torch.optim.Adam, lr=1e-2))
    generator = torch.Generator().manual_seed(0)
    pattern = torch.rand(1, 1, 8, 8, generator=generator)
    images = torch.rand(32, 1, 1, 1, generator=generator) * pattern  # one number makes an image
    before = _loss(model, images)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=150, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(images, batch_size=32))
    after = _loss(model, images)
    assert after < 0.1 * float(images.var()) < before
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    again = ConvAutoencoder.load_from_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    assert _loss(again, images) == pytest.approx(after, rel=1e-6)


def test_sizes_that_do_not_fit() -> None:
    for wrong in ({"dim": 63}, {"dim": 36}, {"code_dim": 0}, {"channels": (4,)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ConvAutoencoder(**wrong)
