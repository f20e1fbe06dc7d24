from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch

from lightning_lift.callbacks import LatentStep
from lightning_lift.diagnostics import latent_of, latent_step
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus
from lightning_lift.partition import Quadrature
from tests.lightning_lift.callbacks.runs import (
    PARAMETERIZATIONS,
    GoesOn,
    break_,
    events,
    flat,
    make_trainer,
    small_data,
    small_model,
)


class ByHand(L.Callback):
    """The same differences, from latents kept by itself."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        self.before = latent_of(pl_module, batch)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
        self.steps[trainer.global_step] = latent_step(self.before, latent_of(pl_module, batch), 1e-2)


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_scalars_are_the_measured_steps(name: str, tmp_path: Path) -> None:
    hand = ByHand()
    model = small_model(PARAMETERIZATIONS[name])
    make_trainer(tmp_path, [LatentStep(4), hand], max_steps=12).fit(model, small_data())
    log = events(tmp_path)
    for tag, key in [
        ("latent/step", "rms"),
        ("latent/step_max", "max"),
        ("latent/step_per_rate", "rms_per_rate"),
        ("latent/step_max_per_rate", "max_per_rate"),
    ]:
        got = [(e.step, e.value) for e in log.Scalars(tag)]
        assert [step for step, _ in got] == [4, 8, 12]
        assert [value for _, value in got] == pytest.approx([hand.steps[s][key] for s, _ in got], rel=1e-6)
        assert all(value > 0.0 for _, value in got)


def test_accumulation_measures_the_batch_that_steps(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"])
    make_trainer(tmp_path, [LatentStep(2)], max_steps=4, accumulate_grad_batches=2).fit(model, small_data())
    scalars = events(tmp_path).Scalars("latent/step_per_rate")
    assert [e.step for e in scalars] == [2, 4]
    assert all(0.1 < e.value < 2.0 for e in scalars), "Adam moves a direct latent by about its rate"


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    finals = []
    for i, callbacks in enumerate(([LatentStep(3)], [])):
        model = small_model()
        make_trainer(tmp_path / str(i), callbacks, max_steps=10).fit(model, small_data())
        finals.append(flat(model))
    assert torch.equal(*finals)


def test_a_scheduled_rate_is_that_of_the_step(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"], lr=1.0)
    model._optimizer = partial(torch.optim.SGD, lr=1e-2)
    model._lr_scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    hand = ByHand()
    make_trainer(tmp_path, [LatentStep(1), hand], max_steps=4).fit(model, small_data())
    values = [(e.step, e.value) for e in events(tmp_path).Scalars("latent/step_per_rate")]
    # The step number s was made at rate 1e-2 / 2^(s - 1); by hand it is over 1e-2 always.
    expected = [hand.steps[step]["rms_per_rate"] * 2.0 ** (step - 1) for step, _ in values]
    assert [value for _, value in values] == pytest.approx(expected, rel=1e-5)


def test_several_optimizer_steps_a_batch_are_measured_together(tmp_path: Path) -> None:
    class TwoSteps(LogConcaveEBM):
        automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            optimizer = self.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                self.manual_backward(self.batch_loss(batch))
                optimizer.step()

    torch.manual_seed(0)
    model = TwoSteps(1, partial(ICNN, widths=(8, 8)), DirectSoftplus, partial(Quadrature, num_points=101))
    make_trainer(tmp_path, [LatentStep(3)], max_steps=12, limit_val_batches=0).fit(model, small_data())
    scalars = events(tmp_path).Scalars("latent/step_max_per_rate")
    assert [e.step for e in scalars] == [4, 6, 10, 12]
    assert all(1.0 < e.value < 4.0 for e in scalars), "two Adam steps move a direct latent by up to about two rates"


def test_a_diverged_model_is_said_once(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"])

    class Break(GoesOn):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
            break_(pl_module)

    with pytest.warns(UserWarning, match="diverged"):
        make_trainer(tmp_path, [Break(), LatentStep(1)], max_steps=2, limit_val_batches=0, detect_anomaly=False).fit(
            model, small_data()
        )
    assert "latent/step" not in events(tmp_path).Tags()["scalars"]
