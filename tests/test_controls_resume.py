"""A resumed run of each ablation and control equals the uninterrupted one, bit for bit."""

import functools
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.callbacks import CrossCovariance, ShoulderOccupancy
from lightning_lift.parameterizations import (
    ADMM,
    DirectNoise,
    FrozenBatch,
    IndependentBatch,
    LearnedCode,
    NoBody,
    NoSlack,
)
from tests import test_resume

BODY: dict[str, Any] = {"body_widths": [8, 4]}
CONTROLS: dict[str, Any] = {
    "no_slack": functools.partial(NoSlack, **BODY),
    "no_body": NoBody,
    "frozen_batch": functools.partial(FrozenBatch, **BODY),
    "independent_batch": functools.partial(IndependentBatch, **BODY),
    "learned_code": functools.partial(LearnedCode, **BODY),
    "direct_noise": functools.partial(DirectNoise, latent_noise=[[0, 0.5], [12, 0.1]]),
    "admm": functools.partial(ADMM, rho=1.0, inner_steps=3),
}


@pytest.fixture(autouse=True)
def arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_resume, "ARMS", CONTROLS)


@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize("arm", CONTROLS)
def test_resumed_from_mid_epoch_and_from_an_epochs_end(tmp_path: Path, arm: str, averaging: bool) -> None:
    num_train = 16 * test_resume.EPOCH  # a fixed set: the order of its rows must go on too
    whole = test_resume.run(tmp_path / "whole", arm, num_train, averaging=averaging)
    for step in (test_resume.EPOCH + 2,) if averaging else (test_resume.EPOCH, test_resume.EPOCH + 2):
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        resumed = test_resume.run(tmp_path / f"from{step}", arm, num_train, checkpoint, averaging=averaging)
        test_resume.assert_equal(whole, resumed)


@pytest.mark.parametrize("arm", CONTROLS)
def test_watching_changes_nothing(tmp_path: Path, arm: str) -> None:
    """Diagnostics ask for latents of other batches between the steps: memories must not shift."""
    watch = [ShoulderOccupancy(every_n_steps=2), CrossCovariance(every_n_steps=4, num_batches=4)]
    whole = test_resume.run(tmp_path / "whole", arm)
    watched = test_resume.run(tmp_path / "watched", arm, watch=watch, default_root_dir=tmp_path)
    test_resume.assert_equal(whole, watched)
