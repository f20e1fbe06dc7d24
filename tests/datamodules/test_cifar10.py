"""CIFAR-10's binary format on small generated files, whole and damaged."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lift.datamodules import CIFAR10DataModule, cifar10
from lightning_lift.datamodules.cifar10 import RECORD, TEST_FILE, TRAIN_FILES, read_records, unpack


def write_small(folder: Path, count: int = 20) -> None:
    generator = np.random.default_rng(0)
    for name in (*TRAIN_FILES, TEST_FILE):
        records = generator.integers(0, 256, (count, RECORD), dtype=np.uint8)
        records[:, 0] = np.arange(count) % 10
        (folder / name).write_bytes(records.tobytes())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(CIFAR10DataModule, "records_per_file", None)
    write_small(tmp_path)
    return tmp_path


def test_layout_of_a_record(tmp_path: Path) -> None:
    pixels = np.zeros((3, 32, 32), dtype=np.uint8)
    pixels[0, 0, 1], pixels[1, 2, 3], pixels[2, 31, 31] = 10, 20, 30
    (tmp_path / "x.bin").write_bytes(bytes([7]) + pixels.tobytes())
    images, labels = read_records(tmp_path / "x.bin", 1)
    assert labels.tolist() == [7]
    assert torch.equal(images[0], torch.from_numpy(pixels))


def test_splits_and_standardised_channels(small: Path) -> None:
    data = CIFAR10DataModule(folder=str(small), num_val=10, batch_size=16)
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (16, 3, 32, 32)
    assert labels.shape == (16,)
    train = data.split("train")[0]
    assert train.shape == (90, 3, 32, 32)
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(train.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)
    assert data.split("test")[1].tolist() == [i % 10 for i in range(20)]


def test_what_is_missing_or_damaged_says_so(small: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="download=True"):
        CIFAR10DataModule(folder=str(tmp_path / "none")).setup()
    with pytest.raises(ValueError, match=r"expected 30730000 \(10000 records"):
        read_records(small / TEST_FILE)
    content = (small / TEST_FILE).read_bytes()
    (small / TEST_FILE).write_bytes(content[:-1])
    with pytest.raises(ValueError, match="cut off"):
        CIFAR10DataModule(folder=str(small), num_val=10, batch_size=16).setup()
    (small / TEST_FILE).write_bytes(bytes([11]) + content[1:])
    with pytest.raises(ValueError, match="label 11"):
        CIFAR10DataModule(folder=str(small), num_val=10, batch_size=16).setup()


def test_download_unpacks_only_what_is_asked_for(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "published.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (*TRAIN_FILES, TEST_FILE):
            tar.add(small / name, f"cifar-10-batches-bin/{name}")
        tar.add(archive.parent / TEST_FILE, "../../escape.bin")
    monkeypatch.setattr(cifar10, "URL", archive.as_uri())
    target = tmp_path / "target"
    data = CIFAR10DataModule(folder=str(target), download=True, num_val=10, batch_size=16)
    with pytest.raises(ValueError, match="MD5"):
        data.prepare_data()
    monkeypatch.setattr(cifar10, "MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    data.prepare_data()
    assert {path.name for path in target.iterdir()} == {*TRAIN_FILES, TEST_FILE, "cifar-10-binary.tar.gz"}
    assert len(data.split("test")[1]) == 20
    monkeypatch.setattr(cifar10, "URL", "file:///nowhere")
    data.prepare_data()  # there already


def test_a_damaged_archive(small: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(small / TEST_FILE, TEST_FILE)
    with pytest.raises(ValueError, match="holds no"):
        unpack(archive, tmp_path)
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(archive, tmp_path)
