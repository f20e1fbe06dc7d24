"""Flows in the plane: the shipped recipe on 8 Gaussians, and on two spirals three kinds of flow for the same time.

``eight``: ``configs/flow_eight_gaussians.yaml`` as it is, by the command line, on several seeds: excess NLL over the
entropy (nats) at the last step and at the best validation, and the seconds of the fit, figures and all.

``spirals``: the network of ``configs/flow_two_spirals.yaml``, RQ-NSF with coupling from nflows (Durkan et al., 2019),
and CP-Flow's kind of network (Huang et al., 2021: ActNorm inside, learned scales, free weights of PyTorch's order, with
our exact log-determinant, which is faster than its own) as one deep block and as several. Each gets the same seconds of
processor time on one thread, batches of 256 fresh samples and a cosine schedule over that time, and its learning rate
is the one of its list with the best mean validation NLL. Test NLL and its excess over the entropy, on 10,000 rows.

    python benchmarks/flows_two_dimensional.py eight --output eight.jsonl
    python benchmarks/flows_two_dimensional.py spirals --output spirals.jsonl --seconds 120 --jobs 2
"""

import argparse
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import before
import torch
import yaml
from flow_training import Job, log_prob, run_all, summary, train
from torch import Tensor

from lightning_lift.cli import LiftCLI
from lightning_lift.datamodules import TwoSpiralsDataModule
from lightning_lift.modules import ConvexPotentialFlow, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PARAMETERIZATIONS = {"DirectSoftplus": DirectSoftplus, "Lift": Lift, "ProjectedGradient": ProjectedGradient}
CP_FLOW = functools.partial(ICNN, strong_convexity="learned", actnorm=True, **before.START)


def recipe() -> tuple[ConvexPotentialFlow, float, tuple[float, float]]:
    """The module of the shipped configuration, its learning rate and Adam's betas."""
    settings = yaml.safe_load((CONFIGS / "flow_two_spirals.yaml").read_text())["model"]["init_args"]
    network = functools.partial(ICNN, **settings["network"]["init_args"])
    chosen = settings["parameterization"]
    parameterization = functools.partial(PARAMETERIZATIONS[chosen["class_path"]], **chosen.get("init_args", {}))
    rest = {name: settings[name] for name in ("num_blocks", "actnorm") if name in settings}
    adam = settings["optimizer"]["init_args"]
    return ConvexPotentialFlow(2, network, parameterization, **rest), adam["lr"], tuple(adam["betas"])


def make(arm: str) -> tuple[Any, float, tuple[float, float]]:
    """An untrained module, a factor on its learning rates, and Adam's betas."""
    if arm == "recipe":
        return recipe()
    if arm == "rq_nsf":
        return NormalizingFlow(2, "rq_nsf_coupling", tail_bound=5.0), 1.0, (0.9, 0.999)
    if arm == "cp_flow_1_block":
        return ConvexPotentialFlow(2, functools.partial(CP_FLOW, widths=[64] * 10), DirectSoftplus), 1.0, (0.9, 0.99)
    network = functools.partial(CP_FLOW, widths=[64] * 3)
    return ConvexPotentialFlow(2, network, DirectSoftplus, num_blocks=4), 1.0, (0.9, 0.99)


# Learning rates tried; the recipe's are factors on its own.
RATES = {
    "recipe": (0.3, 1.0),
    "rq_nsf": (1e-3, 3e-3),
    "cp_flow_1_block": (1e-3, 5e-3),
    "cp_flow_4_blocks": (1e-3, 5e-3),
}


def fresh(data: TwoSpiralsDataModule, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(10_000 + seed)
    while True:
        yield data.draw(data.batch_size, generator)


def spirals(job: Job) -> Job:
    torch.manual_seed(job["seed"])
    data = TwoSpiralsDataModule(batch_size=256, data_seed=job["seed"])
    module, factor, betas = make(job["arm"])
    calibration = list(data.calibration_dataloader())
    if isinstance(module, ConvexPotentialFlow):
        module.start_actnorms(calibration[0])
    record = train(
        module,
        fresh(data, job["seed"]),
        data.split("val")[:5000],
        calibration,
        learning_rate=factor * job["rate"],
        seconds=job["seconds"],
        betas=betas,
        clip=5.0 if job["arm"] == "rq_nsf" else None,
        cosine=True,
        validate_every=200,
    )
    del record["last"]
    with torch.no_grad():
        values = -log_prob(module, data.split("test"), calibration)
    record |= {"nll": float(values.mean()), "rows_error": float(values.std()) / len(values) ** 0.5}
    return record | {"entropy": data.entropy, "parameters": sum(p.numel() for p in module.parameters())}


def eight(job: Job) -> Job:
    torch.set_num_threads(job["threads"])
    path = str(CONFIGS / "flow_eight_gaussians.yaml")
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            arguments = ["fit", "--config", path, "--seed_everything", str(job["seed"])]
            arguments += ["--data.data_seed", str(job["seed"]), "--trainer.enable_progress_bar", "false"]
            arguments += ["--trainer.enable_model_summary", "false", *job["flags"]]
            began, start = time.perf_counter(), time.process_time()
            cli = LiftCLI(arguments)
            seconds = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - start}
            last = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)[0]
            best = cli.trainer.test(
                cli.model,
                datamodule=cli.datamodule,
                verbose=False,
                ckpt_path=cli.trainer.checkpoint_callback.best_model_path,
                weights_only=True,
            )[0]
        finally:
            os.chdir(here)
    return seconds | {
        "last_excess": last["test/excess_nll"],
        "best_excess": best["test/excess_nll"],
        "rows_error": last["test/nll_standard_error"],
        "inverse_error": last.get("test/inverse_error"),
        "total_variation": last.get("test/total_variation"),
        "entropy": cli.datamodule.entropy,
    }


def report_eight(results: list[tuple[Job, Job]]) -> None:
    rows = [result for _, result in results]
    for name in ("last_excess", "best_excess"):
        values = [row[name] for row in rows]
        print(f"{name:12} {summary(values)} nats (by seed {' '.join(f'{value:.4f}' for value in values)})")
    print(f"entropy {rows[0]['entropy']:.4f}; standard error over the test rows {rows[0]['rows_error']:.4f}")
    print(f"slowest fit {max(row['seconds'] for row in rows):.0f} s")


def report_spirals(results: list[tuple[Job, Job]], seconds: float) -> None:
    entropy = results[0][1]["entropy"]
    print(f"\ntwo spirals, {seconds:g} s of processor time each; entropy {entropy:.4f} nats")
    print(
        f"{'arm':17} {'rate':>6}   {'test NLL':19} {'excess':>8} {'steps':>7} {'parameters':>11}   validation by rate"
    )
    for arm in dict.fromkeys(job["arm"] for job, _ in results):
        by_rate: dict[float, list[Job]] = {}
        for job, result in results:
            if job["arm"] == arm:
                by_rate.setdefault(job["rate"], []).append(result)
        validation = {rate: statistics.mean(r["best_validation"] for r in rows) for rate, rows in by_rate.items()}
        rate = min(validation, key=lambda key: validation[key])
        rows = by_rate[rate]
        nll = [row["nll"] for row in rows]
        steps = statistics.mean(row["steps"] for row in rows)
        tried = " ".join(f"{key:g}: {value:.3f}" for key, value in validation.items())
        print(
            f"{arm:17} {rate:6g}   {summary(nll):19} {statistics.mean(nll) - entropy:8.4f} {steps:7.0f} "
            f"{rows[0]['parameters']:11d}   {tried}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["eight", "spirals"])
    parser.add_argument("--output", type=Path, required=True, help="finished runs, one line each; resumed from")
    parser.add_argument("--seeds", type=int, nargs="+", help="default 0-4 (eight), 0-2 (spirals)")
    parser.add_argument("--flags", default="", help="eight: further flags of lightning-lift fit, in one string")
    parser.add_argument("--threads", type=int, default=2, help="eight: threads of a fit")
    parser.add_argument("--seconds", type=float, default=120.0, help="spirals: processor time of a training")
    parser.add_argument("--arms", nargs="+", choices=RATES, default=list(RATES), help="spirals")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    arguments = parser.parse_args()
    if arguments.question == "eight":
        shared = {"flags": arguments.flags.split(), "threads": arguments.threads}
        jobs = [{"seed": seed, **shared} for seed in arguments.seeds or range(5)]
        report_eight(run_all(eight, jobs, arguments.output, arguments.jobs))
        return
    jobs = [
        {"arm": arm, "rate": rate, "seed": seed, "seconds": arguments.seconds}
        for seed, arm in itertools.product(arguments.seeds or range(3), arguments.arms)
        for rate in RATES[arm]
    ]
    report_spirals(run_all(spirals, jobs, arguments.output, arguments.jobs), arguments.seconds)


if __name__ == "__main__":
    main()
