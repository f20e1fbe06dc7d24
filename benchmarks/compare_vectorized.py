"""All seeds of an arm at once against one run at a time: seconds of training a run and step, and their ratio.

Two settings on Gumbel(0, 1): ``paper`` (ICNN 128x3, Adam 1e-3, clipping 1, dense lift) and ``recipe`` (the shipped
``configs/ebm_gumbel.yaml``: ICNN 32x3). Looks, validation and tests are not in the seconds. One thread.

    python benchmarks/compare_vectorized.py --setting paper --seeds 8 --steps 80
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from lightning_lift.compare.arms import parse_arm
from lightning_lift.compare.build import read_config, resolve
from lightning_lift.compare.record import RunSpec
from lightning_lift.compare.run import run
from lightning_lift.compare.vectorized import run_vectorized

CONFIG = Path(__file__).parents[1] / "configs" / "ebm_gumbel.yaml"
PAPER = """
model:
  class_path: LogConcaveEBM
  init_args:
    network: {class_path: ICNN, init_args: {widths: [128, 128, 128]}}
    parameterization: {class_path: Lift}
    learning_rate: 1.0e-3
data: {class_path: GumbelDataModule}
trainer: {max_steps: 3000, gradient_clip_val: 1.0, accelerator: cpu}
"""
ARMS = ("pgd", "direct", "lift")


def specs(config: Path, arm: str, seeds: int, steps: int) -> list[RunSpec]:
    """The runs of one arm, with a single look at the end."""
    settings, parsed = read_config(config), parse_arm(arm)
    return [
        RunSpec(arm, "timing", None, seed, steps, resolve(settings, parsed, None, seed, steps, look_every=steps))
        for seed in range(seeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=("paper", "recipe"), action="append")
    parser.add_argument("--arm", action="append", help="as the compare command spells it")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--separate", type=int, default=2, help="seeds that are run one at a time")
    parser.add_argument("--chunk", type=int, default=None, help="seeds at a time; None for the product's own choice")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paper = folder / "paper.yaml"
        paper.write_text(PAPER)
        for setting in arguments.setting or ("paper", "recipe"):
            config = paper if setting == "paper" else CONFIG
            for arm in arguments.arm or ARMS:
                made = specs(config, arm, arguments.seeds, arguments.steps)
                at_once = run_vectorized(made, folder, chunk=arguments.chunk)
                single = [run(spec, folder) for spec in made[: arguments.separate]]
                ours, theirs = (
                    1e3 * statistics.median(record.timings["seconds_per_step"] for record in records)
                    for records in (at_once, single)
                )
                gap = max(
                    abs(one.metrics["last"]["test/nll"] - other.metrics["last"]["test/nll"])
                    for one, other in zip(at_once, single, strict=False)
                )
                print(
                    f"{setting:7} {arm:24} separate {theirs:7.2f} ms   at once {ours:7.2f} ms   ratio "
                    f"{theirs / ours:5.2f}   test NLL apart {gap:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
