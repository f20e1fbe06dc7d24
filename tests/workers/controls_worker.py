"""Trains the controls on a number of gloo processes and writes weights and metrics; started by test_controls_ddp."""

import functools
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import ADMM, DirectNoise, FrozenBatch, IndependentBatch

LIFT: dict[str, Any] = {"body_widths": [16, 8], "slack_start": -2.0}
ARMS = {
    "frozen_batch": functools.partial(FrozenBatch, **LIFT),
    "independent_batch": functools.partial(IndependentBatch, **LIFT),
    "direct_noise": functools.partial(DirectNoise, latent_noise=0.5),
    "admm": functools.partial(ADMM, rho=1.0, inner_steps=3),
}


def main(processes: int, folder: Path) -> None:
    """Every arm in turn; the batches of all processes together have 32 rows.

    Args:
        processes: how many.
        folder: where the results go.
    """
    torch.set_num_threads(1)
    for name, arm in ARMS.items():
        L.seed_everything(0, verbose=False)
        module = LogConcaveEBM(1, functools.partial(ICNN, widths=[8, 8]), arm, learning_rate=1e-2)
        sizes = {"batch_size": 32 // processes, "batches_per_epoch": 10, "num_val": 101, "num_test": 101}
        data = GumbelDataModule(**sizes, num_calibration=64)
        trainer = L.Trainer(
            max_steps=20,
            accelerator="cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            logger=False,
            default_root_dir=folder / name,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=data)
        metrics = trainer.test(module, datamodule=data, verbose=False)[0]
        if trainer.is_global_zero:
            weights = {key: p.detach() for key, p in module.named_parameters()}
            torch.save({"weights": weights, "metrics": metrics}, folder / f"{name}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
