"""A checkpoint's place in the data: that of the last optimizer step, through chains of interruptions."""

import contextlib
import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus

BATCHES, STEPS = 6, 14


class Watched(LogConcaveEBM):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[tuple[int, float]] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen.append((batch_idx, float(batch.double().sum())))
        return super().training_step(batch, batch_idx)


class StopError(Exception):
    pass


class SaveAt(L.Callback):
    """Saves at a hook of the n-th batch, and ends the run there, as Ctrl-C or a full queue would."""

    def __init__(self, hook: str, batch: int, path: Path) -> None:
        self.count = 0

        def save(trainer: L.Trainer, *_: Any) -> None:
            if self.count == batch:
                trainer.save_checkpoint(path)
                raise StopError

        setattr(self, hook, save)

    def on_train_batch_start(self, *_: Any) -> None:
        self.count += 1


def run(save: SaveAt | None = None, ckpt_path: Path | None = None, accumulate: int = 1) -> Watched:
    torch.manual_seed(0)
    module = Watched(1, functools.partial(ICNN, widths=[4]), DirectSoftplus, learning_rate=1e-2)
    data = GumbelDataModule(batch_size=8, num_train=8 * BATCHES, num_val=8, num_test=8)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=accumulate,
        callbacks=[] if save is None else [save],
    )
    with contextlib.suppress(StopError):
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=None if ckpt_path is None else True)
    return module


def assert_continued(whole: Watched, resumed: Watched) -> None:
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    for name, tensor in whole.named_parameters():
        assert torch.equal(tensor, dict(resumed.named_parameters())[name]), name


@pytest.mark.parametrize("first", ["on_before_backward", "on_train_batch_end"])
@pytest.mark.parametrize("second", ["on_before_backward", "on_train_batch_end"])
def test_a_run_that_is_interrupted_twice(tmp_path: Path, first: str, second: str) -> None:
    whole = run()
    run(SaveAt(first, 3, tmp_path / "a"))
    run(SaveAt(second, 6, tmp_path / "b"), tmp_path / "a")
    resumed = run(ckpt_path=tmp_path / "b")
    assert_continued(whole, resumed)
    done = {"on_train_batch_end": 3}.get(first, 2) + {"on_train_batch_end": 6}.get(second, 5)
    assert len(resumed.seen) == STEPS - done


@pytest.mark.parametrize(("accumulate", "batch"), [(2, 1), (4, 6), (4, 9)])
@pytest.mark.parametrize("hook", ["on_before_backward", "on_train_batch_end"])
def test_batches_whose_gradients_were_not_used_are_had_again(
    tmp_path: Path, hook: str, batch: int, accumulate: int
) -> None:
    whole = run(accumulate=accumulate)
    run(SaveAt(hook, batch, tmp_path / "a"), accumulate=accumulate)
    assert_continued(whole, run(ckpt_path=tmp_path / "a", accumulate=accumulate))
