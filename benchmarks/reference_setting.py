"""The parameterizations at the lift paper's one-dimensional setting, from one start per seed.

ICNN 128x3 (k = 0.02, folded normal start), Adam 1e-3, gradient clipping 1, batch 256 fresh samples, 3000 steps, a
validation (10,000 rows) every 100 steps. Total variation to the truth on an 8000-point grid, at the checkpoint of the
best validation NLL and at the last step. The four compared arms of a seed start from the same network and see the same
batches; ``--arm`` names others.

    python benchmarks/reference_setting.py --target gumbel --target laplace --seeds 0 1 2 3 4
"""

import argparse
import functools
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import before
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_lift.datamodules import GumbelDataModule, LaplaceDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

TARGETS = {"gumbel": GumbelDataModule, "laplace": LaplaceDataModule}
ARMS: dict[str, Any] = {
    "pgd": ProjectedGradient,
    "direct": DirectSoftplus,
    "direct_gain_10": functools.partial(DirectSoftplus, latent_gain=10.0),
    "lift": Lift,
    # The reference implementation's own lift: every parameter emitted, slack -2, a random emission. Another start, so
    # beside the comparison, not in it.
    "lift_emit_all": functools.partial(Lift, emit="all"),
    "lift_as_published": functools.partial(Lift, emit="all", slack_start=-2.0),
}
COMPARED = ("pgd", "direct", "direct_gain_10", "lift")


def run(target: str, arm: str, seed: int, steps: int) -> dict[str, float]:
    """Test total variation at the best validation and at the last step, and the seconds of fit."""
    L.seed_everything(seed, verbose=False)
    data = TARGETS[target](batches_per_epoch=100, data_seed=seed)
    module = LogConcaveEBM(
        1, functools.partial(ICNN, widths=[128] * 3, **before.NETWORK), ARMS[arm], learning_rate=1e-3, **before.TRAINING
    )
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(dirpath=folder, monitor="val/nll")
        trainer = L.Trainer(
            max_epochs=steps // 100,
            accelerator="cpu",
            gradient_clip_val=1.0,
            callbacks=[best],
            logger=False,
            default_root_dir=Path(folder),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        start = time.perf_counter()
        trainer.fit(module, datamodule=data)
        seconds = time.perf_counter() - start
        last = trainer.test(module, datamodule=data, verbose=False)[0]
        chosen = trainer.test(
            module, datamodule=data, verbose=False, ckpt_path=best.best_model_path, weights_only=True
        )[0]
    return {
        "best": chosen["test/total_variation"],
        "last": last["test/total_variation"],
        "best_nll": chosen["test/nll"],
        "last_nll": last["test/nll"],
        "seconds": seconds,
    }


def summary(values: list[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.4f} +- {error:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--arm", choices=ARMS, action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for target in arguments.target or TARGETS:
        results[target] = {}
        for arm in arguments.arm or COMPARED:
            rows = [run(target, arm, seed, arguments.steps) for seed in arguments.seeds]
            results[target][arm] = rows
            if not arguments.json:
                columns = "   ".join(f"{key} {summary([row[key] for row in rows])}" for key in ("best", "last"))
                each = " ".join(f"{row['best']:.4f}/{row['last']:.4f}" for row in rows)
                seconds = statistics.mean(row["seconds"] for row in rows)
                print(f"{target:8} {arm:15} {columns}   {seconds:6.1f} s   best/last by seed: {each}", flush=True)
    if arguments.json:
        print(json.dumps({"steps": arguments.steps, "seeds": arguments.seeds, "results": results}))


if __name__ == "__main__":
    main()
