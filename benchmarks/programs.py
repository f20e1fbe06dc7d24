"""Trained networks as programs: does a solver find the network's own optimum, and how fast?

Networks are regressions of a known convex function, trained for ``--steps`` steps a seed. Each is minimised (a concave
one maximised) under random linear constraints by the program, and by scipy on the network itself in float64, from
several starts. The table is written to ``benchmarks/results/programs.md``.

    python benchmarks/programs.py --seeds 0 1 2
"""

import argparse
import datetime
import functools
import logging
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import lightning as L
import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, minimize
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from lightning_lift import ICNN, ConvexRegression
from lightning_lift.networks import PICNN, FlowICNN
from lightning_lift.programs import certify, linear_program, optimum, to_cvxpy
from lightning_lift.programs.function import convex_function

RESULTS = Path(__file__).parent / "results" / "programs.md"
REPEATS, STARTS, CONTEXTS = 20, 3, 20


def trained(dim: int, seed: int, steps: int, contexts: int = 0, **options: Any) -> Any:
    """A frozen regression of |x1 - 0.3| + sum x^2 + e^{x2}, which the context moves; of minus it where concave."""
    L.seed_everything(seed, verbose=False)
    x, context = 2.0 * torch.rand(4000, dim) - 1.0, torch.randn(4000, max(contexts, 1))
    moved = x - (0.3 * torch.tanh(context[:, :1]) if contexts else 0.0)
    target = (moved[:, 0] - 0.3).abs() + moved.square().sum(1) + moved[:, 1].exp()
    settings = {name: options.pop(name) for name in ("concave", "increasing") if name in options}
    if settings.get("increasing"):
        target = target + 3.0 * x[:, 0]
    if contexts:
        settings["context_shape"] = (contexts,)
    options = {"strong_convexity": 0.0, **options}
    network = functools.partial(options.pop("network", PICNN if contexts else ICNN), **options)
    target = -target if settings.get("concave") else target
    parts = [x, context, target] if contexts else [x, target]
    loader = DataLoader(TensorDataset(*parts), batch_size=200, shuffle=True)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_steps=steps, accelerator="cpu", **quiet)
    model = ConvexRegression(dim, network=network, **settings)
    trainer.fit(model, loader)
    return model.freeze()


def constraints(dim: int, seed: int) -> list[LinearConstraint | Bounds]:
    """Five inequalities and one equality that a box of side 2 does not satisfy by itself."""
    rng = np.random.default_rng(1000 + seed)
    rows = LinearConstraint(rng.standard_normal((5, dim)), -np.inf, 0.5)
    return [rows, LinearConstraint(np.ones((1, dim)), 0.5, 0.5), Bounds(-1.0, 1.0)]


def scipys(function: Any, limits: list[Any], method: str, seed: int) -> float:
    """The best value that a descent on the network finds, from several starts."""

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function.value_gradient(x[None])
        return function.sign * float(value[0]), function.sign * gradient[0]

    box = next(limit for limit in limits if isinstance(limit, Bounds))
    rows = [limit for limit in limits if limit is not box]
    options: dict[str, Any] = {"maxiter": 1000, "ftol": 1e-14}
    best = np.inf
    for start in np.random.default_rng(seed).uniform(-0.5, 0.5, (STARTS, function.potential.dim)):
        run = minimize(objective, start, jac=True, method=method, bounds=box, constraints=rows, options=options)
        off = [max(0.0, *(np.atleast_1d(r.lb) - r.A @ run.x), *(r.A @ run.x - np.atleast_1d(r.ub))) for r in rows]
        best = run.fun if run.fun < best and max(off, default=0.0) < 1e-8 else best
    return function.sign * best


def timed(solve: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of the wall and of the processor."""
    both = []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        solve()
        both.append((time.perf_counter() - wall, time.process_time() - processor))
    return statistics.median(b[0] for b in both), statistics.median(b[1] for b in both)


def by_highs(frozen: Any, limits: list[Any]) -> Callable[[], Any]:
    """What is timed: HiGHS on the built program."""
    program = linear_program(frozen)
    bounds, rest = program.bounds.copy(), [limit for limit in limits if isinstance(limit, LinearConstraint)]
    bounds[program.x_columns] = [-1.0, 1.0]
    rows = [sp.csr_array((r.A.shape[0], len(program.c))).tolil() for r in rest]
    for matrix, limit in zip(rows, rest, strict=True):
        matrix[:, program.x_columns] = limit.A
    A_ub, b_ub = sp.vstack([program.A_ub, rows[0]]), np.concatenate([program.b_ub, np.full(rows[0].shape[0], 0.5)])
    return lambda: linprog(program.c, A_ub, b_ub, rows[1].tocsr(), [0.5], bounds)


def linear(name: str, seed: int, steps: int, **options: Any) -> dict[str, Any]:
    frozen, limits = trained(10, seed, steps, widths=(64, 64, 64), activation="relu", **options), constraints(10, seed)
    found = optimum(frozen, limits)
    peer = scipys(convex_function(frozen), limits, "SLSQP", seed)
    wall, processor = timed(by_highs(frozen, limits))
    return record(name, seed, found, peer, wall, processor)


def partial(seed: int, steps: int) -> dict[str, Any]:
    frozen = trained(10, seed, steps, contexts=3, widths=(64, 64, 64), activation="relu")
    limits, records = constraints(10, seed), []
    for row in torch.randn(CONTEXTS, 1, 3, generator=torch.Generator().manual_seed(seed)):
        function = convex_function(frozen, row)
        found = optimum(function, limits)
        records.append(
            record("PICNN", seed, found, scipys(function, limits, "SLSQP", seed), *timed_once(function, limits))
        )
    worst = max(records, key=lambda entry: abs(entry["difference"]))
    medians = {key: statistics.median(entry[key] for entry in records) for key in ("wall", "processor")}
    residual = max(entry["residual"] for entry in records)
    return {**worst, **medians, "residual": residual, "case": f"relu 64x3, PICNN at {CONTEXTS} contexts, D = 10"}


def timed_once(function: Any, limits: list[Any]) -> tuple[float, float]:
    solve = by_highs(function, limits)
    wall, processor = time.perf_counter(), time.process_time()
    solve()
    return time.perf_counter() - wall, time.process_time() - processor


def conic(name: str, seed: int, steps: int, max_error: float | None = None, **options: Any) -> dict[str, Any]:
    frozen, box = trained(5, seed, steps, widths=(64, 64), **options), [Bounds(-1.0, 1.0)]
    found = optimum(frozen, box, max_error=max_error)
    peer = scipys(convex_function(frozen), box, "L-BFGS-B", seed)

    def solve() -> None:
        x = cp.Variable(5)
        value, own = to_cvxpy(frozen, x, max_error=max_error)
        cp.Problem(cp.Minimize(value), [*own, x >= -1.0, x <= 1.0]).solve(solver=cp.CLARABEL)

    return record(name, seed, found, peer, *timed(solve))


def schedule(seed: int, steps: int) -> dict[str, Any]:
    """24 steps of (power, stored energy, price): energy goes on by power, prices are given."""
    frozen = trained(3, seed, steps, widths=(64, 64), activation="relu")
    prices = np.random.default_rng(seed).uniform(-1.0, 1.0, 24)
    rows = np.zeros((24 + 23, 24, 3))
    for step in range(24):
        rows[step, step, 2] = 1.0
        if step:
            rows[23 + step, step, 1], rows[23 + step, step - 1, 1], rows[23 + step, step - 1, 0] = 1.0, -1.0, -0.25
    sides = np.concatenate([prices, np.zeros(23)])
    limits = [LinearConstraint(rows.reshape(47, 72), sides, sides), Bounds(-1.0, 1.0)]
    found = optimum(frozen, limits, points=24)
    x = cp.Variable((24, 3))

    def solve() -> None:
        value, own = to_cvxpy(frozen, x)
        links = [x[1:, 1] == x[:-1, 1] + 0.25 * x[:-1, 0], x[:, 2] == prices, x >= -1.0, x <= 1.0]
        cp.Problem(cp.Minimize(cp.sum(value)), [*own, *links]).solve(solver=cp.HIGHS)

    wall, processor = timed(solve)
    peer = certify(frozen, x.value, found.objective, limits).value  # of cvxpy's own program
    return record("relu 64x2, 24 steps, D = 3", seed, found, peer, wall, processor)


def record(name: str, seed: int, found: Any, peer: float, wall: float, processor: float) -> dict[str, Any]:
    differs = {"difference": peer - found.value, "gap": found.gap, "residual": found.residual}
    return {"case": name, "seed": seed, "value": found.value, **differs, "wall": wall, "processor": processor}


CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "relu": functools.partial(linear, "relu 64x3, D = 10"),
    "concave": functools.partial(linear, "relu 64x3, concave, D = 10", concave=True),
    "monotone": functools.partial(linear, "relu 64x3, increasing in x1, D = 10", increasing=[0]),
    "picnn": partial,
    "softplus": functools.partial(conic, "softplus 64x2, D = 5", activation="softplus"),
    "quadratic": functools.partial(conic, "softplus 64x2, learned k, D = 5", strong_convexity="learned_gain"),
    "gaussian": functools.partial(conic, "gaussian 64x2, max_error 0.01, D = 5", max_error=0.01, network=FlowICNN),
    "schedule": schedule,
}


def report(records: list[dict[str, Any]], steps: int) -> str:
    cores, today = os.cpu_count(), datetime.date.today()
    lines = [
        "# Trained networks as programs",
        "",
        f"`python benchmarks/programs.py`, torch {torch.__version__}, cvxpy {cp.__version__}, one thread, {today}, "
        f"{cores} CPU cores, under load. Regressions after {steps} steps. scipy - program: value of the network at "
        "scipy's best point less that at the program's (SLSQP under linear constraints, L-BFGS-B in a box, the best of "
        f"{STARTS} starts, float64 on the network; for the schedule cvxpy's point); a concave f is maximised. Gap: "
        "between the solver's objective and the network's value. Residual: of the KKT conditions, on the network. "
        f"Milliseconds: median of {REPEATS} (of the {CONTEXTS} contexts for PICNN, whose worst is in the table) of "
        "HiGHS on the built program; for softplus and gaussian of building the expression, compiling, and solving by "
        "Clarabel, for the schedule the same with HiGHS.",
        "",
        "| case | seed | value | scipy - program | gap | residual | ms | processor ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in records:
        figures = f"{r['difference']:.1e} | {r['gap']:.1e} | {r['residual']:.1e}"
        times = f"{1e3 * r['wall']:.1f} | {1e3 * r['processor']:.1f}"
        lines.append(f"| {r['case']} | {r['seed']} | {r['value']:.6f} | {figures} | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    records = []
    for case, seed in tqdm([(case, seed) for case in arguments.cases for seed in arguments.seeds]):
        records.append(CASES[case](seed=seed, steps=arguments.steps))
        arguments.output.write_text(report(records, arguments.steps))
    print(arguments.output.read_text())


if __name__ == "__main__":
    main()
