"""The classifier: learns, logs, and its checkpoints come back."""

import functools
from pathlib import Path

import lightning as L
import pytest
import torch

from lightning_lift.datamodules import TwoMoonsDataModule
from lightning_lift.modules import ReLUClassifier, ReLUMLP

NETWORK = functools.partial(ReLUMLP, num_classes=2, widths=[16, 16])


def trained(epochs: int = 300) -> tuple[ReLUClassifier, TwoMoonsDataModule, L.Trainer]:
    L.seed_everything(0, verbose=False)
    module = ReLUClassifier(2, NETWORK, functools.partial(torch.optim.SGD, lr=0.3))
    data = TwoMoonsDataModule(num_train=200, num_val=100, num_test=200)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, check_val_every_n_epoch=epochs,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return module, data, trainer


def test_it_learns_and_its_metrics_are_those_of_the_whole_split(tmp_path: Path) -> None:
    module, data, trainer = trained()
    assert {"train/loss", "train/accuracy", "val/loss", "val/accuracy"} <= set(trainer.callback_metrics)
    figures = trainer.test(module, datamodule=data, verbose=False)[0]
    inputs, labels = data.split("test")
    with torch.no_grad():
        scores = module(inputs)
    assert figures["test/accuracy"] == pytest.approx(float((scores.argmax(1) == labels).float().mean()), abs=1e-6)
    assert figures["test/loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels)), rel=1e-5)
    assert figures["test/accuracy"] > 0.95
    predictions = torch.cat(trainer.predict(module, datamodule=data))
    assert torch.equal(predictions, scores.argmax(1))

    trainer.save_checkpoint(tmp_path / "x.ckpt")
    checkpoint = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert checkpoint["lightning_lift"]["format"] == 2
    again = ReLUClassifier.load_from_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    with torch.no_grad():
        assert torch.equal(again(inputs), scores)


def test_what_a_checkpoint_could_not_store_is_refused() -> None:
    with pytest.raises(TypeError, match="importable class"):
        ReLUClassifier(2, lambda dim: ReLUMLP(dim))


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    _, _, trainer = trained(1)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    checkpoint = torch.load(tmp_path / "x.ckpt", weights_only=True)
    checkpoint["hyper_parameters"]["network"]["init_args"]["widths"] = [8, 8]
    torch.save(checkpoint, tmp_path / "y.ckpt")
    with pytest.raises(ValueError, match="widths or dimension differ"):
        ReLUClassifier.load_from_checkpoint(tmp_path / "y.ckpt", weights_only=True)
