from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from lightning_lift.callbacks import (
    CrossCovariance,
    DensityFigure,
    LatentStep,
    PeriodicCallback,
    ShoulderOccupancy,
    ShoulderVisits,
    TrailingCrossCovariance,
    UpdateNoise,
    WeightHistograms,
)
from tests.lightning_lift.callbacks.runs import (
    PARAMETERIZATIONS,
    GoesOn,
    break_,
    flat,
    make_trainer,
    small_data,
    small_model,
)


class Recorder(PeriodicCallback):
    """Notes when it looks, and misbehaves as badly as a look can."""

    def __init__(self, every_n_steps: int, at_start: bool = False) -> None:
        super().__init__(every_n_steps)
        self.looks_at_start = at_start
        self.steps: list[int] = []

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Tensor, step: int) -> None:
        self.steps.append(step)
        torch.rand(5)
        pl_module.eval()


def everything() -> list[L.Callback]:
    return [
        ShoulderOccupancy(3),
        CrossCovariance(5, num_batches=4, num_permutations=5),
        WeightHistograms(7),
        DensityFigure(5),
        LatentStep(3),
        ShoulderVisits(3, 50, num_trajectories=2),
        TrailingCrossCovariance(8, 5, num_permutations=5),
        UpdateNoise(9, num_batches=3),
        Recorder(1),
    ]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"max_steps": 20}, [6, 12, 18]),
        ({"max_steps": 14, "accumulate_grad_batches": 2}, [6, 12]),
        ({"max_steps": 5}, []),
    ],
)
def test_cadence_counts_optimizer_steps(tmp_path: Path, kwargs: dict[str, Any], expected: list[int]) -> None:
    recorder, with_start = Recorder(6), Recorder(6, at_start=True)
    trainer = make_trainer(tmp_path, [recorder, with_start], **kwargs)
    trainer.fit(small_model(PARAMETERIZATIONS["direct"]), small_data())
    assert recorder.steps == expected
    assert with_start.steps == [0, *expected]


def test_resume_goes_on_with_the_same_steps(tmp_path: Path) -> None:
    first, second = Recorder(6, at_start=True), Recorder(6, at_start=True)
    trainer = make_trainer(tmp_path, [first], max_steps=12)
    model = small_model(PARAMETERIZATIONS["direct"])
    trainer.fit(model, small_data())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    trainer = make_trainer(tmp_path, [second], max_steps=24)
    trainer.fit(model, small_data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    assert (first.steps, second.steps) == ([0, 6, 12], [18, 24])


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_callbacks_change_no_bit_of_the_training(name: str, tmp_path: Path) -> None:
    weights, draws = [], []
    for callbacks in ([], everything()):
        model = small_model(PARAMETERIZATIONS[name])
        torch.manual_seed(7)
        make_trainer(tmp_path, callbacks).fit(model, small_data())
        weights.append(flat(model))
        draws.append(torch.rand(3))
    assert torch.equal(*weights)
    assert torch.equal(*draws), "a callback consumed the global random generator"


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_a_diverged_model_is_reported_once_and_ends_nothing(name: str, tmp_path: Path) -> None:
    class Diverges(GoesOn):
        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 4:
                break_(pl_module)

    callbacks = everything()
    trainer = make_trainer(tmp_path, [Diverges(), *callbacks], limit_val_batches=0)
    with pytest.warns(UserWarning) as caught:
        trainer.fit(small_model(PARAMETERIZATIONS[name]), small_data())
    assert trainer.global_step == 20
    reading = ("CrossCovariance", "TrailingCrossCovariance", "UpdateNoise")
    for kind in ("ShoulderOccupancy", "WeightHistograms", "LatentStep", "ShoulderVisits", *reading):
        said = [str(w.message) for w in caught if str(w.message).startswith(kind)]
        assert len(said) == 1
        assert "diverged" in said[0] or "finite" in said[0]


def test_a_model_without_parameterization_is_left_alone(tmp_path: Path) -> None:
    class Plain(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.layer(batch).square().mean()

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    recorder = Recorder(1)
    callbacks = [recorder, CrossCovariance(1), DensityFigure()]
    with pytest.warns(UserWarning, match="Plain has no parameterization"):
        make_trainer(tmp_path, callbacks, max_steps=3).fit(Plain(), small_data())
    assert recorder.steps == []


def test_state_keys_are_unique_by_arguments() -> None:
    callbacks: list[L.Callback] = [kind(n) for kind in (ShoulderOccupancy, WeightHistograms) for n in (10, 20)]
    callbacks += [ShoulderOccupancy(10, slope=0.1), CrossCovariance(), CrossCovariance(seed=1)]
    callbacks += [DensityFigure(10), DensityFigure(20)]
    assert len({callback.state_key for callback in callbacks}) == len(callbacks)


@pytest.mark.parametrize("kind", [ShoulderOccupancy, CrossCovariance, WeightHistograms, DensityFigure])
@pytest.mark.parametrize("every", [0, -3, 2.5, True])
def test_bad_cadence_is_refused_by_name(kind: Any, every: Any) -> None:
    with pytest.raises(ValueError, match="every_n_steps="):
        kind(every_n_steps=every)
