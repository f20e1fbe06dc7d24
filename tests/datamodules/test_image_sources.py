"""Downloading the four files of MNIST: what is missing, from the first mirror that answers, checked."""

import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from lightning_lift.datamodules import MNISTDataModule, image_sources
from lightning_lift.datamodules.image_sources import download_mnist, read_images
from tests.datamodules.test_idx_files import idx


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that answers as a mirror, after one that does not."""
    there = tmp_path / "mirror"
    there.mkdir()
    raw, packed = {}, {}
    for part, count in (("train", 20), ("t10k", 6)):
        for kind, content in (
            ("images-idx3", idx((count, 28, 28))),
            ("labels-idx1", idx((count,), bytes(i % 10 for i in range(count)))),
        ):
            name = f"{part}-{kind}-ubyte"
            compressed = gzip.compress(content, mtime=0)
            (there / f"{name}.gz").write_bytes(compressed)
            raw[name], packed[name] = (hashlib.md5(bytes_).hexdigest() for bytes_ in (content, compressed))
    monkeypatch.setattr(image_sources, "MNIST_MD5", raw)
    monkeypatch.setattr(image_sources, "MNIST_GZ_MD5", packed)
    monkeypatch.setattr(image_sources, "MNIST_MIRRORS", ((tmp_path / "nothing").as_uri(), there.as_uri()))
    monkeypatch.setattr("lightning_lift.datamodules.downloads._PAUSE", 0.0)
    return there


def test_the_data_module_downloads_what_is_missing(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    data = MNISTDataModule("idx", str(folder), download=True, num_val=4, batch_size=4)
    data.prepare_data()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in mirror.iterdir())
    assert len(data.split("train")[1]) == 16
    assert len(data.split("test")[1]) == 6
    for path in mirror.iterdir():
        path.unlink()
    data.prepare_data()  # nothing is missing, nobody is asked


def test_files_that_are_there_raw_are_not_downloaded(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train-labels.idx1-ubyte").write_bytes(
        gzip.decompress((mirror / "train-labels-idx1-ubyte.gz").read_bytes())
    )
    download_mnist(str(folder))
    assert not (folder / "train-labels-idx1-ubyte.gz").exists()
    train, test = read_images("idx", str(folder))
    assert train.labels.tolist() == [i % 10 for i in range(20)]
    assert test is not None
    assert test.images.shape == (6, 1, 28, 28)


def test_no_mirror_answers(mirror: Path, tmp_path: Path) -> None:
    (mirror / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte"):
        download_mnist(str(tmp_path / "data"))
    assert not (tmp_path / "data" / "t10k-labels-idx1-ubyte.gz").exists()


def test_a_mirror_with_other_files_is_refused(mirror: Path, tmp_path: Path) -> None:
    (mirror / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="MD5"):
        download_mnist(str(tmp_path / "data"))
    assert not (tmp_path / "data" / "train-images-idx3-ubyte.gz").exists()


def test_shipped_digits_have_seventeen_shades() -> None:
    pool, test = read_images("digits")
    assert test is None
    assert pool.images.shape == (1797, 1, 8, 8)
    assert pool.images.dtype == torch.uint8
    assert int(pool.images.max()) == pool.white == 16
    assert float(pool.unit().max()) == 1.0
