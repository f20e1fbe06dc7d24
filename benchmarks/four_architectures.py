"""Direct, slack only, body only and the full lift in mid-training: what latent and gradient have in common in each.

Each architecture is trained from one network start a seed to ``--step`` of the configuration; beside the four there is
``independent_batch``, the lift with the batch before as its summary. The probe then reads the cross-covariance over
``--num-batches`` batches at the fixed iterate. Two trailing windows of as many steps are read beside it: one of
training as it is (``live``), which the moving iterate biases, and one after it at ``--slow`` times the learning rate
(``slow``), where the iterate hardly moves.

    python benchmarks/four_architectures.py --seeds 5 --output runs/four_architectures

Killed and started again with the same --output it does only what is missing.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lightning_lift.compare.arms import Arm, parse_arms
from lightning_lift.compare.build import make_from
from lightning_lift.compare.run import quiet
from lightning_lift.compare.specification import resolve
from lightning_lift.diagnostics import TrailingWindow, architecture_reading
from lightning_lift.files import whole_file
from lightning_lift.settings import read_config

ARMS = ("direct", "no_body", "no_slack", "lift", "independent_batch")


class Windows(L.Callback):
    """Records the steps of both windows, and slows the optimizer down for the second."""

    def __init__(self, step: int, size: int, slow: float) -> None:
        self.live, self.slow = TrailingWindow(), TrailingWindow()
        self._starts, self._factor, self._slowed = (step - 2 * size, step - size), slow, False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Records the step that this batch will make."""
        step = trainer.global_step
        if step >= self._starts[1]:
            if not self._slowed:
                for group in trainer.optimizers[0].param_groups:
                    group["lr"] *= self._factor
                self._slowed = True
            self.slow.record(pl_module, batch, step)
        elif step >= self._starts[0]:
            self.live.record(pl_module, batch, step)


def read(config: dict[str, Any], arm: Arm, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    settings = resolve(config, arm, None, seed, options.step)
    module, data, trainer_settings = make_from(settings, seed)
    windows = Windows(options.step, options.num_batches, options.slow)
    callbacks = [*(trainer_settings.pop("callbacks", None) or []), windows]
    # The scheduler would undo the slow-down; a configuration of this table has none.
    start = time.perf_counter()
    with quiet():
        trainer = L.Trainer(**trainer_settings | {"callbacks": callbacks, "limit_val_batches": 0})
        trainer.fit(module, datamodule=data)
    fitted = time.perf_counter()
    null = {"num_permutations": options.num_permutations, "seed": seed}
    batches = list(data.probe_batches(options.num_batches, seed=seed))
    slow = architecture_reading(module, batches, windows.slow.read(**null), **null)
    live = slow.__class__(slow.probe, slow.movement, windows.live.read(**null))
    numbers = slow.as_dict()
    numbers |= {f"live_{key}": value for key, value in live.as_dict().items() if key.startswith(("window", "agree"))}
    seconds = {"fit_seconds": fitted - start, "reading_seconds": time.perf_counter() - fitted}
    return {"arm": arm.label, "seed": seed, "step": options.step} | seconds | numbers


def spread(values: list[float]) -> str:
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "-"
    return f"{statistics.mean(values):.3g}" + (f" ({min(values):.2g} to {max(values):.2g})" if len(values) > 1 else "")


def numbers_of(rows: list[dict[str, Any]], reading: str, number: str) -> list[float]:
    return [float(row[reading][number]) for row in rows if row[reading] is not None]


def worst(rows: list[dict[str, Any]], key: str) -> str:
    scores = [abs(score) for row in rows for score in row[key].values() if not math.isnan(score)]
    return f"{max(scores):.2f}" if scores else "-"


def cell(rows: list[dict[str, Any]], reading: str) -> str:
    found = [row[reading] for row in rows if row[reading] is not None]
    if not found:
        return "no slack"
    zeros = sum(one["is_roundoff"] for one in found)
    p = max(one["p_value"] for one in found)
    text = spread([one["frobenius"] for one in found])
    return f"{text}, round-off zero in {zeros} of {len(found)}" if zeros else f"{text}, p at most {p:.3g}"


def table(labels: list[str], records: list[dict[str, Any]]) -> str:
    head = (
        "architecture",
        "slack reading, norm",
        "latent-gradient reading, norm",
        "objective part, norm",
        "its p",
        "noise floor",
        "Cov(latent) H, norm",
        "rest, norm",
        "its p",
        "live window against probe, worst z",
        "slow window against probe, worst z",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for label in labels:
        rows = [record for record in records if record["arm"] == label]
        if not rows:
            continue
        cells = [
            label,
            cell(rows, "probe/slack"),
            cell(rows, "probe/latent_gradient"),
            spread(numbers_of(rows, "probe/latent_gradient", "objective_frobenius")),
            spread(numbers_of(rows, "probe/latent_gradient", "objective_p_value")),
            spread(numbers_of(rows, "probe/latent_gradient", "null_frobenius")),
            spread(numbers_of(rows, "movement", "explained_frobenius")),
            spread(numbers_of(rows, "movement", "rest_frobenius")),
            spread(numbers_of(rows, "movement", "rest_p_value")),
            worst(rows, "live_agreement"),
            worst(rows, "agreement"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/mechanism/four_architectures.yaml")
    parser.add_argument("--step", type=int, default=1500, help="optimizer step of the reading")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="as lightning-lift compare takes them")
    parser.add_argument("--num-batches", type=int, default=64, help="of the probe, and steps of each window")
    parser.add_argument("--num-permutations", type=int, default=200)
    parser.add_argument("--slow", type=float, default=1e-4, help="factor on the learning rate in the slow window")
    parser.add_argument("--output", type=Path, default=Path("runs/four_architectures"))
    parser.add_argument("--json", action="store_true", help="print all numbers as one JSON object in the last line")
    options = parser.parse_args()
    if options.step < 2 * options.num_batches:
        parser.error(f"--step {options.step} has no room for two windows of {options.num_batches} steps")
    torch.set_num_threads(1)
    config = read_config(options.config)
    arms = parse_arms(options.arms)
    records = []
    for seed in range(options.seeds):
        for arm in arms:
            path = options.output / f"{arm.label.replace('/', '_')}-step{options.step}-seed{seed:03d}.json"
            if not path.is_file():
                text = json.dumps(read(config, arm, seed, options), indent=1)
                with whole_file(path) as temporary:
                    temporary.write_text(text)
            records.append(json.loads(path.read_text()))
            print(
                f"{arm.label}, seed {seed}: {records[-1]['fit_seconds']:.1f} s of training, "
                f"{records[-1]['reading_seconds']:.1f} s of reading",
                flush=True,
            )
    print(table([arm.label for arm in arms], records))
    if options.json:
        print(json.dumps(records))


if __name__ == "__main__":
    main()
