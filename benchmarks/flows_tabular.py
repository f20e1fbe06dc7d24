"""Flows of a table on one split: four parameterizations of a convex potential flow, MAF, RQ-NSF and one Gaussian.

Rows are shuffled once (``--split-seed``) and cut 75 / 10 / 15 into training, validation and test, and standardised by
the training rows. Every arm is trained by Adam for the same number of steps with a cosine schedule, is tested at its
best validation, and has the one of three learning rates with the best mean validation NLL over the seeds: the same
treatment for all. The convex potential flow is CP-Flow's tabular network (Huang et al., 2021): one block, ActNorm
inside, learned scales; the arms of a seed start from the same weights. The flows of nflows are tried with dropout 0 and
0.2 too (a few thousand rows are soon learned by heart) and keep the better on validation. The Gaussian is the maximum
likelihood one of the training rows.

Test NLL in nats in training units, mean over seeds with the standard error over them, and paired differences over test
rows (log-densities averaged over seeds) with theirs. By default a table of scikit-learn; your own, rows of label 1:

    python benchmarks/flows_tabular.py --output tabular.jsonl --jobs 2
    python benchmarks/flows_tabular.py --rows rows.csv --label 1 --output rows.jsonl --jobs 2
"""

import argparse
import functools
import itertools
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import before
import pandas as pd
import torch
from flow_training import Job, log_prob, run_all, summary, train
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.distributions import MultivariateNormal

from lightning_lift.modules import ConvexPotentialFlow, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

PARAMETERIZATIONS: dict[str, Any] = {
    "pgd": ProjectedGradient,
    "direct": DirectSoftplus,
    "direct_gain_10": functools.partial(DirectSoftplus, latent_gain=10.0),
    "lift": Lift,  # dense emission
}
BASELINES = {"maf": "maf", "rq_nsf": "rq_nsf_coupling"}
ARMS = (*PARAMETERIZATIONS, *BASELINES)
# Three a kind, about where it trains best: steps of the latent differ by the gain, and by the body of a lift.
RATES = {
    "pgd": (1e-2, 3e-2, 1e-1),
    "direct": (1e-2, 3e-2, 1e-1),
    "direct_gain_10": (3e-3, 1e-2, 3e-2),
    "lift": (1e-3, 3e-3, 1e-2),
    "maf": (3e-4, 1e-3, 3e-3),
    "rq_nsf": (3e-4, 1e-3, 3e-3),
}


def splits(job: Job) -> dict[str, Tensor]:
    """Standardised float32 rows of the three splits."""
    if job["rows"] is None:
        values = torch.from_numpy(load_breast_cancer().data[:, :10])  # the means of ten measurements
    else:
        table = pd.read_csv(job["rows"])
        if job["label"] is not None:  # the first column
            table = table[table.iloc[:, 0] == job["label"]].iloc[:, 1:]
        values = torch.from_numpy(table.to_numpy(dtype="float64"))
    if not len(values):
        raise ValueError(f"{job['rows']} has no rows of label {job['label']}")
    values = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(job["split_seed"]))]
    num_val, num_test = int(0.1 * len(values)), int(0.15 * len(values))
    train_rows, val, test = values.split([len(values) - num_val - num_test, num_val, num_test])
    location, scale = train_rows.mean(0), train_rows.std(0)
    parts = {"train": train_rows, "val": val, "test": test}
    return {name: ((rows - location) / scale).float() for name, rows in parts.items()}


def epochs(rows: Tensor, batch_size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(10_000 + seed)
    size = min(batch_size, len(rows))
    while True:
        order = torch.randperm(len(rows), generator=generator)
        for part in order.split(size):
            if len(part) == size:
                yield rows[part]


def make(job: Job, dim: int) -> Any:
    if job["arm"] in BASELINES:
        kind: Any = BASELINES[job["arm"]]
        return NormalizingFlow(dim, kind, hidden_features=job["hidden"], dropout=job["dropout"])
    network = functools.partial(ICNN, widths=job["widths"], strong_convexity="learned", actnorm=True, **before.START)
    return ConvexPotentialFlow(dim, network, PARAMETERIZATIONS[job["arm"]])


def run(job: Job) -> Job:
    torch.manual_seed(job["seed"])
    rows = splits(job)
    module = make(job, rows["train"].shape[1])
    calibration = [rows["train"]]
    if isinstance(module, ConvexPotentialFlow):
        module.start_actnorms(rows["train"])
    record = train(
        module,
        epochs(rows["train"], job["batch_size"], job["seed"]),
        rows["val"],
        calibration,
        learning_rate=job["rate"],
        steps=job["steps"],
        betas=(0.9, 0.99),
        weight_decay=1e-6,
        clip=5.0 if job["arm"] in BASELINES else None,
        cosine=True,
        validate_every=job["validate_every"],
    )
    del record["last"]
    values = log_prob(module, rows["test"], calibration)
    record |= {"nll": float(-values.mean()), "parameters": sum(p.numel() for p in module.parameters())}
    return record | {"log_prob": [round(value, 5) for value in values.tolist()]}


def gaussian(rows: dict[str, Tensor]) -> Tensor:
    """Test log-densities of the maximum likelihood Gaussian of the training rows."""
    train_rows = rows["train"].double()
    return MultivariateNormal(train_rows.mean(0), torch.cov(train_rows.T, correction=0)).log_prob(rows["test"].double())


def difference(ours: Tensor, theirs: Tensor) -> str:
    """NLL of ours minus that of theirs, from log-densities: negative where ours is better."""
    values = theirs - ours
    return f"{float(values.mean()):+8.3f} +- {float(values.std()) / math.sqrt(len(values)):.3f}"


def report(results: list[tuple[Job, Job]], rows: dict[str, Tensor]) -> None:
    base = gaussian(rows)
    counts = ", ".join(f"{name} {len(part)}" for name, part in rows.items())
    print(f"\n{rows['train'].shape[1]} columns, rows: {counts}")
    print(f"one Gaussian: {float(-base.mean()):.4f} nats (+- {float(base.std()) / math.sqrt(len(base)):.3f} over rows)")
    chosen: dict[str, Tensor] = {}
    lines = []
    for arm in dict.fromkeys(job["arm"] for job, _ in results):
        tried: dict[tuple[float, float], list[Job]] = {}
        for job, result in results:
            if job["arm"] == arm:
                tried.setdefault((job["rate"], job["dropout"]), []).append(result)
        validation = {key: statistics.mean(r["best_validation"] for r in found) for key, found in tried.items()}
        key = min(validation, key=lambda k: validation[k])
        found = tried[key]
        chosen[arm] = torch.tensor([r["log_prob"] for r in found], dtype=torch.float64).mean(0)
        milliseconds = 1e3 * statistics.median(r["seconds_per_step"] for r in found)
        settings = f"{key[0]:7.0e} {key[1]:7g}"
        steps = statistics.mean(r["best_step"] for r in found)
        lines.append((arm, settings, [r["nll"] for r in found], steps, milliseconds, found[0]["parameters"]))
    reference = chosen.get("pgd")
    print(f"{'arm':15} {'rate':>7} {'dropout':>7}   {'test NLL':19} {'minus Gaussian':>17} {'minus pgd':>17}", end="")
    print(f" {'best step':>10} {'ms a step':>9} {'parameters':>11}")
    for arm, settings, nll, steps, milliseconds, parameters in lines:
        against = difference(chosen[arm], base), "" if reference is None else difference(chosen[arm], reference)
        print(f"{arm:15} {settings}   {summary(nll):19} {against[0]:>17} {against[1]:>17}", end="")
        print(f" {steps:10.0f} {milliseconds:9.2f} {parameters:11d}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="finished runs, one line each; resumed from")
    parser.add_argument("--rows", type=Path, help="a .csv file with a header line; default: breast cancer")
    parser.add_argument("--label", type=float, help="keep rows whose first column is this, and drop that column")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", type=float, nargs="+", help="for every arm, instead of its own three")
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.2], help="tried for the flows of nflows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split-seed", type=int, default=0)
    parser.add_argument("--widths", type=int, nargs="+", default=[64] * 5, help="of the potential")
    parser.add_argument("--hidden", type=int, default=64, help="width of the conditioning networks of nflows")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--validate-every", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    arguments = parser.parse_args()
    shared = {
        "rows": None if arguments.rows is None else str(arguments.rows.resolve()),
        "label": arguments.label,
        "split_seed": arguments.split_seed,
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "validate_every": arguments.validate_every,
    }
    jobs = []
    for seed, arm in itertools.product(arguments.seeds, arguments.arms):
        baseline = arm in BASELINES
        own = {"hidden": arguments.hidden} if baseline else {"widths": arguments.widths}
        rates, dropouts = arguments.rates or RATES[arm], arguments.dropouts if baseline else [0.0]
        for rate, dropout in itertools.product(rates, dropouts):
            jobs.append({"arm": arm, "rate": rate, "dropout": dropout, "seed": seed, **own, **shared})
    report(run_all(run, jobs, arguments.output, arguments.jobs), splits(shared))


if __name__ == "__main__":
    main()
