"""Log-concave energy-based models in 2 to 32 dimensions, trained by Langevin chains and evaluated by annealing.

``known``: densities whose entropy is known (a correlated Gaussian of condition number 10, a product of Gumbels), fresh
samples, one recipe for all: the excess of the negative log-likelihood over that of the truth on the same 20,000 test
rows, with the standard error of the rows and that of log Z.

``data``: a configuration, three parameterizations from the same start, three learning rates each. The rate is chosen by
the validation NLL at its best checkpoint; the test NLL there is given with its error, beside one Gaussian of the
training rows (paired difference) and beside the entropy where it is known.

Every finished run is one line of ``--output``; a second call does what is missing. Each run uses one thread.

    python benchmarks/ebm_high_dim.py known --output known.jsonl --jobs 2
    python benchmarks/ebm_high_dim.py data --config configs/ebm_hepmass.yaml --output hepmass.jsonl --jobs 2
    python benchmarks/ebm_high_dim.py data --config configs/ebm_tabular_21d.yaml --rows table.csv --label 1 \
        --output table.jsonl
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lightning_lift.cli import LiftCLI
from lightning_lift.datamodules import CorrelatedGaussianDataModule, ProductDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition import AnnealedImportanceSampling, Langevin

Job = dict[str, Any]

LIFT = functools.partial(Lift, body_widths=[32, 16], emission_width=32)
ARMS: dict[str, Any] = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": LIFT}
TARGETS: dict[str, Callable[..., Any]] = {
    "gaussian": functools.partial(CorrelatedGaussianDataModule, condition_number=10.0),
    "gumbel": functools.partial(ProductDataModule, target="gumbel"),
}
# Found by trial on the direct parameterization, seed 0. Large batches and small features keep 32 dimensions smooth; a
# Gumbel's steep side wants larger features and steps.
RECIPES: dict[str, Job] = {
    "gaussian": {"steps": 1500, "lr": 5e-3, "batch": 512, "widths": [128, 128, 128], "start": 10.0, "free_std": 0.1},
    "gumbel": {"steps": 2500, "lr": 1e-2, "batch": 256, "widths": [128, 128], "start": 10.0, "free_std": 0.2},
}
FLAGS = {
    "pgd": ["--model.parameterization", "pgd"],
    "direct": ["--model.parameterization", "direct"],
    "direct_gain_10": ["--model.parameterization", "direct", "--model.parameterization.latent_gain", "10"],
    "lift": [],  # the configuration's own
    "lift_dense": ["--config", str(Path(__file__).parent.parent / "configs" / "parameterization" / "lift.yaml")],
}


def known(job: Job) -> Job:
    """Trains on fresh samples of a known density and gives the excess over the truth."""
    L.seed_everything(job["seed"], verbose=False)
    dim, steps = job["dim"], job["steps"]
    sizes = {"batch_size": job["batch"], "batches_per_epoch": steps, "num_test": 20_000}
    data = TARGETS[job["target"]](dim=dim, data_seed=job["seed"], **sizes)
    network = functools.partial(
        ICNN,
        widths=job["widths"],
        strong_convexity=0.02,
        divide_by_fan_in=True,
        weight_init="constant",
        weight_init_value=job["start"],
        free_weight_std=job["free_std"],
        bias_std=1.0,
    )
    module = LogConcaveEBM(dim, network, ARMS[job["arm"]], functools.partial(Langevin, num_chains=job["batch"]))
    module.adopt_units(data)
    optimizer = torch.optim.Adam(module.parameters(), lr=job["lr"], betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    module.parameterization.project_()
    began = time.perf_counter()
    for batch in data.train_dataloader():
        optimizer.zero_grad()
        module.batch_loss(batch).backward()
        optimizer.step()
        module.parameterization.project_()
        schedule.step()
    seconds = time.perf_counter() - began
    return {"train_seconds": seconds, "parameters": sum(p.numel() for p in module.parameters())} | evaluated(
        module, data
    )


def evaluated(module: LogConcaveEBM, data: Any) -> Job:
    began = time.perf_counter()
    module.eval()
    if module.parameterization.is_stale:
        module.parameterization.calibrate(data.calibration_dataloader())
    evaluation = AnnealedImportanceSampling()
    evaluation.prepare(data.support, data.window)
    rows = data.split("test")
    with torch.no_grad():
        potential = module.potential()
        estimate = evaluation.evaluate(potential)
        ours = -torch.cat([potential.value(chunk) for chunk in rows.split(4096)]).double()
        difference = data.log_prob(rows.double()) - ours + estimate.log_partition.double()
    figures = estimate.diagnostics
    return {
        "excess": float(difference.mean()),
        "rows_error": float(difference.std()) / math.sqrt(len(rows)),
        "entropy": data.entropy,
        "evaluation_seconds": time.perf_counter() - began,
        **{name: figures[name] for name in ("log_partition_standard_error", "effective_sample_size", "bracket_width")},
        **module.partition.diagnostics(),
    }


def run_config(job: Job) -> Job:
    """Fits a configuration by the command line, tests its best checkpoint and compares row by row."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
        flags += ["--seed_everything", str(job["seed"]), "--data.data_seed", str(job["seed"])]
        flags += ["--model.init_args.learning_rate", str(job["lr"])]
        if job["rows"] is not None:
            flags += ["--data.table", "null", "--data.columns", "null", "--data.path", _selected(job, folder)]
        if job["steps"] is not None:
            flags += ["--trainer.max_steps", str(job["steps"])]
            flags += ["--model.init_args.lr_scheduler.init_args.T_max", str(job["steps"])]
        flags += job["flags"]
        began = time.perf_counter()
        os.chdir(folder)
        try:
            cli = LiftCLI(
                ["fit", "--config", job["config"], *FLAGS[job["arm"]], "--test_after_fit", *flags, *job["flags"]]
            )
        finally:
            os.chdir(here)
        seconds = time.perf_counter() - began
    metrics = {name: float(value) for name, value in cli.trainer.callback_metrics.items() if name.startswith("test/")}
    best = cli.trainer.checkpoint_callback.best_model_score
    train, test = cli.datamodule.split("train").double(), cli.datamodule.split("test")
    gaussian = MultivariateNormal(train.mean(0), torch.cov(train.T, correction=0))
    cli.model.eval()
    with torch.no_grad():
        ours = -torch.cat([cli.model.log_prob_scaled(chunk) for chunk in test.split(4096)]).double()
    return {
        "seconds": seconds,
        "parameters": sum(p.numel() for p in cli.model.parameters()),
        "data": cli.datamodule.name,
        "val_nll": math.inf if best is None or not math.isfinite(float(best)) else float(best),
        "entropy": cli.datamodule.entropy,
        **_against(ours, -gaussian.log_prob(test.double()), "gaussian"),
        **(_against(ours, -cli.datamodule.log_prob(test.double()), "truth") if cli.datamodule.has_log_prob else {}),
        **metrics,
    }


def _against(ours: Tensor, theirs: Tensor, name: str) -> Job:
    difference = ours - theirs
    error = float(difference.std()) / math.sqrt(len(difference))
    return {f"{name}_nll": float(theirs.mean()), f"to_{name}": float(difference.mean()), f"to_{name}_error": error}


def _selected(job: Job, folder: str) -> str:
    """The rows of one label without the label, which is the first column."""
    path = Path(job["rows"])
    if job["label"] is None:
        return str(path)
    table = pd.read_csv(path)
    chosen = Path(folder) / f"{path.stem}_label_{job['label']:g}.csv"
    table[table.iloc[:, 0] == job["label"]].iloc[:, 1:].to_csv(chosen, index=False)
    return str(chosen)


def work(job: Job) -> Job:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        try:
            return job | (known if job["kind"] == "known" else run_config)(job)
        except (ValueError, RuntimeError) as error:  # a run that diverges is a result
            return job | {"error": str(error)}


def run_all(jobs: list[Job], output: Path, workers: int) -> list[Job]:
    """Runs what the file does not have yet, and gives the lines of all these jobs."""
    done = {line["key"]: line for line in map(json.loads, output.read_text().splitlines())} if output.exists() else {}
    missing = [job for job in jobs if job["key"] not in done]
    print(f"{len(jobs) - len(missing)} runs are in {output}, {len(missing)} to do", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool, output.open("a") as file:
        for future in as_completed([pool.submit(work, job) for job in missing]):
            line = future.result()
            done[line["key"]] = line
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{line['key']}: {_short(line)}", flush=True)
    return [done[job["key"]] for job in jobs]


def _short(line: Job) -> str:
    if "error" in line:
        return line["error"]
    if line["kind"] == "known":
        return f"excess {line['excess']:.4f}, {line['train_seconds']:.0f} s"
    return f"val {line['val_nll']:.4f}, test {line['test/nll']:.4f}, {line['seconds']:.0f} s"


def known_jobs(arguments: argparse.Namespace) -> list[Job]:
    jobs = []
    pairs = list(itertools.product(arguments.target, arguments.dims))
    for (target, dim), arm, seed in itertools.product(pairs, arguments.arm, arguments.seeds):
        recipe = {name: getattr(arguments, name) or value for name, value in RECIPES[target].items()}
        key = f"known {target} {dim} {arm} seed {seed} {sorted(recipe.items())}"
        jobs.append({"kind": "known", "key": key, "target": target, "dim": dim, "arm": arm, "seed": seed, **recipe})
    return jobs


def data_jobs(arguments: argparse.Namespace) -> list[Job]:
    jobs = []
    for arm, lr, seed in itertools.product(arguments.arm, arguments.lrs, arguments.seeds):
        job = {
            "kind": "data",
            "config": str(Path(arguments.config).resolve()),
            "rows": None if arguments.rows is None else str(Path(arguments.rows).resolve()),
            "label": arguments.label,
            "steps": arguments.steps,
            "flags": arguments.flags.split(),
        }
        name = " ".join([Path(arguments.config).name, *(str(v) for k, v in job.items() if k not in ("kind", "config"))])
        jobs.append({"key": f"{name} {arm} lr {lr:g} seed {seed}", "arm": arm, "lr": lr, "seed": seed, **job})
    return jobs


def show_known(lines: Iterable[Job]) -> None:
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for line in lines:
        groups.setdefault((line["target"], line["dim"], line["arm"]), []).append(line)
    print("target       D  arm     excess NLL +- error  (log Z s.e.  bracket  ESS of 512)   seconds a run")
    for (target, dim, arm), runs in groups.items():
        if failed := [run["error"] for run in runs if "error" in run]:
            print(f"{target:10} {dim:3}  {arm:7} {len(failed)} of {len(runs)} failed: {failed[0]}")
            continue
        error = math.sqrt(sum(r["rows_error"] ** 2 + r["log_partition_standard_error"] ** 2 for r in runs)) / len(runs)
        if len(runs) > 1:
            error = max(error, statistics.stdev(r["excess"] for r in runs) / math.sqrt(len(runs)))
        mean = {
            name: statistics.mean(r[name] for r in runs)
            for name in ("excess", "log_partition_standard_error", "bracket_width", "effective_sample_size")
        }
        seconds = statistics.mean(r["train_seconds"] for r in runs)
        print(
            f"{target:10} {dim:3}  {arm:7} {mean['excess']:.4f} +- {error:.4f}  "
            f"({mean['log_partition_standard_error']:.4f}  {mean['bracket_width']:.4f}  "
            f"{mean['effective_sample_size']:.0f})  {seconds:.0f}"
        )


def show_data(lines: Iterable[Job]) -> None:
    groups: dict[tuple[str, int], list[Job]] = {}
    for line in lines:
        groups.setdefault((line["arm"], line["seed"]), []).append(line)
    for (arm, seed), runs in groups.items():
        tried = {f"{r['lr']:g}": r.get("val_nll", math.inf) for r in runs}
        best = min(runs, key=lambda r: r.get("val_nll", math.inf))
        if "error" in best:
            print(f"{arm} seed {seed}: every learning rate failed: {best['error']}")
            continue
        figure = {name.removeprefix("test/"): value for name, value in best.items() if name.startswith("test/")}
        print(
            f"{arm:14} seed {seed}: test NLL {figure['nll']:.4f} +- {figure.get('nll_total_error', math.nan):.4f} "
            f"(rows {figure['nll_standard_error']:.4f}, log Z "
            f"{figure.get('log_partition_standard_error', math.nan):.4f}, bracket "
            f"{figure.get('bracket_width', math.nan):.4f}, ESS {figure.get('effective_sample_size', math.nan):.0f}) "
            f"lr {best['lr']:g}, {best['seconds']:.0f} s, {best['parameters']} parameters, on {best['data']}"
        )
        print(
            f"        one Gaussian {best['gaussian_nll']:.4f}: difference {best['to_gaussian']:+.4f} +- "
            f"{best['to_gaussian_error']:.4f}",
            end="",
        )
        if "to_truth" in best:
            print(
                f"; truth {best['truth_nll']:.4f} (entropy {best['entropy']:.4f}): excess {best['to_truth']:+.4f} +- "
                f"{best['to_truth_error']:.4f}",
                end="",
            )
        print("; validation by rate: " + ", ".join(f"{lr} {nll:.4f}" for lr, nll in tried.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("known", "data"):
        sub = kinds.add_parser(kind)
        sub.add_argument("--output", type=Path, required=True, help="one JSON object a line and finished run")
        sub.add_argument("--jobs", type=int, default=1, help="processes")
        sub.add_argument("--only", help="only runs whose key contains this")
        sub.add_argument("--seeds", type=int, nargs="+", default=[0])
        sub.add_argument("--arm", nargs="+", default=list(ARMS), choices=ARMS if kind == "known" else FLAGS)
        if kind == "known":
            sub.add_argument("--target", choices=TARGETS, nargs="+", default=list(TARGETS))
            sub.add_argument("--dims", type=int, nargs="+", default=[2, 8, 21, 32])
            sub.add_argument("--steps", type=int, help="these six replace the recipes of RECIPES")
            sub.add_argument("--lr", type=float)
            sub.add_argument("--batch", type=int, help="rows of a batch, and chains")
            sub.add_argument("--widths", type=int, nargs="+")
            sub.add_argument("--start", type=float, help="sum of one output's weights at the start")
            sub.add_argument("--free-std", type=float, help="spread of the free weights at the start")
        else:
            sub.add_argument("--config", required=True)
            sub.add_argument("--rows", help="a table instead of the configuration's data (a TabularDataModule)")
            sub.add_argument(
                "--label", type=float, help="keep the rows whose first column is this, and drop the column"
            )
            sub.add_argument("--lrs", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
            sub.add_argument("--steps", type=int, help="instead of the configuration's max_steps and T_max")
            sub.add_argument("--flags", default="", help="more flags for lightning-lift fit, in one string")
    arguments = parser.parse_args()
    jobs = known_jobs(arguments) if arguments.kind == "known" else data_jobs(arguments)
    if arguments.only:
        jobs = [job for job in jobs if arguments.only in job["key"]]
    lines = run_all(jobs, arguments.output, arguments.jobs)
    (show_known if arguments.kind == "known" else show_data)(lines)


if __name__ == "__main__":
    main()
