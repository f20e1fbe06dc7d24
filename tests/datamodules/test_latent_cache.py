"""The cache of autoencoders: keys, whole files, damaged files, folders that cannot be used."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_lift.datamodules import latent_cache
from lightning_lift.datamodules.autoencoder_training import AutoencoderSettings, train_autoencoder
from lightning_lift.datamodules.latent_cache import cached_autoencoder, fingerprint

SETTINGS = AutoencoderSettings(
    code_dim=2, channels=(3, 3), steps=3, batch_size=8, learning_rate=1e-3, code_noise=0.5, code_penalty=1e-4, seed=0
)
IMAGES = torch.randint(0, 17, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make(folder: Path) -> torch.Tensor:
    network = cached_autoencoder(IMAGES, 16, SETTINGS, folder, "small", show_progress=False)
    assert not network.training
    return network.encode(IMAGES / 16)


def test_the_key_changes_with_images_and_each_setting() -> None:
    changes = [
        {"code_dim": 3}, {"channels": (3, 4)}, {"steps": 4}, {"batch_size": 9}, {"learning_rate": 2e-3},
        {"code_noise": 0.4}, {"code_penalty": 2e-4}, {"seed": 1},
    ]  # fmt: skip
    assert len(changes) == len(SETTINGS.plain())
    keys = [fingerprint(IMAGES, SETTINGS), *(fingerprint(IMAGES, replace(SETTINGS, **c)) for c in changes)]
    other = IMAGES.clone()
    other[3, 0, 2, 2] += 1
    keys += [fingerprint(other, SETTINGS), fingerprint(IMAGES.flip(0), SETTINGS), fingerprint(IMAGES[:19], SETTINGS)]
    assert len(set(keys)) == len(keys)
    assert fingerprint(IMAGES.clone(), SETTINGS) == keys[0]


def test_training_is_a_function_of_images_and_settings() -> None:
    one, two = (train_autoencoder(IMAGES / 16, SETTINGS, show_progress=False).state_dict() for _ in range(2))
    other = train_autoencoder(IMAGES / 16, replace(SETTINGS, seed=1), show_progress=False).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_read_network_equals_the_trained_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = make(tmp_path)
    monkeypatch.setattr(latent_cache, "train_autoencoder", None)
    state = torch.get_rng_state()
    assert torch.equal(make(tmp_path), trained)
    assert torch.equal(torch.get_rng_state(), state)
    (file,) = tmp_path.iterdir()
    content = torch.load(file, weights_only=True)
    assert content["settings"]["channels"] == [3, 3]


@pytest.mark.parametrize("damage", ["cut off", "empty", "text", "other settings", "other weights"])
def test_a_damaged_file_is_named_and_replaced(tmp_path: Path, damage: str) -> None:
    expected = make(tmp_path)
    (file,) = tmp_path.iterdir()
    content = torch.load(file, weights_only=True)
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_text("no network")
    elif damage == "other settings":
        content["settings"]["steps"] = 99
        torch.save(content, file)
    else:
        content["weights"].pop("decoder.0.bias")
        torch.save(content, file)
    with pytest.warns(UserWarning, match=r"small-2d-.*\.pt.*trained anew") as caught:
        assert torch.equal(make(tmp_path), expected)
    assert len([w for w in caught if "trained anew" in str(w.message)]) == 1
    assert list(tmp_path.iterdir()) == [file]
    assert torch.equal(make(tmp_path), expected)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(content: object, file: Path) -> None:
        file.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(OSError, match="No space left"):
            make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_training_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(latent_cache.ConvAutoencoder, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit, RuntimeError)):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_processes_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: object) -> object:
        # meanwhile another process has finished
        monkeypatch.setattr(latent_cache, "train_autoencoder", train_autoencoder)
        others.append(make(tmp_path))
        network = train_autoencoder(*args)  # type: ignore[arg-type]
        with torch.no_grad():
            network.encoder[0].bias += 1.0
        return network

    others: list[torch.Tensor] = []
    monkeypatch.setattr(latent_cache, "train_autoencoder", late)
    mine = make(tmp_path)
    assert torch.equal(mine, others[0])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent_cache, "train_autoencoder", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file.*cache_folder"):
        make(tmp_path / "file" / "below")


def test_a_training_that_diverges_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        latent_cache.ConvAutoencoder, "regularized_loss", lambda self, *_: next(self.parameters()).sum() * float("nan")
    )
    with pytest.raises(ValueError, match="autoencoder_learning_rate"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []
