"""``lightning-lift rescale``: the same function in a new file, from which training goes on."""

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn

from lightning_lift.cli import main
from lightning_lift.commands.rescale import rescale_checkpoint
from lightning_lift.datamodules import ConvAutoencoder, GumbelDataModule, TwoMoonsDataModule
from lightning_lift.modules import LogConcaveEBM, ReLUClassifier, ReLUMLP
from lightning_lift.modules.checkpoints import FORMAT, KEY
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient


def trainer(folder: Path, **settings: Any) -> L.Trainer:
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    return L.Trainer(accelerator="cpu", default_root_dir=folder, max_epochs=2, **(quiet | settings))


def classifier(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    network = functools.partial(ReLUMLP, num_classes=2, widths=[8, 8])
    module = ReLUClassifier(2, network, functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9))
    run = trainer(folder, **settings)
    run.fit(module, datamodule=TwoMoonsDataModule(num_train=64, batch_size=16))
    run.save_checkpoint(folder / "x.ckpt")
    return folder / "x.ckpt"


def density(folder: Path, parameterization: Any, activation: Any = "relu") -> Path:
    torch.manual_seed(0)
    network = functools.partial(ICNN, widths=[6, 6], activation=activation, strong_convexity=0.02)
    module = LogConcaveEBM(1, network, parameterization, learning_rate=1e-2)
    run = trainer(folder)
    data = GumbelDataModule(batch_size=32, batches_per_epoch=4, num_val=64, num_test=64, num_calibration=64)
    run.fit(module, datamodule=data)
    run.save_checkpoint(folder / "x.ckpt")
    return folder / "x.ckpt"


def test_a_classifier_goes_on_from_the_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = classifier(tmp_path)
    content = source.read_bytes()
    main(["rescale", str(source)])
    printed = capsys.readouterr().out
    output = tmp_path / "x-pathcond.ckpt"
    for part in ("pathcond: 16 units in 2 layers", "function change (exact)", "first moments", f"wrote {output}"):
        assert part in printed
    assert source.read_bytes() == content
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["x-pathcond.ckpt", "x.ckpt"]
    old, new = (ReLUClassifier.load_from_checkpoint(path, weights_only=True) for path in (source, output))
    inputs = torch.randn(50, 2)
    with torch.no_grad():
        torch.testing.assert_close(new(inputs), old(inputs), rtol=1e-4, atol=1e-6)
    factor = next(new.parameters()) / next(old.parameters())
    assert float((factor - 1.0).abs().max()) > 0.1
    buffers = [
        torch.load(path, weights_only=True)["optimizer_states"][0]["state"][0]["momentum_buffer"]
        for path in (source, output)
    ]
    torch.testing.assert_close(buffers[1], buffers[0] / factor, rtol=1e-4, atol=1e-9)
    run = trainer(tmp_path)
    run.fit_loop.max_epochs = 3
    run.fit(new, datamodule=TwoMoonsDataModule(num_train=64, batch_size=16), ckpt_path=output, weights_only=True)
    assert run.global_step == 12


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus])
def test_a_density(tmp_path: Path, parameterization: Any) -> None:
    source = density(tmp_path, parameterization)
    rescaling, said = rescale_checkpoint(source, tmp_path / "new.ckpt", "enorm")
    assert rescaling.report.num_units >= 10  # projection may have cut a unit off
    assert "first moments" in said
    points = torch.linspace(-3, 5, 40)[:, None]
    values = []
    for path in (source, tmp_path / "new.ckpt"):
        module = LogConcaveEBM.load_from_checkpoint(path, weights_only=True)
        values.append(module.log_prob(points).detach())
    torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-4)


def test_the_autoencoder_of_the_data_package(tmp_path: Path) -> None:
    module = ConvAutoencoder(dim=64, code_dim=4, channels=(4, 4))
    run = trainer(tmp_path, limit_train_batches=2)
    run.fit(module, torch.utils.data.DataLoader(torch.rand(8, 1, 8, 8), batch_size=4))
    run.save_checkpoint(tmp_path / "x.ckpt")
    rescaling, _ = rescale_checkpoint(tmp_path / "x.ckpt", tmp_path / "y.ckpt")
    assert rescaling.report.num_units > 0
    assert ConvAutoencoder.load_from_checkpoint(tmp_path / "y.ckpt", weights_only=True).side == 8


class Nameless(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.net(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(["rescale", *arguments])
    return capsys.readouterr().err


def test_errors_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = classifier(tmp_path)
    assert "no such file" in fails(capsys, str(tmp_path / "none.ckpt"))
    assert "is the checkpoint itself" in fails(capsys, str(source), "--output", str(source))
    assert "does not exist" in fails(capsys, str(source), "--output", str(tmp_path / "none" / "y.ckpt"))
    assert "invalid choice" in fails(capsys, str(source), "--method", "other")
    (tmp_path / "cut.ckpt").write_bytes(source.read_bytes()[:500])
    assert "truncated" in fails(capsys, str(tmp_path / "cut.ckpt"))
    checkpoint = torch.load(source, weights_only=True)
    torch.save(checkpoint | {"lightning_lift": {"format": 99}}, tmp_path / "new.ckpt")
    assert "format 99" in fails(capsys, str(tmp_path / "new.ckpt"))
    checkpoint["hyper_parameters"]["_class_path"] = "nowhere.Nothing"
    torch.save(checkpoint, tmp_path / "gone.ckpt")
    assert "--import nowhere" in fails(capsys, str(tmp_path / "gone.ckpt"))
    run = trainer(tmp_path)
    run.fit(Nameless(), torch.utils.data.DataLoader(torch.rand(8, 2)))
    run.save_checkpoint(tmp_path / "nameless.ckpt")
    assert "does not say which class" in fails(capsys, str(tmp_path / "nameless.ckpt"))
    assert not list(tmp_path.glob("*-pathcond*"))


def test_what_cannot_be_rescaled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Lift makes the weights"):
        rescale_checkpoint(density(tmp_path, functools.partial(Lift, body_widths=[8, 8])), tmp_path / "y.ckpt")
    with pytest.raises(ValueError, match="nothing was written"):
        rescale_checkpoint(density(tmp_path, ProjectedGradient, "softplus"), tmp_path / "y.ckpt")
    with pytest.raises(ValueError, match="averaged weights"):
        rescale_checkpoint(classifier(tmp_path, callbacks=[EMAWeightAveraging()]), tmp_path / "y.ckpt")
    assert not (tmp_path / "y.ckpt").exists()


def test_a_file_of_an_older_format_becomes_one_of_today(tmp_path: Path) -> None:
    """What is written is what was loaded and converted: it must not be converted a second time."""
    source = classifier(tmp_path)
    checkpoint = torch.load(source, weights_only=True)
    torch.save(checkpoint | {KEY: {"version": "0.1.0", "format": 1}}, source)
    rescale_checkpoint(source, tmp_path / "y.ckpt")
    assert torch.load(tmp_path / "y.ckpt", weights_only=True)[KEY]["format"] == FORMAT
