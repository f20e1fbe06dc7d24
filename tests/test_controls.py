"""Ablations and controls: reachable by name, from one start and on one data stream, and resumed bit for bit."""

import copy
import functools
import hashlib
import inspect
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_lift.cli import LiftCLI
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift, Parameterization, names

ROOT = Path(__file__).parent.parent
ARMS = {name: kind for name, kind in vars(names).items() if inspect.isclass(kind) and kind.__module__ == names.__name__}
OWN_START = {"no_slack"}  # its weights are those of a random emission, which cannot be set


def digest(*tensors: Tensor) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()


class Witness(ICNN):
    """An ICNN that remembers its start before any parameterization has taken it over."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, widths=(8, 8))
        self.start = {name: p.detach().clone() for name, p in self.named_parameters()}


class DataOrder(L.Callback):
    """Hashes the batches of training in their order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.seen.append(digest(batch))


def common_start(arm: str, seed: int = 0) -> tuple[str, dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Hash of the network's start, the start, the weights before training, and the hashes of the batches."""
    L.seed_everything(seed, verbose=False)
    kind: type[Parameterization] = ARMS[arm]
    module = LogConcaveEBM(1, Witness, kind, learning_rate=1e-2)
    start = module.network.start
    module.parameterization.calibrate([torch.linspace(-1, 1, 16)[:, None]])
    with torch.no_grad():
        weights = copy.deepcopy(module.parameterization).eval().weights()
    free = {name: p.detach().clone() for name, p in module.network.named_parameters()}
    order = DataOrder()
    trainer = L.Trainer(
        max_epochs=2,
        callbacks=[order],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    sizes = {"batch_size": 16, "batches_per_epoch": 3, "num_val": 32, "num_test": 32, "num_calibration": 32}
    trainer.fit(module, datamodule=GumbelDataModule(**sizes, data_seed=seed))
    return digest(*start.values()), start, {**free, **weights}, order.seen


def test_every_arm_has_the_same_start_and_the_same_data() -> None:
    reference = common_start("pgd")
    assert len(reference[3]) == len(set(reference[3])) == 6
    for arm in ARMS:
        network, start, weights, order = common_start(arm)
        assert network == reference[0], arm
        assert order == reference[3], arm
        if arm in OWN_START:
            assert any(float((weights[name] - start[name]).abs().max()) > 0.01 for name in start)
            continue
        assert weights.keys() == start.keys(), arm
        for name, tensor in start.items():
            torch.testing.assert_close(weights[name], tensor, rtol=1e-6, atol=0.0, msg=f"{arm}: {name}")
    other = common_start("pgd", seed=1)
    assert other[0] != reference[0]
    assert not set(other[3]) & set(reference[3])


def built(*flags: str) -> Any:
    """The module of the Gumbel configuration with these flags, after two steps."""
    short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"]
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
    bare = ["--trainer.callbacks", "null", "--trainer.logger", "false", "--trainer.enable_checkpointing", "false"]
    config = str(ROOT / "configs" / "ebm_gumbel.yaml")
    return LiftCLI(["fit", "--config", config, *flags, *short, *quiet, *bare]).model


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_chosen_by_its_short_name(arm: str, in_an_empty_folder: None) -> None:
    module = built("--model.parameterization", arm)
    assert type(module.parameterization) is ARMS[arm]
    if issubclass(ARMS[arm], Lift):
        assert module.parameterization.body_widths == (32, 16), "the lift's own arguments stay"


@pytest.mark.parametrize("arm", ["pgd", "lift"])
def test_a_principled_start_is_an_override_of_the_network(arm: str, in_an_empty_folder: None) -> None:
    overlay = ["--config", str(ROOT / "configs" / "network" / "principled.yaml")]
    module = built(*overlay, "--model.parameterization", arm)
    stored = module.hparams["network"]["init_args"]
    assert stored["weight_init"] == "principled"
    assert stored["widths"] == [32, 32, 32], "the rest of the network stays"


def test_a_schedule_of_noise_and_a_floor_come_from_the_command_line(in_an_empty_folder: None) -> None:
    schedule = "[[0,0.2],[100,0.0]]"
    noisy = built("--model.parameterization", "direct_noise", "--model.parameterization.latent_noise", schedule)
    assert noisy.parameterization.latent_noise == [[0, 0.2], [100, 0.0]]
    floored = built("--model.parameterization", "pgd", "--model.parameterization.floor", "1e-4")
    assert floored.parameterization.floor == 1e-4


def test_factories_with_arguments_are_stored_plainly() -> None:
    kind = functools.partial(names.direct_noise, latent_noise=[[0, 0.2], [10, 0.1]])
    module = LogConcaveEBM(1, ICNN, kind)
    stored = module.hparams["parameterization"]["init_args"]["latent_noise"]
    assert stored == [[0, 0.2], [10, 0.1]]
