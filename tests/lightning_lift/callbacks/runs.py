"""Small real runs that the callbacks' tests share."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_lift.datamodules.gumbel import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, Parameterization, ProjectedGradient
from lightning_lift.partition import Quadrature

PARAMETERIZATIONS: dict[str, Callable[[], Parameterization]] = {
    # A numeric start has a random emission, so that the latent moves from the first step on. Much narrower bodies can
    # be left with one live ReLU, and a standardised code of one live feature is a constant.
    "lift": partial(Lift, body_widths=(16, 16), slack_start=-2.0),
    "direct": DirectSoftplus,
    "pgd": ProjectedGradient,
}


def small_model(
    parameterization: Callable[[], Parameterization] = PARAMETERIZATIONS["lift"], dim: int = 1, lr: float = 1e-2
) -> LogConcaveEBM:
    torch.manual_seed(0)
    return LogConcaveEBM(
        dim,
        network=partial(
            ICNN, widths=(8, 8), strong_convexity=0.02, divide_by_fan_in=False, weight_init="folded_normal"
        ),
        parameterization=parameterization,
        partition=partial(Quadrature, num_points=101 if dim == 1 else 21, evaluation_points=201 if dim == 1 else 41),
        optimizer=partial(torch.optim.Adam, lr=lr),
        lr_scheduler=None,
    )


def small_data(**kwargs: Any) -> GumbelDataModule:
    return GumbelDataModule(**{"batch_size": 32, "batches_per_epoch": 10, "num_val": 64, "num_test": 64} | kwargs)


def make_trainer(folder: Path, callbacks: Sequence[L.Callback] = (), loggers: Any = None, **kwargs: Any) -> L.Trainer:
    options: dict[str, Any] = {
        "max_steps": 20,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 2,
    }
    if loggers is None:
        loggers = TensorBoardLogger(folder, name="logs", version="a")
    return L.Trainer(default_root_dir=folder, callbacks=list(callbacks), logger=loggers, **options | kwargs)


def events(folder: Path) -> EventAccumulator:
    """All that TensorBoard was told in the one run below a folder."""
    (run,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    accumulator = EventAccumulator(str(run), size_guidance={"histograms": 0, "images": 0, "scalars": 0})
    return accumulator.Reload()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@torch.no_grad()
def break_(model: LogConcaveEBM) -> None:
    """What a diverged training leaves behind."""
    for parameter in model.parameterization.parameters():
        parameter.fill_(float("nan"))


class GoesOn(L.Callback):
    """Let a fit go on where its loss is not finite: what callbacks then do is their own."""

    judges_divergence = True
