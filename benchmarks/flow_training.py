"""What the flow benchmarks share: one plain training loop, and runs that are kept in a file and resumed.

The loop has no Trainer, so that a second of it is a second of the model. It is no question of its own.
"""

import copy
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_lift.modules import DensityTask

Job = dict[str, Any]


@torch.no_grad()
def log_prob(module: DensityTask, rows: Tensor, calibration: Sequence[Tensor]) -> Tensor:
    """Log-density of rows (N, D) under the weights of evaluation, shape (N,)."""
    module.eval()
    parameterization = getattr(module, "parameterization", None)
    if parameterization is not None and parameterization.is_stale:
        parameterization.calibrate(calibration)
    values = torch.cat([module.log_prob_scaled(part) for part in rows.split(4096)])
    module.train()
    return values


def train(
    module: DensityTask,
    batches: Iterator[Tensor],
    validation: Tensor,
    calibration: Sequence[Tensor],
    *,
    learning_rate: float,
    steps: int | None = None,
    seconds: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    clip: float | None = None,
    cosine: bool = False,
    validate_every: int = 100,
) -> Job:
    """Trains by Adam for a number of steps, or of seconds of this thread's processor time (validation not counted).

    Processor time, so that another process on the machine shortens nobody's training. A cosine schedule falls to zero
    with the steps or with the seconds. Afterwards the module holds the weights of the best validation.

    Returns:
        ``best_validation`` and ``last_validation`` (NLL), ``best_step``, ``steps``, ``seconds_per_step``, ``wall``
        (seconds of everything), and ``last``, the state dictionary of the last step. A run that is no longer finite
        ends.
    """
    assert (steps is None) != (seconds is None)
    project = getattr(getattr(module, "parameterization", None), "project_", lambda: None)
    parameters = list(module.parameters())
    optimizer = torch.optim.Adam(parameters, learning_rate, betas, weight_decay=weight_decay)
    project()
    module.train()
    best, best_step, best_state, last_value = math.inf, 0, copy.deepcopy(module.state_dict()), math.nan
    spent, step, done, began = 0.0, 0, False, time.perf_counter()
    while not done:
        start = time.process_time()
        for _ in range(validate_every):
            share = step / steps if steps is not None else (spent + time.process_time() - start) / (seconds or 1.0)
            done = share >= 1.0
            if done:
                break
            if cosine:
                optimizer.param_groups[0]["lr"] = 0.5 * learning_rate * (1.0 + math.cos(math.pi * share))
            optimizer.zero_grad(set_to_none=True)
            module.batch_loss(next(batches)).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            project()
            step += 1
        done = done or step == steps
        spent += time.process_time() - start
        last_value = float(-log_prob(module, validation, calibration).mean())
        if last_value < best:
            best, best_step, best_state = last_value, step, copy.deepcopy(module.state_dict())
        done = done or not math.isfinite(last_value)
    last = copy.deepcopy(module.state_dict())
    module.load_state_dict(best_state)
    return {
        "best_validation": best,
        "best_step": best_step,
        "last_validation": last_value,
        "steps": step,
        "seconds_per_step": spent / max(step, 1),
        "wall": time.perf_counter() - began,
        "last": last,
    }


def run_all(work: Callable[[Job], Job], jobs: Sequence[Job], output: Path, processes: int) -> list[tuple[Job, Job]]:
    """Runs what is missing in ``output``, one line of JSON a finished run, and gives all results in the jobs' order.

    Args:
        work: a function at the top level of the script; called in a process of one thread.
        jobs: plain settings; equal settings are one run.
        output: is appended to.
        processes: at the same time.
    """
    found = _finished(output)
    keys = [json.dumps(job, sort_keys=True) for job in jobs]
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in found}
    if missing:
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {output}", flush=True)
        os.environ["OMP_NUM_THREADS"] = "1"  # read by the processes when they start
        output.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool, output.open("a") as file:
            futures = {pool.submit(work, job): key for key, job in missing.items()}
            for future in as_completed(futures):
                key = futures[future]
                try:
                    found[key] = future.result()
                except Exception as error:  # the others go on; a second call tries again
                    print(f"failed: {key}: {type(error).__name__}: {error}", flush=True)
                    continue
                file.write(json.dumps({"job": missing[key], "result": found[key]}) + "\n")
                file.flush()
                said = {name: value for name, value in found[key].items() if isinstance(value, int | float)}
                print(key, " ".join(f"{name} {value:.4g}" for name, value in said.items()), flush=True)
    return [(job, found[key]) for key, job in zip(keys, jobs, strict=True) if key in found]


def _finished(output: Path) -> dict[str, Job]:
    found = {}
    for line in output.read_text().splitlines() if output.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # an interrupted write
            continue
        found[json.dumps(record["job"], sort_keys=True)] = record["result"]
    return found


def summary(values: Sequence[float], digits: int = 4) -> str:
    """Mean and standard error over runs."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.{digits}f} +- {error:.{digits}f}"
