import functools
import math
from pathlib import Path

import lightning as L
import pytest
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.modules.defaults import DefaultAdam, WarmupCosine
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectGain
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[4, 4])


def data() -> GumbelDataModule:
    return GumbelDataModule(batch_size=16, batches_per_epoch=10, num_val=16, num_test=16, num_calibration=16)


class Rates(L.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, *args: object) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def rates(module: LogConcaveEBM, path: str | None = None, **settings: object) -> tuple[list[float], L.Trainer]:
    watch = Rates()
    trainer = ModuleContract()._trainer(**{"limit_val_batches": 0, "callbacks": [watch], **settings})
    trainer.fit(module, datamodule=data(), ckpt_path=path, weights_only=True)
    return watch.seen, trainer


def expected(step: int, steps: int, rate: float) -> float:
    rising = int(0.05 * steps)
    if step < rising:
        return rate * (step + 1) / (rising + 1)
    return rate * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / (steps - rising)))


@pytest.mark.parametrize("cls", [LogConcaveEBM, ConvexPotentialFlow])
def test_a_bare_module_has_the_one_default(cls: type) -> None:
    module = cls(1)
    assert isinstance(module.parameterization, DirectGain) and not module.parameterization.needs_calibration
    made = module.configure_optimizers()
    assert isinstance(made["optimizer"], DefaultAdam)
    assert isinstance(made["lr_scheduler"]["scheduler"], WarmupCosine)


@pytest.mark.parametrize("settings", [{"max_steps": 40}, {"max_steps": -1, "max_epochs": 4}])
def test_the_schedule_ends_with_the_trainers_own_steps(settings: dict) -> None:
    seen, _ = rates(LogConcaveEBM(1, SMALL), **settings)
    assert seen == pytest.approx([expected(step, 40, 4e-2) for step in range(40)])


def test_accumulated_batches_are_one_step_of_the_schedule() -> None:
    seen, _ = rates(LogConcaveEBM(1, SMALL), max_steps=-1, max_epochs=4, accumulate_grad_batches=2)
    assert seen[::2] == pytest.approx([expected(step, 20, 4e-2) for step in range(20)])


def test_learning_rate_is_the_full_rate() -> None:
    seen, _ = rates(LogConcaveEBM(1, SMALL, learning_rate=1e-3), max_steps=40)
    assert max(seen) == pytest.approx(1e-3)


def test_a_resume_with_more_steps_follows_the_longer_schedule(tmp_path: Path) -> None:
    _, trainer = rates(LogConcaveEBM(1, SMALL), max_steps=20)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    seen, _ = rates(LogConcaveEBM(1, SMALL), str(tmp_path / "half.ckpt"), max_steps=40)
    assert seen == pytest.approx([expected(step, 40, 4e-2) for step in range(20, 40)])


def test_without_a_known_end_the_rate_is_constant_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Endless(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: object) -> None:
            trainer.should_stop = trainer.global_step >= 12

    with caplog.at_level("INFO"):
        watch = Rates()
        trainer = ModuleContract()._trainer(max_steps=-1, max_epochs=-1, callbacks=[watch, Endless()])
        trainer.fit(LogConcaveEBM(1, SMALL), datamodule=data())
    assert watch.seen == [4e-2] * 12
    assert len([m for m in caplog.messages if "learning rate stays constant" in m]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"), [({"warmup": 1.0}, "warmup=1.0"), ({"total_steps": 0}, "total_steps=0")]
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarmupCosine(DefaultAdam([torch.nn.Parameter(torch.zeros(()))]), **arguments)
