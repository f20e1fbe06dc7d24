"""A day of a battery, planned over what was learned of its costs.

From noisy records of (power, stored energy, temperature) a relu ICNN learns what an hour costs: losses that grow with
the power, and wear near the ends and away from 20 degrees. The network then stands in the day's plan 24 times, as one
linear program. The picture has the plan beside the one that knows the true cost.

    pip install 'lightning-lift[cvxpy]'
    python examples/storage_schedule.py
"""

import functools
import logging
import sys
import time
from pathlib import Path

import cvxpy as cp
import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure

from lightning_lift import ICNN, ConvexRegression
from lightning_lift.datamodules import PairsDataModule
from lightning_lift.programs import to_cvxpy

CAPACITY, LARGEST = 10.0, 3.0  # kWh; kW, and an hour's kWh
HOURS = np.arange(24)
PRICES = 0.25 + 0.12 * np.sin((HOURS - 12.5) * np.pi / 6.0) + 0.06 * (HOURS > 15)  # a kWh from the grid
TEMPERATURES = 12.0 + 10.0 * np.sin((HOURS - 9.0) * np.pi / 12.0)


def true_cost(power: cp.Expression, stored: cp.Expression, temperature: np.ndarray) -> cp.Expression:
    """What an hour costs in truth, for each of them."""
    losses = 0.01 * cp.abs(power) + 0.012 * cp.square(power)
    wear = 0.03 * (cp.pos(2.0 - stored) + cp.pos(stored - 8.0)) + 0.0004 * cp.square(
        cp.abs(temperature - 20.0) + cp.abs(power)
    )
    return losses + wear


def records(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hours of the past, with the measured cost of each."""
    rng = np.random.default_rng(seed)
    low, high = [-LARGEST, 0.0, -2.0], [LARGEST, CAPACITY, 30.0]
    x = rng.uniform(low, high, (num_rows, 3))
    cost = true_cost(cp.Constant(x[:, 0]), cp.Constant(x[:, 1]), x[:, 2]).value
    return x, cost + 0.01 * rng.standard_normal(num_rows)


def learned(seed: int) -> torch.nn.Module:
    """The cost of an hour as a relu ICNN, in original units."""
    L.seed_everything(seed, verbose=False)
    x, cost = records(6000, seed)
    data = PairsDataModule.from_arrays(x, target=cost)
    network = functools.partial(ICNN, widths=[64, 64], activation="relu", strong_convexity=0.0)
    model = ConvexRegression(dim=3, network=network)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=60, accelerator="cpu", **quiet)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)
    return model.freeze()


def plan(model: torch.nn.Module | None) -> tuple[np.ndarray, np.ndarray, cp.Problem]:
    """Power and stored energy of the day, by the learned cost or, without a model, by the true one."""
    power, stored = cp.Variable(24), cp.Variable(25)
    constraints = [stored[1:] == stored[:-1] + power, stored[0] == 5.0, stored[24] == 5.0]
    constraints += [stored >= 0.0, stored <= CAPACITY, cp.abs(power) <= LARGEST]
    if model is None:
        wear = true_cost(power, stored[:-1], TEMPERATURES)
    else:
        wear, own = to_cvxpy(model, cp.vstack([power, stored[:-1], TEMPERATURES]).T)
        constraints += own
    problem = cp.Problem(cp.Minimize(PRICES @ power + cp.sum(wear)), constraints)
    problem.solve(solver=cp.CLARABEL)
    return power.value, stored.value, problem


def picture(plans: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Prices, power and stored energy over the day."""
    figure = Figure(figsize=(7.0, 5.5), layout="constrained")
    prices, powers, energies = figure.subplots(3, 1, sharex=True)
    prices.step(HOURS, PRICES, where="post", color="0.3")
    for (name, (power, stored)), style in zip(plans.items(), ("-", "--"), strict=True):
        powers.step(HOURS, power, style, where="post", label=name)
        energies.plot(np.arange(25), stored, style, label=name)
    prices.set_ylabel("price a kWh")
    powers.set_ylabel("power (kW)")
    energies.set_ylabel("stored (kWh)")
    energies.set_xlabel("hour")
    energies.legend(frameon=False)
    figure.savefig(path, dpi=80)


def main(path: Path, seed: int = 0) -> None:
    """Train, plan, and draw."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = learned(seed)
    start = time.perf_counter()
    power, stored, problem = plan(model)
    seconds = time.perf_counter() - start
    rows = torch.tensor(np.stack([power, stored[:-1], TEMPERATURES], axis=1))
    by_network = PRICES @ power + float(model(rows).sum())
    print(f"planned in {seconds:.2f} s; the solver states {problem.solution.opt_val:.6f}, the network {by_network:.6f}")
    best_power, best_stored, best = plan(None)
    in_truth = PRICES @ power + true_cost(cp.Constant(power), cp.Constant(stored[:-1]), TEMPERATURES).value.sum()
    idle = true_cost(cp.Constant(np.zeros(24)), cp.Constant(np.full(24, 5.0)), TEMPERATURES).value.sum()
    print(f"in truth the plan costs {in_truth:.4f}, the best one {best.value:.4f}, an idle battery {idle:.4f}")
    picture({"learned cost": (power, stored), "true cost": (best_power, best_stored)}, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "storage_schedule.png"))
