"""Convex regression with nothing set, beside what one would take instead.

Rows x ~ N(0, I). ``quadratic_exponential``: 2,400 of |x|^2 + exp(x_0), D = 3, noise of sd 0.3, as a plain
``TensorDataset``, beside the ICNN that one writes in twenty lines, for as many steps and for as much processor time.
``log_sum_exp``: 2,000 or 200 rows of the log-sum-exp of 12 planes, D = 8, noise of a tenth of its sd, by the estimator
beside scikit-learn's network and convex least squares (``pip install cvxreg``). ``shape``: what 10^5 random segments
find of convexity and monotonicity after a reload.

One record a run, appended to ``--records`` as soon as it is done; a call with the same file goes on where the last one
ended. The table, of the runs so far, is written to ``benchmarks/results/regression.md``.

    python benchmarks/regression.py --seeds 0 1 2 3 4

Seeds below 100 were not used in choosing the defaults.
"""

import argparse
import datetime
import json
import logging
import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from defaults import Clamped, fit_clamped, function, trainer
from sklearn.neural_network import MLPRegressor
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lightning_lift import ConvexRegression, ConvexRegressor

RESULTS = Path(__file__).parent / "results" / "regression.md"
BATCH, STEPS = 128, 1900  # 100 epochs of 2,400 rows
RATES = (1e-3, 1e-2, 3e-2)
CLAMPED = {f"clamped {rate:g}, {budget}": (rate, budget) for budget in ("steps", "time") for rate in RATES}
SIZES = {"MLPRegressor 100": (100,), "MLPRegressor 64-64": (64, 64), "MLPRegressor 256-256": (256, 256)}
OURS = "ConvexRegression"
ARMS = {
    "quadratic_exponential": [OURS, *CLAMPED],
    "log_sum_exp_2000": ["ConvexRegressor", *SIZES],
    "log_sum_exp_200": ["ConvexRegressor", "cvxreg CR", *SIZES],
    "shape": ["float32", "float64"],
}


class Problem:
    """Rows to fit, 10,000 fresh ones with their own noise, and the variance of the noise."""

    def __init__(self, task: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(1000 + seed)
        name, dim, rows = task, 3, 2400
        if task.startswith("log_sum_exp"):
            name, dim, rows = "log_sum_exp", 8, int(task.rpartition("_")[2])
        truth = function(name, dim, generator)
        scale = 0.1 * float(truth(torch.randn(100_000, dim, generator=generator)).std()) if dim == 8 else 0.3

        def draw(count: int) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, dim, generator=generator)
            return x, truth(x) + scale * torch.randn(count, generator=generator)

        self.variance = scale**2
        self.x, self.y = draw(rows)
        self.test_x, self.test_y = draw(10_000)

    def error(self, predicted: Tensor) -> float:
        return float((predicted.detach() - self.test_y).square().mean())


def fit(x: Tensor, y: Tensor, steps: int, double: bool = False, **settings: Any) -> tuple[L.Trainer, ConvexRegression]:
    module = ConvexRegression(x.shape[1], **settings)
    run = trainer(steps, precision="64-true" if double else "32-true")
    run.fit(module, DataLoader(TensorDataset(x, y), BATCH, shuffle=True))
    return run, module.eval()


def clamped(problem: Problem, rate: float, steps: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randint(len(problem.x), (BATCH,), generator=generator) for _ in range(steps)]
    model = Clamped(problem.x.shape[1])
    fit_clamped(model, torch.cat([problem.x, problem.y[:, None]], dim=1), batches, rate)
    return model(problem.test_x)


def convex_least_squares(problem: Problem) -> Tensor:
    from cvxreg.models import CR  # of this benchmark alone

    model = CR(shape="convex", solver="osqp")
    model.fit(problem.x.double().numpy(), problem.y.double().numpy())
    return torch.tensor(np.ravel(model.predict(problem.test_x.double().numpy())))


def compared(task: str, arm: str, seed: int, seconds: dict[str, float]) -> dict[str, float]:
    """Test mean squared error over the variance of the noise; ``seconds``: what each arm before took on these rows."""
    problem = Problem(task, seed)
    began = time.process_time()
    if arm == OURS:
        predicted = fit(problem.x, problem.y, STEPS)[1].function().mean(problem.test_x)
    elif arm in CLAMPED:
        rate, budget = CLAMPED[arm]
        ratio = seconds[OURS] / seconds[f"clamped {rate:g}, steps"] if budget == "time" else 1.0
        predicted = clamped(problem, rate, int(STEPS * ratio), seed)
    elif arm == "cvxreg CR":
        predicted = convex_least_squares(problem)
    else:
        model: Any = ConvexRegressor(random_state=seed)
        if arm in SIZES:
            model = MLPRegressor(hidden_layer_sizes=SIZES[arm], max_iter=1000, random_state=seed)
        model.fit(problem.x.numpy(), problem.y.numpy())
        predicted = torch.tensor(model.predict(problem.test_x.numpy()))
    took = time.process_time() - began
    return {"figure": problem.error(predicted) / problem.variance, "mse": problem.error(predicted), "seconds": took}


def shape(precision: str, seed: int) -> dict[str, float]:
    """The largest rise above a chord, and the largest slope of the wrong sign, over the range of the values."""
    problem, double = Problem("quadratic_exponential", seed), precision == "float64"
    dtype = torch.float64 if double else torch.float32
    began = time.process_time()
    named = {"increasing": [0], "decreasing": [1]}
    run, _ = fit(problem.x.to(dtype), problem.y.to(dtype), 300, double, **named)
    with tempfile.TemporaryDirectory() as folder:
        run.save_checkpoint(f"{folder}/model.ckpt")
        module = ConvexRegression.load_from_checkpoint(f"{folder}/model.ckpt").to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    a, b = (3.0 * torch.randn(100_000, 3, generator=generator, dtype=dtype) for _ in range(2))
    share = torch.rand(100_000, 1, generator=generator, dtype=dtype)
    points = (a, b, share * a + (1 - share) * b)
    with torch.no_grad():
        first, second, middle = (module.function().mean(point).double() for point in points)
        slopes = module.function().gradient(a)
    extent = float(torch.cat([first, second]).max() - torch.cat([first, second]).min())
    weight = share[:, 0].double()
    above = float((middle - weight * first - (1 - weight) * second).max()) / extent
    wrong = max(float((-slopes[:, 0]).max()), float(slopes[:, 1].max())) / extent
    return {"figure": max(above, wrong, 0.0), "seconds": time.process_time() - began}


def report(records: list[dict[str, Any]]) -> str:
    lines = [
        "# Convex regression with nothing set",
        "",
        f"`python benchmarks/regression.py`, torch {torch.__version__}, one thread, {datetime.date.today()}. Test mean "
        "squared error on 10,000 fresh noisy rows over the variance of the noise, so 1 is the least; for `shape` the "
        "largest violation over the range of the values, after a reload, in 100,000 random segments and slopes. "
        f"`{OURS}` and `clamped`: {STEPS:,} steps of {BATCH} rows; `time`: as long as `{OURS}` took.",
        "",
        "| task | arm | seeds | mean | standard error | of each seed | processor s |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, arms in ARMS.items():
        for arm in arms:
            group = sorted((r for r in records if (r["task"], r["arm"]) == (task, arm)), key=lambda r: r["seed"])
            if not group:
                continue
            figures = [record["figure"] for record in group]
            error = statistics.stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else math.nan
            seeds, each = " ".join(str(r["seed"]) for r in group), " ".join(f"{figure:.3g}" for figure in figures)
            lines.append(
                f"| {task} | {arm} | {seeds} | {statistics.fmean(figures):.3g} | {error:.2g} | {each} "
                f"| {statistics.fmean(r['seconds'] for r in group):.1f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", help="those of the tasks to run; all by default")
    parser.add_argument("--records", default="runs/regression.jsonl")
    parser.add_argument("--report", default=str(RESULTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = Path(arguments.records)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    done = {(r["task"], r["arm"], r["seed"]): r["seconds"] for r in records}
    chosen = [(t, a) for t in arguments.tasks for a in ARMS[t] if arguments.arms is None or a in arguments.arms]
    for task, arm, seed in tqdm([(t, a, s) for t, a in chosen for s in arguments.seeds if (t, a, s) not in done]):
        L.seed_everything(seed, verbose=False)
        took = {a: seconds for (t, a, s), seconds in done.items() if (t, s) == (task, seed)}
        found = shape(arm, seed) if task == "shape" else compared(task, arm, seed, took)
        records.append({"task": task, "arm": arm, "seed": seed, **found})
        done[task, arm, seed] = found["seconds"]
        with path.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        Path(arguments.report).write_text(report(records))
    Path(arguments.report).write_text(report(records))


if __name__ == "__main__":
    main()
