"""What does one step of an energy-based model cost in 21 dimensions, and how much of it is not the network?

One step is a bare loop's: zero_grad, the loss with its estimator of log Z, backward, clipping, the optimizer, the
projection. Every arm and estimator runs in a process of its own, on standardised rows of noise (a step's time does not
depend on the numbers). Timers sit around

- ``network``: all calls of the potential (energies of data and draws, gradients in the chains), the
  weights' emission, and the loss's backward, which is that of network and emission;
- ``optimizer``: zero_grad, clipping, ``optimizer.step`` and the projection;
- ``flow``: the steps of FlowImportance's own flow, whatever happens inside. They are steps of another model, counted
  apart, and no part of the energy step. Langevin's chains are part of it.

``outside`` is what is left of the energy step, as a fraction of it: with FlowImportance the draws of its flow are most
of that. With one thread the seconds are of processor time, which equals wall time on an idle machine and is little
disturbed by neighbours on a busy one. Memory is the process's peak (ru_maxrss). The reference implementation, as known
for this setting on a machine of this kind (one thread): energy step 0.17 s (direct, PGD) and 1.10 s (lift, 107 million
parameters, 2.3 GB peak), flow step 0.21 s.
"""

import argparse
import functools
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch

from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition import FlowImportance, Langevin
from lightning_lift.partition.flow_proposal import FlowProposal
from lightning_lift.potential import Potential

ARMS: dict[str, Any] = {"pgd": ProjectedGradient, "direct": DirectSoftplus, "lift": Lift}
ESTIMATORS = ("langevin", "flow")
POTENTIAL_CALLS = ("value", "value_gradient", "value_gradient_hessian", "gradient", "hessian", "gradient_logdet")


class Timers:
    """Seconds inside named calls; a call inside another is counted for the outer one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inside = False

    def clear(self) -> None:
        """Back to zero."""
        self.seconds.clear()
        self.calls.clear()

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Puts a timed method in the place of the owner's."""
        setattr(owner, method, self.timed(getattr(owner, method), name))

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The call, with its seconds added up under a name."""

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside, start = True, self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - start
                self.calls[name] = self.calls.get(name, 0) + 1

        return timed


def build(arm: str, estimator: str, arguments: argparse.Namespace) -> LogConcaveEBM:
    L.seed_everything(0, verbose=False)
    network = functools.partial(
        ICNN, widths=[arguments.width] * arguments.layers, strong_convexity=0.02, weight_init="constant"
    )
    if estimator == "langevin":
        partition: Any = functools.partial(Langevin, num_chains=256, num_steps=5)
    else:
        partition = functools.partial(FlowImportance, warm_up=5, max_flow_steps=arguments.flow_steps)
    return LogConcaveEBM(arguments.dim, network, ARMS[arm], partition, learning_rate=1e-3)


def measure(arm: str, estimator: str, arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    module = build(arm, estimator, arguments).train()
    batch = torch.randn(arguments.batch, arguments.dim, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    timers = Timers(clock)
    for method in POTENTIAL_CALLS:
        timers.wrap(Potential, method, "network")
    timers.wrap(module.parameterization, "weights", "network")
    timers.wrap(FlowProposal, "step", "flow")
    backward = timers.timed(lambda loss: loss.backward(), "network")

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        optimizer.step()
        module.parameterization.project_()

    update, zero = timers.timed(update, "optimizer"), timers.timed(optimizer.zero_grad, "optimizer")

    def step() -> float:
        start = clock()
        zero()
        backward(module.batch_loss(batch))
        update()
        return clock() - start

    start = clock()
    step()  # the pilot run or the warm-up, and the optimizer's state
    first = clock() - start
    step()
    rows: list[dict[str, float]] = []
    for _ in range(arguments.steps):
        timers.clear()
        whole = step()
        parts = {name: timers.seconds.get(name, 0.0) for name in ("network", "optimizer", "flow")}
        energy = whole - parts["flow"]
        rows.append(
            {
                "energy_step": energy,
                "network": parts["network"],
                "optimizer": parts["optimizer"],
                "outside": 1.0 - (parts["network"] + parts["optimizer"]) / energy,
                "flow_steps": float(timers.calls.get("flow", 0)),
                "flow_step": parts["flow"] / max(timers.calls.get("flow", 0), 1),
            }
        )
    result: dict[str, Any] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    if estimator == "langevin":
        result["chain_step"] = chain_step(module, batch, clock)
        del result["flow_steps"], result["flow_step"]
    return {
        "arm": arm,
        "estimator": estimator,
        **result,
        "first_step": first,
        "parameters": sum(p.numel() for p in module.parameters()),
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # kibibytes on Linux
        "steps": arguments.steps,
    }


@torch.no_grad()
def chain_step(module: LogConcaveEBM, batch: torch.Tensor, clock: Callable[[], float], repeats: int = 3) -> float:
    """Seconds of one Langevin step of all chains, by the difference between one forward and another of more steps."""
    partition: Any = module.partition
    potential, seconds = module.potential(batch), {}
    for count in (1, 6):
        partition.num_steps, times = count, []
        for _ in range(repeats):
            start = clock()
            partition(potential)
            times.append(clock() - start)
        seconds[count] = min(times)
    return (seconds[6] - seconds[1]) / 5


def show(row: dict[str, Any]) -> None:
    estimator_step = row.get("chain_step", row.get("flow_step", 0.0))
    print(
        f"{row['arm']:>6} {row['estimator']:>8}: energy step {row['energy_step']:.3f} s (network {row['network']:.3f}, "
        f"optimizer {row['optimizer']:.3f}, outside {100 * row['outside']:.1f} %), estimator step "
        f"{estimator_step:.3f} s, {row['parameters'] / 1e6:.2f} million parameters, "
        f"peak {row['peak_gigabytes']:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS), choices=ESTIMATORS)
    parser.add_argument("--steps", type=int, default=10, help="timed energy steps; the medians over them are reported")
    parser.add_argument("--flow_steps", type=int, default=3, help="most flow steps before each energy step")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--dim", type=int, default=21)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON lines; rows that it has already are not measured again")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(arguments.arms[0], arguments.estimators[0], arguments)))
        return
    done: list[dict[str, Any]] = []
    if arguments.output and arguments.output.exists():
        done = [json.loads(line) for line in arguments.output.read_text().splitlines()]
    for arm, estimator in itertools.product(arguments.arms, arguments.estimators):
        row = next((row for row in done if (row["arm"], row["estimator"]) == (arm, estimator)), None)
        if row is None:
            command = [sys.executable, __file__, "--inside", "--arms", arm, "--estimators", estimator]
            for name in ("steps", "flow_steps", "width", "layers", "dim", "batch", "threads"):
                command += [f"--{name}", str(getattr(arguments, name))]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            row = json.loads(run.stdout.splitlines()[-1])
            if arguments.output:
                with arguments.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        show(row)


if __name__ == "__main__":
    main()
