"""Trains 20 steps on a number of gloo processes and writes weights and metrics; started by test_ddp as a script."""

import functools
import sys
from pathlib import Path

import lightning as L
import torch

from datamodules import GumbelDataModule
from lightning_lift.callbacks import CrossCovariance, DensityFigure, ShoulderOccupancy
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

ARMS = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": functools.partial(Lift, slack_start=-2.0)}


def main(processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for arm, parameterization in ARMS.items():
        L.seed_everything(0, verbose=False)
        module = LogConcaveEBM(1, functools.partial(ICNN, widths=[8, 8]), parameterization, learning_rate=1e-2)
        data = GumbelDataModule(
            batch_size=32 // processes, batches_per_epoch=10, num_val=101, num_test=101, num_calibration=64
        )
        trainer = L.Trainer(
            max_steps=20,
            accelerator="cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            callbacks=[ShoulderOccupancy(every_n_steps=5), CrossCovariance(every_n_steps=10), DensityFigure()],
            logger=False,
            default_root_dir=folder / arm,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=data)
        metrics = trainer.test(module, datamodule=data, verbose=False)[0]
        if trainer.is_global_zero:
            weights = {name: p.detach() for name, p in module.named_parameters()}
            torch.save({"weights": weights, "metrics": metrics}, folder / f"{arm}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
