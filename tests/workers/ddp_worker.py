"""Trains 20 steps on a number of gloo processes and writes weights and metrics; started by test_ddp as a script."""

import functools
import sys
from pathlib import Path

import lightning as L
import torch

from lightning_lift.callbacks import CrossCovariance, DensityFigure, PathConditioning, ShoulderOccupancy
from lightning_lift.datamodules import (
    EightGaussiansDataModule,
    GumbelDataModule,
    PairsDataModule,
    TwoMoonsDataModule,
)
from lightning_lift.modules import ConvexPotentialFlow, ConvexRegression, LogConcaveEBM, ReLUClassifier, ReLUMLP
from lightning_lift.modules.divergence import DivergenceError
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.parameterizations import (
    ADMM,
    DirectNoise,
    DirectSoftplus,
    FrozenBatch,
    IndependentBatch,
    Lift,
    ProjectedGradient,
)

ARMS = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": functools.partial(Lift, slack_start=-2.0)}
CONTROLS = {
    "frozen_batch": functools.partial(FrozenBatch, body_widths=[16, 8], slack_start=-2.0),
    "independent_batch": functools.partial(IndependentBatch, body_widths=[16, 8], slack_start=-2.0),
    "direct_noise": functools.partial(DirectNoise, latent_noise=0.5),
    "admm": functools.partial(ADMM, rho=1.0, inner_steps=3),
}
NAMES = [*(f"{kind}_{arm}" for kind in ("ebm", "flow") for arm in ARMS), *(f"ebm_{arm}" for arm in CONTROLS)]
NAMES += ["pairs_lift"]


def task(name: str, processes: int) -> tuple[L.LightningModule, L.LightningDataModule]:
    """A module and its data; the batches of all processes together have 32 rows."""
    kind, _, arm = name.partition("_")
    sizes = {"batch_size": 32 // processes, "batches_per_epoch": 10, "num_val": 101, "num_test": 101}
    if kind == "ebm":
        network = functools.partial(ICNN, widths=[8, 8])
        module = LogConcaveEBM(1, network, {**ARMS, **CONTROLS}[arm], learning_rate=1e-2)
        return module, GumbelDataModule(**sizes, num_calibration=64)
    if kind == "pairs":
        x = torch.randn(1010, 2, generator=torch.Generator().manual_seed(0))
        parts = {"x": x[:, :1], "context": x, "target": x.square().sum(1)}
        network = functools.partial(PICNN, widths=[8, 8], context_width=4)
        regression = ConvexRegression(1, network=network, parameterization=ARMS[arm], context_shape=(2,))
        return regression, PairsDataModule.from_arrays(**parts, batch_size=32 // processes)
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
    for name in NAMES:
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
    rescale(processes, folder)
    if processes > 1:
        diverge(folder)


def rescale(processes: int, folder: Path) -> None:
    """A classifier whose units are rescaled every second epoch.

    Args:
        processes: how many.
        folder: where its weights go.
    """
    L.seed_everything(0, verbose=False)
    network = functools.partial(ReLUMLP, num_classes=2, widths=[16, 16])
    module = ReLUClassifier(2, network, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        callbacks=[PathConditioning(every_n_epochs=2)],
        logger=False,
        default_root_dir=folder / "rescaled",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=TwoMoonsDataModule(num_train=64, batch_size=32 // processes))
    if trainer.is_global_zero:
        weights = {key: p.detach() for key, p in module.named_parameters()}
        torch.save({"weights": weights}, folder / "rescaled.pt")


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
    network = functools.partial(ICNN, widths=[8, 8])
    module = OneDiverges(1, network, DirectSoftplus, learning_rate=1e-2, lr_scheduler=None)
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
