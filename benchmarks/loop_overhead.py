"""What does Lightning with our callbacks cost over a bare PyTorch loop of the same model, data and steps?

Both train the same LogConcaveEBM (ICNN 128x3, batch 256, quadrature) on the same Gumbel stream with the same optimizer,
clipping and projection. The bare loop has no logging, validation, checkpoint or callback. The Lightning run is what
``lightning-lift fit --config configs/ebm_gumbel.yaml`` does: progress bar, TensorBoard, checkpoints and the shipped
callbacks at their default cadence. The two alternate, and the ratio is taken pair by pair.
"""

import argparse
import functools
import json
import statistics
import tempfile
import time
from typing import Any

import before
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_lift.callbacks import CrossCovariance, DensityFigure, RunSummary, ShoulderOccupancy, WeightHistograms
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

ARMS: dict[str, Any] = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": Lift}


def build(arm: str) -> tuple[LogConcaveEBM, GumbelDataModule]:
    L.seed_everything(0, verbose=False)
    network = functools.partial(ICNN, widths=[128, 128, 128], **before.NETWORK)
    return LogConcaveEBM(1, network, ARMS[arm], learning_rate=1e-3, **before.TRAINING), GumbelDataModule(
        batches_per_epoch=500
    )


def bare(arm: str, steps: int) -> float:
    """Seconds of the bare loop."""
    module, data = build(arm)
    data.setup("fit")
    module.partition.prepare(data.support, data.window)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    start, done = time.perf_counter(), 0
    while done < steps:
        for batch in data.train_dataloader():
            optimizer.zero_grad()
            module.batch_loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            module.parameterization.project_()
            done += 1
            if done == steps:
                break
    return time.perf_counter() - start


def framework(arm: str, steps: int) -> float:
    """Seconds of ``Trainer.fit``, set-up, validations, figures and checkpoints included."""
    module, data = build(arm)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_steps=steps,
            accelerator="cpu",
            gradient_clip_val=1.0,
            logger=TensorBoardLogger(folder, default_hp_metric=False),
            enable_model_summary=False,
            callbacks=[
                ModelCheckpoint(monitor="val/nll", save_last=True),
                ShoulderOccupancy(),
                CrossCovariance(),
                WeightHistograms(),
                DensityFigure(),
                RunSummary(print_table=False),
                RichProgressBar(refresh_rate=10),
            ],
        )
        start = time.perf_counter()
        trainer.fit(module, datamodule=data)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", choices=ARMS, action="append")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {}
    for arm in arguments.arm or ARMS:
        bare(arm, 20)
        pairs = [(framework(arm, arguments.steps), bare(arm, arguments.steps)) for _ in range(arguments.pairs)]
        results[arm] = {
            "fit_ms_per_step": 1e3 * statistics.median(f for f, _ in pairs) / arguments.steps,
            "bare_ms_per_step": 1e3 * statistics.median(b for _, b in pairs) / arguments.steps,
            "ratios": [f / b for f, b in pairs],
            "median_ratio": statistics.median(f / b for f, b in pairs),
        }
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "threads": arguments.threads, "arms": results}))
        return
    print(f"{'':8}{'fit ms':>9}{'bare ms':>9}{'ratio':>7}   ({arguments.steps} steps, {arguments.threads} thread)")
    for arm, row in results.items():
        print(f"{arm:8}{row['fit_ms_per_step']:9.2f}{row['bare_ms_per_step']:9.2f}{row['median_ratio']:7.2f}")


if __name__ == "__main__":
    main()
