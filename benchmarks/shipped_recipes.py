"""The shipped one-dimensional configurations as they are, on several seeds: test total variation at the last step.

python benchmarks/shipped_recipes.py configs/ebm_gumbel.yaml configs/ebm_laplace.yaml --seeds 0 1 2 3 4
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from lightning_lift.cli import LiftCLI


def run(config: str, seed: int, flags: list[str]) -> dict[str, float]:
    """Metrics at the last step and the seconds of fit."""
    path = str(Path(config).resolve())
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)
        try:
            arguments = ["fit", "--config", path, "--seed_everything", str(seed), "--data.data_seed", str(seed)]
            quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
            start = time.perf_counter()
            cli = LiftCLI([*arguments, *quiet, *flags])
            seconds = time.perf_counter() - start
            metrics = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)[0]
        finally:
            os.chdir(here)
    return {"seconds": seconds, **{name: float(value) for name, value in metrics.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=["configs/ebm_gumbel.yaml", "configs/ebm_laplace.yaml"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--flags", default="", help="further flags of lightning-lift fit, in one string")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = {c: [run(c, seed, arguments.flags.split()) for seed in arguments.seeds] for c in arguments.configs}
    if arguments.json:
        print(json.dumps({"seeds": arguments.seeds, "flags": arguments.flags, "results": results}))
        return
    for config, rows in results.items():
        distances = [row["test/total_variation"] for row in rows]
        error = statistics.stdev(distances) / math.sqrt(len(distances)) if len(distances) > 1 else math.nan
        print(
            f"{config} {arguments.flags}: total variation {statistics.mean(distances):.5f} +- {error:.5f} "
            f"(by seed {' '.join(f'{d:.5f}' for d in distances)}), "
            f"slowest fit {max(row['seconds'] for row in rows):.1f} s"
        )


if __name__ == "__main__":
    main()
