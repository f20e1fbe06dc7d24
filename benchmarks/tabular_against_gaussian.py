"""The log-concave density of two real columns against the best single Gaussian of the same training rows.

Test negative log-likelihoods of ``configs/ebm_tabular.yaml`` for the three parameterizations (best validation
checkpoint), and the paired difference to the better Gaussian with its standard error over the test rows.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import torch

from lightning_lift.cli import LiftCLI

CONFIG = Path(__file__).parent.parent / "configs" / "ebm_tabular.yaml"


def run(parameterization: list[str], seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)
        try:
            quiet = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
            seeds = ["--seed_everything", str(seed), "--data.data_seed", str(seed)]
            cli = LiftCLI(["fit", "--config", str(CONFIG), "--test_after_fit", *parameterization, *seeds, *quiet])
        finally:
            os.chdir(here)
    found = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    return {
        "nll": found["test/nll"],
        "gaussian_nll": found["test/gaussian_nll"],
        "difference": found["test/nll_minus_gaussian"],
        "standard_error": found["test/nll_minus_gaussian_standard_error"],
        "test_rows": len(cli.datamodule.split("test")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arms = {
        "pgd": ["--model.parameterization", "pgd"],
        "direct": ["--model.parameterization", "direct"],
        "direct_gain_10": ["--model.parameterization", "direct", "--model.parameterization.latent_gain", "10"],
        "lift": [],
    }
    results = {arm: run(flags, arguments.seed) for arm, flags in arms.items()}
    if arguments.json:
        print(json.dumps({"seed": arguments.seed, "results": results}))
        return
    for arm, row in results.items():
        print(
            f"{arm:15} {row['nll']:.4f}, Gaussian {row['gaussian_nll']:.4f}, difference {row['difference']:+.4f} "
            f"+- {row['standard_error']:.4f} nats over {row['test_rows']} rows"
        )


if __name__ == "__main__":
    main()
