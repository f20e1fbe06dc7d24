"""When figures are drawn, and of which weights."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from matplotlib.figure import Figure

from lightning_lift.callbacks._scheduled_figure import ScheduledFigure, Stage
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, flat, make_trainer, small_data, small_model


class Blank(ScheduledFigure):
    """Keeps the weights that it was asked to draw, and the log-density at 0."""

    label = "blank"

    def __init__(self, every_n_steps: int = 1000) -> None:
        super().__init__(every_n_steps)
        self.seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def figure(self, trainer: L.Trainer, pl_module: Any, data: Any, stage: Stage) -> tuple[Figure | None, str]:
        self.seen.append((trainer.global_step, flat(pl_module), pl_module.log_prob(torch.zeros(1, 1))))
        return Figure(figsize=(0.2, 0.2)), ""


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.rglob("*.png"))


@pytest.mark.parametrize(
    ("every", "kwargs", "expected"),
    [
        (20, {"max_steps": 40}, [10, 30, 40]),  # validations at 10, 20, ...; none from the sanity check
        (20, {"max_steps": 30}, [10, 30]),
        (1000, {"max_steps": 37}, [10, 37]),
        (1000, {"max_steps": 7, "limit_val_batches": 0}, [7]),
    ],
)
def test_a_figure_at_the_first_validation_then_by_cadence_and_at_the_end(
    tmp_path: Path, every: int, kwargs: dict[str, Any], expected: list[int]
) -> None:
    figure, model = Blank(every), small_model(PARAMETERIZATIONS["direct"])
    make_trainer(tmp_path, [figure], **kwargs).fit(model, small_data())
    assert [step for step, _, _ in figure.seen] == expected
    assert torch.equal(figure.seen[-1][1], flat(model)), "the last figure is of the trained model"
    assert names(tmp_path) == [f"blank_step_{step:08d}" for step in expected]
    assert [event.step for event in events(tmp_path).Images("blank/val")] == expected


@pytest.mark.parametrize("averaging_first", [True, False])
def test_averaged_weights_are_drawn_where_they_are_evaluated(averaging_first: bool, tmp_path: Path) -> None:
    class Validated(L.Callback):
        log_prob: torch.Tensor

        def on_validation_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
            pl_module.parameterization.eval()
            Validated.log_prob = pl_module.log_prob(torch.zeros(1, 1)).clone()

    figure, average = Blank(1), EMAWeightAveraging(decay=0.5)
    callbacks = [average, figure] if averaging_first else [figure, average]
    model = small_model(lr=0.1)
    make_trainer(tmp_path, [*callbacks, Validated()], max_steps=14, limit_val_batches=1).fit(model, small_data())
    assert [step for step, _, _ in figure.seen] == [10, 14]
    torch.testing.assert_close(figure.seen[0][2], Validated.log_prob)
    with torch.no_grad():
        final = model.eval().log_prob(torch.zeros(1, 1))
    torch.testing.assert_close(figure.seen[1][2], final)


def test_a_resumed_run_goes_on_and_validate_and_test_have_names_of_their_own(tmp_path: Path) -> None:
    model, data = small_model(PARAMETERIZATIONS["direct"]), small_data()
    first = make_trainer(tmp_path, [Blank(20)], max_steps=10)
    first.fit(model, data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    second = make_trainer(tmp_path, [Blank(20)], max_steps=30)
    second.fit(model, data, ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    second.validate(model, data, verbose=False)
    second.test(model, data, verbose=False)
    assert names(tmp_path) == ["blank_step_00000010", "blank_step_00000030", "blank_test", "blank_val"]
