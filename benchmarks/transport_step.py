"""What a step of a transport costs: the conjugate's points against everything else.

Processor time of one thread, log-sum-exp pair, batch 256, the default network, from the training with nothing set: the
mean over each fifth of the steps. ``given``: the same step less the time in the solver, as if its points were known.
Residual |grad f(x^) - y| / (1 + |y|): the median of a batch, mean over batches. ``amortized``: a second network
predicts the points and L-BFGS finishes them; its own training is among its cost.

    python benchmarks/transport_step.py --dims 2 16
"""

import argparse
import datetime
import logging
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from defaults import trainer
from torch import Tensor

from lightning_lift import BrierMap
from lightning_lift.datamodules import LogSumExpPairDataModule
from lightning_lift.modules.conjugates import Conjugate, ConjugateName

RESULTS = Path(__file__).parent / "results" / "transport_step.md"


class Clock(L.Callback):
    """Processor time of each step, and of the solver within it."""

    def __init__(self, module: BrierMap) -> None:
        self.steps: list[tuple[float, float, float, float]] = []  # whole, solver, residual, solved
        self._solve = module._solver.solve
        self._inside = (0.0, 0.0, 0.0)
        module._solver.solve = self.solve  # type: ignore[method-assign]

    def solve(self, potentials: Any, y: Tensor, positions: Tensor | None) -> Conjugate:
        began = time.process_time()
        found = self._solve(potentials, y, positions)
        took = time.process_time() - began
        assert found.residual is not None
        residual = float((found.residual / (1.0 + y.norm(dim=1))).median())
        self._inside = (took, residual, float(found.solved.float().mean()))
        return found

    def on_train_batch_start(self, *_: Any) -> None:
        self._began = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.append((time.process_time() - self._began, *self._inside))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", type=int, default=[2, 16])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--report", default=str(RESULTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lines = [
        "# What a step of a transport costs",
        "",
        f"`python benchmarks/transport_step.py`, torch {torch.__version__}, one thread, {datetime.date.today()}. What "
        "each figure is stands at the head of the script.",
        "",
        "| D | conjugate | steps | ms a step | of it the solver | over a step with points given | residual | solved |",
        "|---|---|---|---|---|---|---|---|",
    ]
    arms: list[ConjugateName] = ["newton", "amortized"]
    for dim in arguments.dims:
        for arm in arms:
            L.seed_everything(0, verbose=False)
            data = LogSumExpPairDataModule(dim)
            module = BrierMap(dim, conjugate=arm)
            clock = Clock(module)
            trainer(arguments.steps, callbacks=[clock], limit_val_batches=0).fit(module, data)
            fifth = arguments.steps // 5
            for start in range(0, arguments.steps, fifth):
                whole, inside, residual, solved = (
                    statistics.fmean(column) for column in zip(*clock.steps[start : start + fifth], strict=True)
                )
                lines.append(
                    f"| {dim} | {arm} | {start}-{start + fifth} | {1e3 * whole:.1f} | {1e3 * inside:.1f} "
                    f"| {whole / (whole - inside):.1f} | {residual:.1e} | {solved:.4f} |"
                )
                Path(arguments.report).write_text("\n".join(lines) + "\n")
    print(Path(arguments.report).read_text())


if __name__ == "__main__":
    main()
