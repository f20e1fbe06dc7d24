"""How far a lift's latent moves from batch to batch: the noise that ``direct_noise`` needs to match it.

Trains the lift of a configuration for ``--steps`` and, at each of ``--looks`` steps, draws the latent of 64 batches at
that fixed iterate. Printed is the schedule of standard deviations (root of the mean over the weights of the variance
over the batches), as ``direct_noise:latent_noise=[[step, std], ...]`` takes it.

    python benchmarks/latent_noise_scale.py configs/mechanism/arms_gumbel.yaml --steps 1500 --rate 3e-3
"""

import argparse
from collections.abc import Sequence

import lightning as L
import torch

from lightning_lift.compare.arms import parse_arm
from lightning_lift.compare.build import make_from
from lightning_lift.compare.run import quiet
from lightning_lift.compare.specification import resolve
from lightning_lift.diagnostics.latent_step import latent_of
from lightning_lift.parameterizations.direct_noise import latent_std
from lightning_lift.settings import read_config


class LatentNoiseScale(L.Callback):
    """The noise scale of the latent over fixed batches, at chosen steps."""

    def __init__(self, batches: Sequence[torch.Tensor], steps: set[int]) -> None:
        self.batches, self.steps = batches, steps
        self.schedule: list[list[float]] = []

    def _read(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.global_step in self.steps:
            latents = torch.stack([latent_of(module, batch) for batch in self.batches])
            self.schedule.append([trainer.global_step, float(f"{latent_std(latents):.3g}")])

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Before the first step."""
        self._read(trainer, module)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: object) -> None:
        """After each step."""
        self._read(trainer, module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="of a fit or of a comparison")
    parser.add_argument("--arm", default="lift", help="as lightning-lift compare takes it")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=2000, help="neither a tuning seed nor a final one")
    parser.add_argument("--looks", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = resolve(read_config(options.config), parse_arm(options.arm), options.rate, options.seed, options.steps)
    module, data, trainer_arguments = make_from(config, options.seed)
    looks = {round(options.steps * k / (options.looks - 1)) for k in range(options.looks)}
    spread = LatentNoiseScale(list(data.probe_batches(64, seed=options.seed)), looks)
    with quiet():
        trainer = L.Trainer(**trainer_arguments | {"callbacks": [spread], "limit_val_batches": 0})
        trainer.fit(module, datamodule=data)
    print(f"direct_noise:latent_noise={spread.schedule}".replace(" ", ""))


if __name__ == "__main__":
    main()
