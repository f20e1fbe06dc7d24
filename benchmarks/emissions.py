"""Which emission keeps the dense lift's quality, and what does each cost?

An arm is ``KIND[:slack_gain[:rank]]`` with KIND one of the lift's emissions and its own gain and rank where none is
given, or ``direct[:latent_gain]``, or ``pgd``.

``--part cost``: one training step at ICNN 512x5 in 21 dimensions, batch 256, Langevin chains of 5 steps as in the
shipped recipe (``--chain-steps 1`` for the network's cheapest step): all arms in one process of one thread, taking
turns, so that a busy machine slows all of them; seconds of processor time, and the number of trained parameters, both
over direct's.

``--part quality``: test metric by arm, learning rate and seed. The arms of a seed start from the same network and see
the same batches. Tasks:

- ``eight_gaussians``: one 64x3 potential, batch 64, Adam, gradients clipped to norm 10; test NLL in nats
  (entropy 0.312);
- ``gumbel``: 128x3 at the paper's setting, Adam, clipping 1, batch 256; total variation;
- ``gumbel_recipe``: the shipped recipe, configs/ebm_gumbel.yaml (rate 3e-2 falling by a cosine); total variation.

``best`` is the test metric at the checkpoint of the best validation NLL, ``last`` at the last step; ``metric`` in the
file is ``best``. The verdict compares each arm at its best rate (lowest mean of ``best``) with ``--baseline`` at its
own: no worse beyond one standard error of the difference over the seeds.

    python benchmarks/emissions.py --part cost
    python benchmarks/emissions.py --part quality --output emissions.jsonl --jobs 2
"""

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import before
import lightning as L
import torch
from flow_training import Job, log_prob, run_all, summary, train
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, Parameterization, ProjectedGradient
from lightning_lift.partition import Langevin

# Rates around each task's own; steps; lift arguments beside the emission.
TASKS: dict[str, dict[str, Any]] = {
    "eight_gaussians": {"rates": [1e-3, 3e-3, 1e-2], "steps": 2000, "lift": {"body_widths": [64, 64, 96]}},
    "gumbel": {"rates": [1e-3, 3e-3, 1e-2], "steps": 3000, "lift": {"body_widths": [64, 64, 96]}},
    "gumbel_recipe": {
        "rates": [1e-2, 3e-2, 1e-1],
        "steps": 3000,
        "lift": {"body_widths": [32, 16], "emission_width": 32},
    },
}
DEFAULT_ARMS = ["dense", "low_rank:16", "low_rank:4", "shared_basis:16", "row_column:16", "direct:16"]


def parameterization(arm: str, lift: dict[str, Any]) -> Callable[[], Parameterization]:
    """The factory that an arm's text means."""
    kind, *numbers = arm.split(":")
    if kind == "pgd":
        return ProjectedGradient
    gain = float(numbers[0]) if numbers else None
    if kind == "direct":
        return functools.partial(DirectSoftplus, latent_gain=gain or 1.0)
    rank = int(numbers[1]) if len(numbers) > 1 else None
    return functools.partial(Lift, emission=kind, emission_rank=rank, slack_gain=gain, **lift)


# -- quality -------------------------------------------------------------------------------------------------------


def fresh(data: EightGaussiansDataModule, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(10_000 + seed)
    while True:
        yield data.draw(data.batch_size, generator)


def eight_gaussians(job: Job, make: Callable[[], Parameterization]) -> Job:
    data = EightGaussiansDataModule(batch_size=64, data_seed=job["seed"])
    network = functools.partial(ICNN, widths=[64, 64, 64], strong_convexity=0.05, **before.START)
    module = ConvexPotentialFlow(2, network, make, actnorm=False)
    calibration, test = list(data.calibration_dataloader()), data.split("test")
    record = train(
        module,
        fresh(data, job["seed"]),
        data.split("val"),
        calibration,
        learning_rate=job["rate"],
        steps=job["steps"],
        clip=10.0,
        validate_every=200,
    )
    last = record.pop("last")
    best = float(-log_prob(module, test, calibration).mean())
    module.load_state_dict(last)
    return {
        "best": best,
        "last": float(-log_prob(module, test, calibration).mean()),
        "seconds_per_step": record["seconds_per_step"],
        "parameters": parameters(module),
    }


def gumbel(job: Job, make: Callable[[], Parameterization], recipe: bool) -> Job:
    data = GumbelDataModule(batches_per_epoch=500 if recipe else 100, data_seed=job["seed"])
    optimizer: Any = torch.optim.Adam
    schedule: Any = None
    network: Any = functools.partial(ICNN, widths=[128, 128, 128], **before.NETWORK)
    if recipe:
        optimizer = functools.partial(torch.optim.Adam, betas=(0.9, 0.99))
        schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=job["steps"])
        network = functools.partial(
            ICNN,
            widths=[32, 32, 32],
            strong_convexity=1e-3,
            divide_by_fan_in=True,
            weight_init="constant",
            free_weight_std=1.0,
            bias_std=1.0,
        )
    module = LogConcaveEBM(1, network, make, optimizer=optimizer, lr_scheduler=schedule, learning_rate=job["rate"])
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(dirpath=folder, monitor="val/nll")
        trainer = L.Trainer(
            max_steps=job["steps"],
            accelerator="cpu",
            gradient_clip_val=None if recipe else 1.0,
            callbacks=[keep],
            logger=False,
            default_root_dir=Path(folder),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        start = time.process_time()
        trainer.fit(module, datamodule=data)
        seconds = time.process_time() - start
        test = functools.partial(trainer.test, module, datamodule=data, verbose=False)
        last = test()[0]["test/total_variation"]
        best = test(ckpt_path=keep.best_model_path, weights_only=True)[0]["test/total_variation"]
    return {
        "best": best,
        "last": last,
        "seconds_per_step": seconds / job["steps"],
        "parameters": parameters(module),
    }


def run(job: Job) -> Job:
    L.seed_everything(job["seed"], verbose=False)  # the network draws first: one seed, one start for all arms
    make = parameterization(job["emission"], TASKS[job["task"]]["lift"])
    if job["task"] == "eight_gaussians":
        result = eight_gaussians(job, make)
    else:
        result = gumbel(job, make, recipe=job["task"] == "gumbel_recipe")
    return {"metric": result["best"]} | result


def quality(arguments: argparse.Namespace) -> None:
    jobs = [
        {"task": task, "emission": arm, "rate": rate, "seed": seed, "steps": arguments.steps or TASKS[task]["steps"]}
        for task in arguments.tasks
        for seed, rate, arm in itertools.product(
            arguments.seeds, arguments.rates or TASKS[task]["rates"], arguments.arms
        )
    ]
    results = run_all(run, jobs, arguments.output, arguments.jobs)
    for task in arguments.tasks:
        table: dict[str, dict[float, list[Job]]] = {}
        for job, result in results:
            if job["task"] == task:
                table.setdefault(job["emission"], {}).setdefault(job["rate"], []).append(result)
        show_quality(task, table, arguments.baseline)


def show_quality(task: str, table: dict[str, dict[float, list[Job]]], baseline: str) -> None:
    print(f"\n{task}: mean +- standard error over the seeds")
    print(f"{'arm':20} {'rate':>7}   {'best validation':19} {'last step':19} {'ms a step':>9} {'parameters':>11}")
    chosen: dict[str, tuple[float, list[float]]] = {}
    for arm, by_rate in table.items():
        for rate, rows in sorted(by_rate.items()):
            best, last = ([row[name] for row in rows] for name in ("best", "last"))
            milliseconds = 1e3 * statistics.median(row["seconds_per_step"] for row in rows)
            print(
                f"{arm:20} {rate:7.0e}   {summary(best):19} {summary(last):19} {milliseconds:9.2f} "
                f"{rows[0]['parameters']:11,d}"
            )
            value = statistics.mean(best)  # a diverged run makes it NaN, and such a rate is not chosen
            if math.isfinite(value) and (arm not in chosen or value < statistics.mean(chosen[arm][1])):
                chosen[arm] = rate, best
    if baseline not in chosen:
        return
    rate, base = chosen[baseline]
    for arm, (own_rate, values) in chosen.items():
        if arm == baseline or len(values) != len(base) or len(base) < 2:
            continue
        differences = [a - b for a, b in zip(values, base, strict=True)]
        mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
        verdict = "no worse" if mean <= error else "worse"
        print(f"{arm} at {own_rate:.0e} minus {baseline} at {rate:.0e}: {mean:+.4f} +- {error:.4f}, {verdict}")


# -- cost ----------------------------------------------------------------------------------------------------------


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def cost(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    network = functools.partial(ICNN, widths=[512] * 5, strong_convexity=0.02, weight_init="constant")
    partition = functools.partial(Langevin, num_chains=256, num_steps=arguments.chain_steps)
    batch = torch.randn(256, 21, generator=torch.Generator().manual_seed(0))
    steps: dict[str, Callable[[], float]] = {}
    sizes: dict[str, int] = {}
    for arm in dict.fromkeys(["direct", *arguments.arms]):
        L.seed_everything(0, verbose=False)
        make = parameterization(arm, {"body_widths": [64, 64, 96]})
        module = LogConcaveEBM(21, network, make, partition).train()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        steps[arm], sizes[arm] = functools.partial(one_step, module, optimizer, batch), parameters(module)
    seconds: dict[str, list[float]] = {arm: [] for arm in steps}
    for step in steps.values():
        step()  # the pilot of the chains, and the optimizer's state
    for _ in range(arguments.turns):
        for arm, step in steps.items():
            step()  # each finds its own numbers in the caches, as in training
            seconds[arm] += [step() for _ in range(2)]
    rows = []
    for arm, times in seconds.items():
        median = statistics.median(times)
        rows.append(
            {
                "task": "cost",
                "emission": arm,
                "seconds_per_step": median,
                "step_ratio": median / statistics.median(seconds["direct"]),
                "parameters": sizes[arm],
                "parameter_ratio": sizes[arm] / sizes["direct"],
            }
        )
    print(f"{'arm':20} {'ms a step':>9} {'over direct':>11} {'parameters':>12} {'over direct':>11}")
    for row in rows:
        print(
            f"{row['emission']:20} {1e3 * row['seconds_per_step']:9.1f} {row['step_ratio']:11.3f} "
            f"{row['parameters']:12,d} {row['parameter_ratio']:11.3f}"
        )
    if arguments.output:
        with arguments.output.open("a") as file:
            file.writelines(
                json.dumps({"job": {"task": "cost", "emission": r["emission"]}, "result": r}) + "\n" for r in rows
            )


def one_step(module: LogConcaveEBM, optimizer: torch.optim.Optimizer, batch: Tensor) -> float:
    start = time.process_time()
    optimizer.zero_grad()
    module.batch_loss(batch).backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 10.0)
    optimizer.step()
    module.parameterization.project_()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["cost", "quality"], required=True)
    parser.add_argument("--output", type=Path, help="finished runs, one line each; quality resumes from it")
    parser.add_argument(
        "--arms", nargs="+", default=DEFAULT_ARMS, help="KIND[:slack_gain[:rank]] or direct[:gain], pgd"
    )
    parser.add_argument("--baseline", default="dense", help="the arm that the others are compared with")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates; default: three around the task's own")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="default: the task's own")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--turns", type=int, default=5, help="of each arm in the cost part, three steps each")
    parser.add_argument("--chain-steps", type=int, default=5, help="Langevin steps of a training step in the cost part")
    arguments = parser.parse_args()
    if arguments.part == "cost":
        cost(arguments)
    elif arguments.output is None:
        parser.error("--part quality needs --output FILE: finished runs are kept there and never done twice.")
    else:
        quality(arguments)


if __name__ == "__main__":
    main()
