"""The cross-covariance of latent and gradient on Gumbel in mid-training, by the fixed-iterate probe, for five models.

ICNN 128x3, Adam 1e-3, clip 1, batch 256; 64 probe batches and 200 permutations at the given step. The last model is a
lift's body without slack: its ``slack`` reading is undefined and says so. ``lift, frozen batch`` probes the lift with
one batch 64 times.
"""

import argparse
import functools
import json
from typing import Any

import before
import lightning as L
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.diagnostics import CrossCovarianceResult, probe_cross_covariance
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

ARMS: dict[str, Any] = {
    "pgd": ProjectedGradient,
    "direct": DirectSoftplus,
    "lift": Lift,
    "body without slack": functools.partial(Lift, use_slack=False),
}


def train(arm: str, seed: int, steps: int) -> tuple[LogConcaveEBM, GumbelDataModule]:
    L.seed_everything(seed, verbose=False)
    data = GumbelDataModule(data_seed=seed)
    module = LogConcaveEBM(
        1, functools.partial(ICNN, widths=[128] * 3, **before.NETWORK), ARMS[arm], learning_rate=1e-3, **before.TRAINING
    )
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        gradient_clip_val=1.0,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    return module, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, CrossCovarianceResult] = {}
    for arm in ARMS:
        module, data = train(arm, arguments.seed, arguments.step)
        batches = list(data.probe_batches(64, seed=arguments.seed))
        results[arm] = probe_cross_covariance(module, batches)
        if arm == "lift":
            results["lift, frozen batch"] = probe_cross_covariance(module, batches[:1] * 64)
    if arguments.json:
        rows = {
            name: {
                "latent_gradient": result.latent_gradient.as_dict(),
                "slack": None if result.slack is None else result.slack.as_dict(),
            }
            for name, result in results.items()
        }
        print(json.dumps({"step": arguments.step, "seed": arguments.seed, "readings": rows}))
        return
    for name, result in results.items():
        scale = result.latent_gradient.latent_norm * result.latent_gradient.gradient_norm
        print(f"{name}: |latent|_F |g|_F = {scale:.4g}\n  " + str(result).replace("\n", "\n  "), flush=True)


if __name__ == "__main__":
    main()
