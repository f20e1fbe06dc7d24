"""The mode of a learned density, and the most probable point where something else is known.

A log-concave density of two correlated, skewed columns is trained by maximum likelihood. Its mode is one convex
program, with a proof; so is the most probable point given a measurement of the columns' sum, inside a disc. No chains,
no restarts.

    pip install 'lightning-lift[cvxpy]'
    python examples/log_concave_mode.py
"""

import functools
import logging
import sys
from pathlib import Path

import cvxpy as cp
import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from lightning_lift import ICNN, LogConcaveEBM
from lightning_lift.datamodules import TabularDataModule
from lightning_lift.partition import Quadrature
from lightning_lift.programs import optimum, to_cvxpy

MIXING = np.array([[1.0, 0.0], [0.7, 0.5]])  # of two Gumbel variables, whose mode is 0
LOCATION = np.array([10.0, 4.0])
CENTRE, RADIUS = np.array([11.5, 4.5]), 0.6
SUM, ERROR = 17.0, 0.8  # a measurement of x1 + x2 and its standard deviation


def learned(folder: Path, seed: int) -> torch.nn.Module:
    """The density of 5,000 rows, in their units."""
    L.seed_everything(seed, verbose=False)
    rows = LOCATION + np.random.default_rng(seed).gumbel(size=(5000, 2)) @ MIXING.T
    np.save(folder / "rows.npy", rows)
    data = TabularDataModule(path=str(folder / "rows.npy"))
    network = functools.partial(ICNN, widths=[32, 32])
    model = LogConcaveEBM(dim=2, network=network, partition=functools.partial(Quadrature, num_points=65))
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_steps=300, check_val_every_n_epoch=5, accelerator="cpu", **quiet)
    trainer.fit(model, datamodule=data)
    return model.freeze()


def most_probable(density: torch.nn.Module) -> np.ndarray:
    """The maximum a posteriori inside the disc: the density is the prior, the measurement the likelihood."""
    x = cp.Variable(2)
    log_density, constraints = to_cvxpy(density, x)
    log_likelihood = -cp.square((cp.sum(x) - SUM) / ERROR) / 2.0
    problem = cp.Problem(cp.Maximize(log_density + log_likelihood), [*constraints, cp.norm(x - CENTRE) <= RADIUS])
    problem.solve(solver=cp.CLARABEL)
    return x.value


def picture(density: torch.nn.Module, points: dict[str, np.ndarray], path: Path) -> None:
    """The density, the disc, the measurement and both points."""
    first, second = np.linspace(8.0, 14.0, 121), np.linspace(1.5, 8.0, 121)
    grid = np.stack(np.meshgrid(first, second), axis=-1)
    with torch.no_grad():
        values = density.log_prob(torch.tensor(grid.reshape(-1, 2))).exp().reshape(121, 121).numpy()
    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.contour(first, second, values, levels=10, cmap="viridis", linewidths=0.8)
    axes.fill_between(
        first, SUM - ERROR - first, SUM + ERROR - first, color="tab:orange", alpha=0.2, label="measured sum"
    )
    axes.add_patch(Circle(CENTRE, RADIUS, fill=False, linestyle="--", label="disc"))
    for (name, point), marker in zip(points.items(), "o*x", strict=False):
        axes.plot(*point, marker, markersize=9, label=name)
    axes.set(xlabel="x1", ylabel="x2", xlim=(8.0, 14.0), ylim=(1.5, 8.0))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=80)


def main(path: Path, seed: int = 0) -> None:
    """Train, maximise, and draw."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    density = learned(path.parent, seed)
    mode = optimum(density)
    print(f"mode {mode.x.round(3)} (of the truth: {LOCATION}), log-density {mode.value:.4f}")
    print(f"gap {mode.gap:.1e}, largest slope there {mode.residual:.1e}")
    point = most_probable(density)
    print(f"most probable with the measurement, in the disc: {point.round(3)}")
    picture(density, {"mode": mode.x, "true mode": LOCATION, "maximum a posteriori": point}, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "log_concave_mode.png"))
