"""One potential on 8 Gaussians, the lift paper's planar setting: the parameterizations from one start per seed.

ICNN 64x3 (k = 0.05, folded normal start, no fan-in division, no ActNorm), batches of 64 fresh samples, 6000 steps of
Adam, gradients clipped to norm 10. The arms of a seed start from the same weights and see the same batches. Test NLL
(nats; the entropy is 0.312) at the checkpoint of the best validation NLL and at the last step; seconds of processor
time a step on one thread.

    python benchmarks/flow_single_potential.py --output single.jsonl --jobs 2
    python benchmarks/flow_single_potential.py --output short.jsonl --steps 300 --seeds 0 --rates 3e-3
"""

import argparse
import functools
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import before
import torch
from flow_training import Job, log_prob, run_all, summary, train
from torch import Tensor

from lightning_lift.datamodules import EightGaussiansDataModule
from lightning_lift.modules import ConvexPotentialFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

ARMS: dict[str, Any] = {
    "pgd": ProjectedGradient,
    "direct": DirectSoftplus,
    "direct_gain_10": functools.partial(DirectSoftplus, latent_gain=10.0),
    "lift": functools.partial(Lift, body_widths=[64, 64, 96]),
}
NETWORK = functools.partial(ICNN, widths=[64, 64, 64], strong_convexity=0.05, **before.START)


def fresh(data: EightGaussiansDataModule, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(10_000 + seed)
    while True:
        yield data.draw(data.batch_size, generator)


def run(job: Job) -> Job:
    torch.manual_seed(job["seed"])
    start = NETWORK(2)
    data = EightGaussiansDataModule(batch_size=job["batch_size"], data_seed=job["seed"])
    module = ConvexPotentialFlow(2, NETWORK, ARMS[job["arm"]], actnorm=False)
    parameters = dict(start.named_parameters())
    names = start.nonnegative_names()
    (block,) = module.network
    with torch.no_grad():
        for name, parameter in block.network.named_parameters():
            parameter.copy_(parameters[name])
    raised = module.parameterization.initialize_({f"0.network.{name}": parameters[name] for name in names})
    calibration = list(data.calibration_dataloader())
    record = train(
        module,
        fresh(data, job["seed"]),
        data.split("val"),
        calibration,
        learning_rate=job["rate"],
        steps=job["steps"],
        clip=10.0,
        validate_every=job["validate_every"],
    )
    last = record.pop("last")
    test = data.split("test")
    record["best"] = float(-log_prob(module, test, calibration).mean())
    module.load_state_dict(last)
    record["last"] = float(-log_prob(module, test, calibration).mean())
    return record | {"raised_to_floor": raised, "entropy": data.entropy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="finished runs, one line each; resumed from")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--validate-every", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    arguments = parser.parse_args()
    shared = {
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "validate_every": arguments.validate_every,
    }
    grid = itertools.product(arguments.seeds, arguments.rates, arguments.arms)
    jobs = [{"arm": arm, "rate": rate, "seed": seed, **shared} for seed, rate, arm in grid]
    results = run_all(run, jobs, arguments.output, arguments.jobs)
    print(f"\ntest NLL after {arguments.steps} steps, mean +- standard error over {len(arguments.seeds)} seeds")
    print(f"{'arm':15} {'rate':>7}   {'best validation':21} {'last step':21} ms a step   best by seed")
    for arm, rate in itertools.product(arguments.arms, arguments.rates):
        rows = [result for job, result in results if (job["arm"], job["rate"]) == (arm, rate)]
        if rows:
            milliseconds = 1e3 * statistics.median(row["seconds_per_step"] for row in rows)
            each = " ".join(f"{row['best']:.3f}" for row in rows)
            best, last = (summary([row[name] for row in rows]) for name in ("best", "last"))
            print(f"{arm:15} {rate:7.0e}   {best:21} {last:21} {milliseconds:9.2f}   {each}")


if __name__ == "__main__":
    main()
