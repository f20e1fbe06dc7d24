"""The autoencoder: shapes, learning, checkpoint."""

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_lift.datamodules import ConvAutoencoder


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


def test_the_training_loss_has_noise_on_the_codes_and_a_penalty() -> None:
    torch.manual_seed(0)
    model = ConvAutoencoder(64, 3, (4, 4), code_noise=0.5, code_penalty=0.1)
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        loss = model.regularized_loss((images, torch.zeros(5)), torch.Generator().manual_seed(1))
        codes = model.encode(images)
        noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
        error = (model.decode(codes + 0.5 * noise) - images).square().mean()
        assert float(loss) == pytest.approx(float(error + 0.1 * codes.square().sum() / 5), rel=1e-5)
        clean = float((model(images) - images).square().mean())
    assert _loss(model, images) == pytest.approx(clean, rel=1e-6)


def test_noise_and_schedule_are_those_of_the_run_that_is_resumed(tmp_path: Path) -> None:
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def fit(epochs: int, resume: Path | None = None) -> tuple[dict[str, Any], L.Trainer]:
        torch.manual_seed(0)
        schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3)
        model = ConvAutoencoder(64, 2, (3, 3), lr_scheduler=schedule, code_noise=0.5, code_penalty=0.1)
        torch.manual_seed(epochs)
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(images, batch_size=4), ckpt_path=resume, weights_only=True)
        return model.state_dict(), trainer

    whole, trainer = fit(4)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-5)  # 8 steps, a tenth each 3
    fit(2)[1].save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = fit(4, tmp_path / "half.ckpt")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_codes_turn_to_their_principal_axes_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    model = ConvAutoencoder(64, 4, (4, 4), code_noise=0.5, code_penalty=0.1)
    images = torch.rand(200, 1, 8, 8)
    with torch.no_grad():
        before, codes = model(images), model.encode(images)
        model.align_(images)
        after, turned = model(images), model.encode(images)
        torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(turned.norm(dim=1), codes.norm(dim=1), atol=1e-5, rtol=1e-4)
        covariance = torch.cov(turned.double().T)
        spread = covariance.diagonal()
        torch.testing.assert_close(covariance, torch.diag(spread), atol=1e-4 * float(spread[0]), rtol=0)
        assert bool((spread.diff() < 0).all())
        torch.testing.assert_close(
            spread.flip(0), torch.linalg.eigvalsh(torch.cov(codes.double().T)), rtol=1e-3, atol=0
        )
        model.align_(images)
        torch.testing.assert_close(model.encode(images), turned, atol=1e-4, rtol=1e-3)


def test_arguments_that_do_not_fit() -> None:
    wrongs: list[dict[str, Any]] = [{"dim": 63}, {"dim": 36}, {"code_dim": 0}, {"channels": (4,)}]
    for wrong in [*wrongs, {"code_noise": -1.0}, {"code_penalty": float("nan")}]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ConvAutoencoder(**wrong)
