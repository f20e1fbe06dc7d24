"""Brenier maps with nothing set, against maps that are known.

``benchmark_D``: the pairs of the Wasserstein-2 benchmark in ``--pairs`` (``dD.npz``); ``log_sum_exp_D`` (pair_seed 0);
``gaussian_D`` (pair_seed 0). Figures on 10,000 held-out rows, as the benchmark defines them: L2-UVP of the map and of
its inverse in percent, with the weights of the best validation of the dual, and of the last step; the cosine; the lower
bound of W2^2 / 2 with its standard error, beside the exact value. ``start``: the Gaussian map between the samples'
moments. The rivals have the same network, start and optimizer, the best of three rates by the dual on seed 100 (an
edge is said), and as many steps as take them the processor time that ``newton`` took.

One record a run, appended to ``--records`` as soon as it is done; a call with the same file goes on where the last one
ended. The table, of the runs so far, is written to ``benchmarks/results/transport.md``.

    python benchmarks/transport.py --pairs FOLDER --seeds 0 1 2
"""

import argparse
import datetime
import json
import logging
import math
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from defaults import trainer
from tqdm import tqdm

from lightning_lift import BrierMap
from lightning_lift.datamodules import GaussianPairDataModule, LogSumExpPairDataModule, W2BenchmarkDataModule
from lightning_lift.modules.conjugates import ConjugateName

RESULTS = Path(__file__).parent / "results" / "transport.md"
STEPS = {2: 8000, 4: 8000, 8: 4000, 16: 10_000, 32: 8000}
GAUSSIAN_STEPS = 2000
TASKS = [f"benchmark_{dim}" for dim in (2, 4, 16, 32)]
TASKS += [f"gaussian_{dim}" for dim in (2, 8, 32)] + [f"log_sum_exp_{dim}" for dim in (2, 16)]
RIVALS: list[ConjugateName] = ["amortized", "cycle", "minimax"]
RATES, TUNING_SEED, TRIED = (0.004, 0.012, 0.04), 100, 300
COLUMNS = ("start", "l2_uvp", "l2_uvp_last", "l2_uvp_inverse", "cosine", "unsolved")


class LastWeights(L.Callback):
    """The last step's map, before the best weights take its place."""

    def __init__(self, data: Any) -> None:
        self.data, self.uvp = data, math.nan

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.uvp = uvp(pl_module, self.data)


def uvp(module: Any, data: Any) -> float:
    x = data.split("test").source
    truth = data.map(x)
    return 100.0 * float((module.transport(x) - truth).square().sum(1).mean() / truth.var(0).sum())


def pair(task: str, folder: Path | None, seed: int) -> Any:
    kind, _, dim = task.rpartition("_")
    if kind == "benchmark":
        assert folder is not None
        return W2BenchmarkDataModule(str(folder / f"d{dim}.npz"), data_seed=seed)
    kinds: dict[str, Any] = {"gaussian": GaussianPairDataModule, "log_sum_exp": LogSumExpPairDataModule}
    return kinds[kind](int(dim), data_seed=seed)


def fitted(
    task: str, folder: Path | None, conjugate: ConjugateName, steps: int, seed: int, rate: float | None
) -> tuple[L.Trainer, BrierMap, Any, LastWeights, float]:
    L.seed_everything(seed, verbose=False)
    data = pair(task, folder, seed)
    data.setup()
    module, last = BrierMap(data.dim, conjugate=conjugate, learning_rate=rate), LastWeights(data)
    run = trainer(steps, callbacks=[last])
    began = time.process_time()
    run.fit(module, data)
    return run, module, data, last, time.process_time() - began


def measure(task: str, folder: Path | None, arm: ConjugateName, seed: int, budget: float | None) -> dict[str, Any]:
    dim = int(task.rpartition("_")[2])
    steps, rate = STEPS[dim] if not task.startswith("gaussian") else GAUSSIAN_STEPS, None
    if budget is not None:
        trials = {}
        for tried in RATES:
            run, module, data, _, seconds = fitted(task, folder, arm, TRIED, TUNING_SEED, tried)
            trials[tried] = run.test(module, data, verbose=False)[0]["test/w2_half_lower"]
            per_step = seconds / TRIED
        rate = max(trials, key=lambda tried: trials[tried] if math.isfinite(trials[tried]) else -math.inf)
        steps = int(budget / per_step)
    began = time.perf_counter()
    run, module, data, last, seconds = fitted(task, folder, arm, steps, seed, rate)
    wall = time.perf_counter() - began
    found = {name.removeprefix("test/"): v for name, v in run.test(module, data, verbose=False)[0].items()}
    start = BrierMap(data.dim)
    train = data.split("train")
    start.balance(train.source, train.target)
    found |= {"start": uvp(start, data), "l2_uvp_last": last.uvp, "seconds": seconds, "wall": wall}
    return found | {"steps": run.global_step, "rate": rate, "w2_half_error": data.w2_half_error}


def report(records: list[dict[str, Any]]) -> str:
    lines = [
        "# Brenier maps with nothing set",
        "",
        f"`python benchmarks/transport.py`, torch {torch.__version__}, one thread, {datetime.date.today()}. Mean over "
        "the seeds with its standard error, and the largest; L2-UVP in percent. What each figure is stands at the head "
        "of the script. `bound - exact`: of W2^2 / 2, in standard errors of both, the largest over the seeds.",
        "",
        "| pair | conjugate | rate | seeds | steps | processor s | start | L2-UVP, best by dual | last step | inverse "
        "| cosine | unsolved | bound - exact |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["task"], record["arm"]), []).append(record)
    order = sorted(groups.items(), key=lambda item: (TASKS.index(item[0][0]), item[0][1] != "newton", item[0][1]))
    for (task, arm), group in order:
        cells = []
        for name in COLUMNS:
            values = [record[name] for record in group]
            error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.2g}" if len(values) > 1 else ""
            largest = f" ({max(values):.3g})" if name.startswith("l2_uvp") and len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.3g}{error}{largest}")
        margins = [
            (r["w2_half_lower"] - r["w2_half_exact"])
            / math.hypot(r["w2_half_lower_standard_error"], r["w2_half_error"])
            for r in group
        ]
        rates = ", ".join(sorted({"default" if r["rate"] is None else f"{r['rate']:g}" for r in group}))
        edges = {r["rate"] for r in group} & {RATES[0], RATES[-1]}
        seconds = statistics.fmean(r["seconds"] for r in group)
        lines.append(
            f"| {task} | {arm} | {rates}{' (edge)' if edges else ''} | {' '.join(str(r['seed']) for r in group)} "
            f"| {statistics.fmean(r['steps'] for r in group):.0f} | {seconds:.0f} | {' | '.join(cells)} "
            f"| {max(margins):+.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, help="folder of dD.npz; the benchmark's pairs are left out without")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--rivals", nargs="*", default=[], choices=RIVALS, help="beside newton")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--records", default="runs/transport.jsonl")
    parser.add_argument("--report", default=str(RESULTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = Path(arguments.records)
    path.parent.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in arguments.tasks if arguments.pairs is not None or not task.startswith("benchmark")]
    arms = ("newton", *arguments.rivals)
    for task, seed, arm in tqdm([(t, s, a) for t in tasks for s in arguments.seeds for a in arms]):
        records = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        done = {(r["task"], r["arm"], r["seed"]): r["seconds"] for r in records}
        if (task, arm, seed) not in done:
            budget = None if arm == "newton" else done[task, "newton", seed]
            found = measure(task, arguments.pairs, arm, seed, budget)
            with path.open("a") as file:
                file.write(json.dumps({"task": task, "arm": arm, "seed": seed, **found}) + "\n")
    records = [json.loads(text) for text in path.read_text().splitlines()]
    Path(arguments.report).write_text(report(records))
    print(Path(arguments.report).read_text())


if __name__ == "__main__":
    main()
