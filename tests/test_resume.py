"""A resumed run equals the uninterrupted one, bit for bit, and a validation changes neither."""

import functools
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from lightning_lift.callbacks import CrossCovariance, DensityFigure, LastCheckpoint, ShoulderOccupancy, WeightHistograms
from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule, PairsDataModule
from lightning_lift.modules import ConvexPotentialFlow, ConvexRegression, LogConcaveEBM, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, IndependentBatch, Lift, ProjectedGradient
from lightning_lift.partition import FlowImportance, Langevin

ARMS: dict[str, Any] = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": Lift}
EPOCH, STEPS = 6, 18


def run(
    folder: Path, arm: str, num_train: int | None = None, ckpt_path: Path | None = None, **settings: Any
) -> dict[str, Any]:
    """Trains to the end, from the start or from a checkpoint, and gives the last checkpoint."""
    L.seed_everything(0, verbose=False)
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=STEPS)
    fitting: dict[str, Any] = {"lr_scheduler": schedule, "learning_rate": 2e-2}
    sizes = {"batch_size": 16, "batches_per_epoch": EPOCH, "num_val": 64, "num_test": 64, "num_calibration": 64}
    network = functools.partial(ICNN, widths=[8, 8])
    kind = settings.pop("kind", LogConcaveEBM)
    module: L.LightningModule = kind(1, network, ARMS.get(arm, DirectSoftplus), **fitting)
    data: L.LightningDataModule = GumbelDataModule(**sizes, num_train=num_train)
    flow, two_columns = settings.pop("flow", None), settings.pop("two_columns", None)
    if two_columns is not None:
        module, data = two_columns(2, **fitting), EightGaussiansDataModule(**sizes, num_train=num_train, std=0.5)
    if flow is not None:
        network = functools.partial(ICNN, widths=[8, 8], strong_convexity="learned", actnorm=True)
        module = ConvexPotentialFlow(2, network, ARMS[arm], num_blocks=2, logdet=flow, **fitting)
        data = EightGaussiansDataModule(**sizes, num_train=num_train, std=0.5)
    if settings.pop("pairs", False):
        generator = torch.Generator().manual_seed(0)
        x, weight = torch.randn(20 * EPOCH, 2, generator=generator), torch.rand(20 * EPOCH, generator=generator)
        module = ConvexRegression(2, network=network, parameterization=ARMS[arm], **fitting)
        data = PairsDataModule.from_arrays(x, target=x.square().sum(1), weight=weight, batch_size=16)
    averaging = [EMAWeightAveraging(decay=0.9)] if settings.pop("averaging", False) else []
    keep = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    watch = settings.pop("watch", [])
    trainer = L.Trainer(
        **{
            "max_epochs": STEPS // EPOCH,
            "callbacks": [*averaging, *watch, keep],
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **settings,
        }
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    final: dict[str, Any] = torch.load(folder / f"step={STEPS}.ckpt", weights_only=True)
    return final


def same(one: Any, two: Any) -> bool:
    """Bit for bit, also inside the extra states of modules."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    keys = [key for key in ("state_dict", "current_model_state") if key in one]
    assert keys
    for key in keys:
        for name, value in one[key].items():
            assert same(value, two[key][name]), (key, name)
    first, second = one["optimizer_states"][0]["state"], two["optimizer_states"][0]["state"]
    for index, state in first.items():
        assert all(torch.equal(value, second[index][name]) for name, value in state.items())
    assert one["lr_schedulers"] == two["lr_schedulers"]


@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize("num_train", [None, 16 * EPOCH], ids=["stream", "fixed"])
@pytest.mark.parametrize("arm", ARMS)
def test_resumed_from_mid_epoch_and_from_an_epochs_end(
    tmp_path: Path, arm: str, num_train: int | None, averaging: bool
) -> None:
    whole = run(tmp_path / "whole", arm, num_train, averaging=averaging)
    for step in (EPOCH, EPOCH + 2):
        resumed = run(
            tmp_path / f"from{step}", arm, num_train, tmp_path / "whole" / f"step={step}.ckpt", averaging=averaging
        )
        assert_equal(whole, resumed)


@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize(("arm", "flow"), [*((arm, "exact") for arm in ARMS), ("direct", "stochastic")])
def test_flows_resume_from_mid_epoch(tmp_path: Path, arm: str, flow: str, averaging: bool) -> None:
    """ActNorms do not start again from other rows, and a stochastic log-determinant draws the same probes."""
    settings = {"flow": flow, "averaging": averaging, "limit_val_batches": 0}
    whole = run(tmp_path / "whole", arm, None, **settings)
    resumed = run(tmp_path / "resumed", arm, None, tmp_path / "whole" / f"step={EPOCH + 2}.ckpt", **settings)
    assert_equal(whole, resumed)
    assert all(bool(flag) for name, flag in whole["state_dict"].items() if name.endswith("initialized"))


@pytest.mark.parametrize("arm", ["direct", "lift"])
def test_batches_with_parts_resume_from_mid_epoch(tmp_path: Path, arm: str) -> None:
    whole = run(tmp_path / "whole", arm, pairs=True)
    resumed = run(tmp_path / "resumed", arm, ckpt_path=tmp_path / "whole" / f"step={EPOCH + 2}.ckpt", pairs=True)
    assert_equal(whole, resumed)


def test_resumed_with_every_callback_watching(tmp_path: Path) -> None:
    def watch() -> list[L.Callback]:
        return [
            ShoulderOccupancy(every_n_steps=2),
            CrossCovariance(every_n_steps=4),
            WeightHistograms(),
            DensityFigure(),
        ]

    whole = run(tmp_path / "whole", "lift")
    watched = run(tmp_path / "watched", "lift", watch=watch(), default_root_dir=tmp_path)
    assert_equal(whole, watched)
    resumed = run(
        tmp_path / "resumed",
        "lift",
        ckpt_path=tmp_path / "watched" / "step=8.ckpt",
        watch=watch(),
        default_root_dir=tmp_path,
    )
    assert_equal(whole, resumed)


@pytest.mark.parametrize("num_train", [None, 16 * EPOCH], ids=["stream", "fixed"])
def test_validating_in_mid_epoch_changes_nothing(tmp_path: Path, num_train: int | None) -> None:
    """Beside the weights the checkpoint holds the summary and the window, which a validation may refresh."""
    without = run(tmp_path / "without", "lift", num_train, limit_val_batches=0)
    often = run(tmp_path / "often", "lift", num_train, val_check_interval=2)
    resumed = run(tmp_path / "resumed", "lift", num_train, tmp_path / "often" / "step=8.ckpt", val_check_interval=2)
    for name, tensor in without["state_dict"].items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, often["state_dict"][name]), name
            assert torch.equal(tensor, resumed["state_dict"][name]), name


class Interrupt(L.Callback):
    """Ctrl-C at a hook of the batch behind so many steps."""

    def __init__(self, hook: str, step: int) -> None:
        def stop(trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == step:
                raise KeyboardInterrupt

        setattr(self, hook, stop)


@pytest.mark.parametrize(("arm", "averaging"), [("pgd", False), ("lift", True)])
@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_backward", "on_before_optimizer_step"])
def test_resumed_after_an_interruption_inside_a_batch(tmp_path: Path, arm: str, hook: str, averaging: bool) -> None:
    """The batch has been served and not used: the resumed run has it again."""
    whole = run(tmp_path / "whole", arm, 16 * EPOCH, averaging=averaging)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as left:
        watch = [Interrupt(hook, EPOCH + 2), LastCheckpoint(str(tmp_path / "cut"))]
        run(tmp_path / "cut", arm, 16 * EPOCH, averaging=averaging, watch=watch)
    signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    assert left.value.code == 1
    resumed = run(tmp_path / "resumed", arm, 16 * EPOCH, tmp_path / "cut" / "exception.ckpt", averaging=averaging)
    assert_equal(whole, resumed)


@pytest.mark.parametrize("hook", ["on_validation_epoch_start", "on_validation_batch_start"])
def test_resumed_after_an_interruption_inside_a_validation(tmp_path: Path, hook: str) -> None:
    """Averaged and trained weights have changed places by then."""
    settings: dict[str, Any] = {"averaging": True, "val_check_interval": 2, "num_sanity_val_steps": 0}
    whole = run(tmp_path / "whole", "pgd", 16 * EPOCH, **settings)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        watch = [Interrupt(hook, EPOCH + 2), LastCheckpoint(str(tmp_path / "cut"))]
        run(tmp_path / "cut", "pgd", 16 * EPOCH, watch=watch, **settings)
    signal.signal(signal.SIGINT, handler)
    resumed = run(tmp_path / "resumed", "pgd", 16 * EPOCH, tmp_path / "cut" / "exception.ckpt", **settings)
    assert_equal(whole, resumed)


SMALL = functools.partial(ICNN, widths=[4], strong_convexity=0.5)
FLOW = functools.partial(FlowImportance, num_layers=1, hidden_features=8, warm_up=5, max_flow_steps=2)
MOVED: dict[str, Any] = {
    "chains": functools.partial(
        LogConcaveEBM,
        network=SMALL,
        parameterization=DirectSoftplus,
        partition=functools.partial(Langevin, num_chains=16, num_steps=1),
    ),
    "proposal": functools.partial(LogConcaveEBM, network=SMALL, parameterization=DirectSoftplus, partition=FLOW),
    "running statistics": functools.partial(
        NormalizingFlow, flow="realnvp", num_layers=2, hidden_features=8, batch_norm=True
    ),
    "probes": functools.partial(
        ConvexPotentialFlow, network=SMALL, parameterization=DirectSoftplus, num_blocks=1, logdet="stochastic"
    ),
    "batch before": functools.partial(ConvexPotentialFlow, network=SMALL, parameterization=IndependentBatch),
}


@pytest.mark.filterwarnings("ignore:FlowImportance", "ignore:Langevin")
@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize("kind", MOVED)
def test_what_an_interrupted_step_has_moved_is_put_back(tmp_path: Path, kind: str, averaging: bool) -> None:
    """Chains, generators and statistics that move in a forward, in the second batch of an accumulated step."""
    settings: dict[str, Any] = {
        "two_columns": MOVED[kind],
        "averaging": averaging,
        "limit_val_batches": 0,
        "accumulate_grad_batches": 2,
        "max_epochs": 2 * STEPS // EPOCH,
    }
    whole = run(tmp_path / "whole", "", 16 * EPOCH, **settings)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        watch = [Interrupt("on_before_optimizer_step", 7), LastCheckpoint(str(tmp_path / "cut"))]
        run(tmp_path / "cut", "", 16 * EPOCH, watch=watch, **settings)
    signal.signal(signal.SIGINT, handler)
    resumed = run(tmp_path / "resumed", "", 16 * EPOCH, tmp_path / "cut" / "exception.ckpt", **settings)
    assert_equal(whole, resumed)


class OneCycle(LogConcaveEBM):
    """Asks for the number of steps before the checkpoint's place in the data is known."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters())
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


@pytest.mark.parametrize("num_train", [None, 16 * EPOCH], ids=["stream", "fixed"])
def test_resumed_under_a_schedule_that_asks_for_the_number_of_steps(tmp_path: Path, num_train: int | None) -> None:
    whole = run(tmp_path / "whole", "direct", num_train, kind=OneCycle)
    resumed = run(
        tmp_path / "resumed", "direct", num_train, tmp_path / "whole" / f"step={EPOCH + 2}.ckpt", kind=OneCycle
    )
    assert_equal(whole, resumed)


@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize("steps", [EPOCH, EPOCH + 3, EPOCH + 4])
def test_a_run_is_extended_from_its_last_checkpoint(tmp_path: Path, steps: int, averaging: bool) -> None:
    """Whether it ended with an epoch, a validation or neither."""
    settings: dict[str, Any] = {"averaging": averaging, "max_epochs": -1, "val_check_interval": 3}
    whole = run(tmp_path / "whole", "lift", max_steps=STEPS, **settings)
    with pytest.raises(FileNotFoundError):  # of the step that it does not come to
        run(tmp_path / "first", "lift", max_steps=steps, watch=[LastCheckpoint(str(tmp_path))], **settings)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == steps
    extended = run(tmp_path / "second", "lift", ckpt_path=tmp_path / "last.ckpt", max_steps=STEPS, **settings)
    assert_equal(whole, extended)
