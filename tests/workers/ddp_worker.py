"""Trains 20 steps on a number of gloo processes and writes weights and metrics; started by test_ddp as a script."""

import functools
import sys
from pathlib import Path

import lightning as L
import torch

from lightning_lift.callbacks import CrossCovariance, DensityFigure, ShoulderOccupancy
from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.modules.divergence import DivergenceError
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

ARMS = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": functools.partial(Lift, slack_start=-2.0)}


def task(name: str, processes: int) -> tuple[L.LightningModule, L.LightningDataModule]:
    """A module and its data; the batches of all processes together have 32 rows."""
    kind, arm = name.split("_")
    sizes = {"batch_size": 32 // processes, "batches_per_epoch": 10, "num_val": 101, "num_test": 101}
    if kind == "ebm":
        network = functools.partial(ICNN, widths=[8, 8])
        return LogConcaveEBM(1, network, ARMS[arm], learning_rate=1e-2), GumbelDataModule(**sizes, num_calibration=64)
    network = functools.partial(ICNN, widths=[8, 8], strong_convexity="learned", actnorm=True)
    module = ConvexPotentialFlow(2, network, ARMS[arm], num_blocks=2, learning_rate=1e-2)
    return module, EightGaussiansDataModule(**sizes, std=0.5, num_calibration=64)


def main(processes: int, folder: Path) -> None:
    """Every arm in turn.

    Args:
        processes: how many.
        folder: where the results go.
    """
    torch.set_num_threads(1)
    for name in [f"{kind}_{arm}" for kind in ("ebm", "flow") for arm in ARMS]:
        L.seed_everything(0, verbose=False)
        module, data = task(name, processes)
        flow = isinstance(module, ConvexPotentialFlow)
        watch = [ShoulderOccupancy(every_n_steps=5), CrossCovariance(every_n_steps=10), DensityFigure()]
        trainer = L.Trainer(
            max_steps=20,
            # In float32 Adam blows the round-off of a flow's summation order up to 2e-5 within these steps.
            precision="64-true" if flow else "32-true",
            limit_val_batches=0 if flow else 1.0,
            accelerator="cpu",
            devices=processes,
            strategy="ddp" if processes > 1 else "auto",
            callbacks=[] if flow else watch,
            logger=False,
            default_root_dir=folder / name,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=data)
        metrics = {"train/loss": float(trainer.callback_metrics["train/loss"])}
        metrics |= trainer.test(module, datamodule=data, verbose=False)[0]
        if trainer.is_global_zero:
            weights = {key: p.detach() for key, p in module.named_parameters()}
            torch.save({"weights": weights, "metrics": metrics}, folder / f"{name}.pt")
    if processes > 1:
        diverge(folder)


class OneDiverges(LogConcaveEBM):
    """The loss of the last process is NaN at step 8, and nowhere else."""

    def batch_loss(self, batch: torch.Tensor, latent: torch.Tensor | None = None) -> torch.Tensor:
        loss = super().batch_loss(batch, latent)
        return loss * float("nan") if self.training and self.global_rank and self.global_step == 7 else loss


def diverge(folder: Path) -> None:
    """Each process writes the error that ended its fit.

    Args:
        folder: where the results go.
    """
    data = GumbelDataModule(batch_size=8, batches_per_epoch=20, num_val=8, num_test=8, num_calibration=8)
    module = OneDiverges(1, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus, learning_rate=1e-2)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    try:
        trainer.fit(module, datamodule=data)
    except DivergenceError as error:
        (folder / f"diverged_{module.global_rank}.txt").write_text(str(error))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
