"""What a user gets with nothing set: densities in one and two dimensions, convex regressions, and tables.

One record a run, appended to ``--records`` as soon as it is done; a call with the same file goes on where the last one
ended. The table, of the runs so far, is written to ``benchmarks/results/defaults.md``.

    python benchmarks/defaults.py --tasks gumbel eight_gaussians wine --seeds 0 1 2
    python benchmarks/defaults.py --arms direct_gain lift --rates 0.01 0.03 0.09

Seeds below 100 were not used in choosing the defaults.
"""

import argparse
import datetime
import functools
import json
import logging
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

import lightning_lift.datamodules as sources
from lightning_lift import ICNN, ConvexModule, ConvexPotentialFlow, LogConcaveEBM, Potential
from lightning_lift.metrics import best_gaussian
from lightning_lift.parameterizations import DirectGain, DirectSoftplus, Lift, ProjectedGradient

RESULTS = Path(__file__).parent / "results" / "defaults.md"
ARMS: dict[str, Callable[..., Any]] = {
    "direct_gain": DirectGain,
    "direct": DirectSoftplus,
    "pgd": ProjectedGradient,
    "lift": functools.partial(Lift, body_widths=[32, 16], emission_width=32),
}
LINES = ["Gumbel", "Laplace", "Gamma", "Beta", "HalfNormal", "SkewNormal"]
PLANES = ["EightGaussians", "TwoSpirals", "Checkerboard", "Pinwheel"]
FUNCTIONS = ["quadratic_exponential", "maximum_of_planes", "log_sum_exp"]
TABLES = ["iris", "wine", "diabetes", "breast_cancer_10", "breast_cancer_30", "digits"]
REGRESSION_STEPS = 600


def trainer(steps: int, **settings: Any) -> L.Trainer:
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    return L.Trainer(max_steps=steps, accelerator="cpu", num_sanity_val_steps=0, **quiet, **settings)


def line(name: str, seed: int, arm: Callable[..., Any], rate: float | None) -> dict[str, float]:
    """Total variation distance of an energy of a one-dimensional target, 3000 steps of 256."""
    data = getattr(sources, f"{name}DataModule")(batch_size=256, batches_per_epoch=500, data_seed=seed)
    module = LogConcaveEBM(1, parameterization=arm, learning_rate=rate)
    run = trainer(3000, limit_val_batches=0)
    run.fit(module, data)
    return {"figure": run.test(module, data, verbose=False)[0]["test/total_variation"]}


def plane(name: str, seed: int, arm: Callable[..., Any], rate: float | None) -> dict[str, float]:
    """Excess negative log-likelihood in nats of a flow of three blocks, 6000 steps of 256."""
    sizes = {"batch_size": 256, "batches_per_epoch": 1000, "num_test": 100_000}
    data = getattr(sources, f"{name}DataModule")(data_seed=seed, **sizes)
    module = ConvexPotentialFlow(2, parameterization=arm, num_blocks=3, learning_rate=rate, inverse_rows=0)
    run = trainer(6000, limit_val_batches=0)
    run.fit(module, data)
    found = run.test(module, data, verbose=False)[0]
    return {"figure": found["test/excess_nll"], "standard_error": found["test/nll_standard_error"]}


def function(name: str, dim: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """|x|^2 + exp(x_0), or the maximum or log-sum-exp of 12 planes of N(0, I) slopes and N(0, 1) offsets."""
    slopes, offsets = torch.randn(12, dim, generator=generator), torch.randn(12, generator=generator)
    if name == "quadratic_exponential":
        return lambda x: x.square().sum(1) + x[:, 0].exp()
    if name == "maximum_of_planes":
        return lambda x: (x @ slopes.T + offsets).amax(1)
    return lambda x: torch.logsumexp(x @ slopes.T + offsets, 1)


class Regression(ConvexModule):
    """The last column is the target of the others; the network has an intercept."""

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        return (potential.value(batch[:, :-1]) - batch[:, -1]).square().mean()

    def build(self, network: Callable[[int], Any]) -> nn.Module:
        return network(self.dim - 1)


class Clamped(nn.Module):
    """An ICNN as one writes it in twenty lines: linear layers as PyTorch starts them, negative entries set to 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(dim, 64) for _ in range(3))
        self.hidden = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))
        self.output = nn.Linear(64, 1)
        self.clamp()

    @torch.no_grad()
    def clamp(self) -> None:
        for layer in (*self.hidden, self.output):
            layer.weight.clamp_(min=0.0)

    def forward(self, x: Tensor) -> Tensor:
        z = nn.functional.softplus(self.inputs[0](x))
        for inputs, hidden in zip(self.inputs[1:], self.hidden, strict=True):
            z = nn.functional.softplus(inputs(x) + hidden(z))
        return self.output(z).squeeze(1)


def fit_clamped(model: Clamped, rows: Tensor, batches: list[Tensor], rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for index in batches:
        x, y = rows[index, :-1], rows[index, -1]
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        schedule.step()
        model.clamp()


def regression(name: str, dim: int, seed: int, arm: Callable[..., Any] | None, rate: float | None) -> dict[str, float]:
    """Test mean squared error over the variance of the function: 2,400 rows, x ~ N(0, I), 600 steps of 256."""
    generator = torch.Generator().manual_seed(1000 + seed)
    truth = function(name, dim, generator)
    x, test = torch.randn(2400, dim, generator=generator), torch.randn(20_000, dim, generator=generator)
    rows = torch.cat([x, truth(x)[:, None]], dim=1)
    batches = [torch.randint(2400, (256,), generator=generator) for _ in range(REGRESSION_STEPS)]
    if arm is None:
        model = Clamped(dim)
        fit_clamped(model, rows, batches, 1e-2 if rate is None else rate)
        predicted = model(test)
    else:
        network = functools.partial(ICNN, intercept=True)
        module = Regression(dim + 1, network, arm, learning_rate=rate)
        module.calibration_dataloader = lambda: [rows]  # type: ignore[method-assign]
        trainer(REGRESSION_STEPS).fit(module, DataLoader(rows, sampler=batches, batch_size=None))
        module.eval()
        predicted = module.potential().value(test)
    error = (predicted.detach() - truth(test)).square().mean() / truth(test).var()
    return {"figure": float(error)}


def rows_of(name: str) -> np.ndarray[Any, Any]:
    if name in ("iris", "wine"):
        return np.asarray(getattr(datasets, f"load_{name}")().data)
    if name == "diabetes":
        return np.delete(datasets.load_diabetes(scaled=False).data, 1, axis=1)  # sex is binary
    if name == "digits":
        pixels = datasets.load_digits().data
        pixels = pixels[:, np.ptp(pixels, axis=0) > 0]
        return pixels + np.random.default_rng(0).random(pixels.shape)  # a density of whole numbers has no bound
    return np.asarray(datasets.load_breast_cancer().data[:, : int(name.rpartition("_")[2])])


def table(name: str, seed: int, arm: Callable[..., Any], rate: float | None, path: str | None) -> dict[str, float]:
    """Test negative log-likelihood of a flow less that of the better Gaussian, nats; the seed is the split's too."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = f"{folder}/{name}.csv"
            values = rows_of(name)
            pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])]).to_csv(path, index=False)
            data = sources.TabularDataModule(path=path, data_seed=seed)
        else:
            data = sources.TabularDataModule(path=path, data_seed=seed, drop_columns=[0])
        data.setup()
    module = ConvexPotentialFlow(data.dim, parameterization=arm, learning_rate=rate, inverse_rows=0)
    run = trainer(3000)
    run.fit(module, data)
    found = run.test(module, data, verbose=False)[0]
    worst = torch.cat([module.log_prob_scaled(batch) for batch in data.test_dataloader()])
    gaussian = best_gaussian(data.split("train"), data.split("val"))
    assert gaussian is not None
    each = gaussian.log_prob(data.split("test").double()) - worst.detach().double()
    return {
        "figure": found["test/nll_minus_gaussian"],
        "standard_error": found["test/nll_minus_gaussian_standard_error"],
        "gaussian_nll": found["test/gaussian_nll"],
        "worst_row": float(each.max()),
        "rows": float(len(each)),
        "steps": float(run.global_step),
    }


def run(task: str, seed: int, arm: str, rate: float | None, higgs: str | None) -> dict[str, Any]:
    L.seed_everything(seed, verbose=False)
    began = time.process_time()
    factory = ARMS.get(arm)
    if task in LINES:
        found = line(task, seed, ARMS[arm], rate)
    elif task in PLANES:
        found = plane(task, seed, ARMS[arm], rate)
    elif task in TABLES or task == "higgs":
        found = table(task, seed, ARMS[arm], rate, higgs if task == "higgs" else None)
    else:
        name, _, dim = task.rpartition("_")
        found = regression(name, int(dim), seed, factory, rate)
    return {"task": task, "seed": seed, "arm": arm, "rate": rate, **found, "seconds": time.process_time() - began}


def report(records: list[dict[str, Any]]) -> str:
    """Mean over seeds by task, arm and rate; for tables the standard error is over rows and splits together."""
    lines = [
        "# What the defaults give",
        "",
        f"`python benchmarks/defaults.py`, torch {torch.__version__}, one thread, {datetime.date.today()}, "
        f"{os.cpu_count()} CPU cores. Total variation of one-dimensional "
        "targets; excess nats of flows in the plane; mean squared error over variance of regressions; nats above the "
        "better Gaussian (below 0: better than it) of tables, with the worst test row's. Rate: of the default "
        "optimizer; `default` is nothing set. `clamped`: a projected ICNN of twenty lines with a cosine.",
        "",
        "| task | arm | rate | seeds | figure | standard error | largest | worst row | processor s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["task"], record["arm"], record["rate"]), []).append(record)
    order = {name: place for place, name in enumerate(tasks_known())}
    for (task, arm, rate), group in sorted(groups.items(), key=lambda g: (order[g[0][0]], g[0][1], g[0][2] or 0.0)):
        figures = [record["figure"] for record in group]
        if "rows" in group[0]:  # over the test rows of all splits
            error = math.sqrt(sum(record["standard_error"] ** 2 for record in group)) / len(group)
        else:
            error = statistics.stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else math.nan
        worst = f"{max(record['worst_row'] for record in group):.1f}" if "worst_row" in group[0] else ""
        seeds = " ".join(str(record["seed"]) for record in group)
        seconds = statistics.fmean(record["seconds"] for record in group)
        lines.append(
            f"| {task} | {arm} | {'default' if rate is None else f'{rate:g}'} | {seeds} "
            f"| {statistics.fmean(figures):.4g} | {error:.2g} | {max(figures):.4g} | {worst} | {seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def write(records: list[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(report(records))


def tasks_known() -> list[str]:
    return [*LINES, *PLANES, *(f"{name}_{dim}" for dim in (3, 10, 30) for name in FUNCTIONS), *TABLES, "higgs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=tasks_known()[:-1], choices=tasks_known())
    parser.add_argument("--arms", nargs="+", default=["direct_gain"], choices=[*ARMS, "clamped"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[], help="beside the default one")
    parser.add_argument("--only_rates", action="store_true", help="leave the default rate out")
    parser.add_argument("--higgs", help="a CSV file of the HIGGS rows, label first")
    parser.add_argument("--records", default="runs/defaults.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = Path(arguments.records)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    done = {(r["task"], r["seed"], r["arm"], r["rate"]) for r in records}
    rates = ([] if arguments.only_rates else [None]) + arguments.rates
    jobs = [(t, s, a, r) for t in arguments.tasks for a in arguments.arms for r in rates for s in arguments.seeds]
    jobs = [j for j in jobs if j not in done and (j[2] != "clamped" or j[0].rpartition("_")[2] in ("3", "10", "30"))]
    jobs = [j for j in jobs if j[2] != "clamped" or j[0].rpartition("_")[0] in FUNCTIONS]
    progress = tqdm(jobs)
    for task, seed, arm, rate in progress:
        progress.set_description(f"{task} {arm} {rate or 'default'} seed {seed}")
        records.append(run(task, seed, arm, rate, arguments.higgs))
        with path.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        write(records)
    write(records)


if __name__ == "__main__":
    main()
