"""All seeds of an arm trained at once: one stacked optimizer, one pass of the task under ``vmap``."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch

from lightning_lift.compare.build import count_parameters
from lightning_lift.compare.folders import checkpoint_folder
from lightning_lift.compare.record import RunRecord, RunSpec
from lightning_lift.compare.recorder import Clock
from lightning_lift.compare.run import quiet
from lightning_lift.compare.seed_run import SeedRun
from lightning_lift.compare.stacked_energy import EnergyLoss
from lightning_lift.compare.stacked_flow import flow_loss
from lightning_lift.compare.stacked_loss import Core, StackedLoss
from lightning_lift.compare.stacking import NotVectorizable, SeedStack, make_optimizer
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.modules import ConvexModule, ConvexPotentialFlow, LogConcaveEBM

__all__ = ["NotVectorizable", "iterate_vectorized", "run_vectorized"]

_HOOKS = (
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_before_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


def run_vectorized(
    specs: Sequence[RunSpec],
    directory: Path,
    checkpoint_every: int | None = None,
    progress: Callable[[float], None] | None = None,
    chunk: int | None = None,
) -> list[RunRecord]:
    """Trains and tests all seeds of an arm at once; the records are those of ``compare.run`` up to round-off.

    Starts, data streams, clipping, schedule, projection, penalty, looks and choice of the best state are those of
    separate runs. A seed that diverges or fails ends alone. Training is on the processor. Checkpoints hold weights
    without the optimizer's state.

    Args:
        specs: of one arm, purpose, rate and number of steps.
        directory: of the comparison.
        checkpoint_every: optimizer steps between further checkpoints, as ``compare.run.run`` has it.
        progress: called with the share done, from 0 to 1.
        chunk: seeds at a time; None for what keeps a step's tensors near the processor.

    Returns:
        One record a spec, in their order. ``curves["seconds"]`` and timings are the batch's over its number of seeds.

    Raises:
        NotVectorizable: these runs must be done one by one; the reason says why.
        ValueError: specs that do not belong together.
    """
    return list(iterate_vectorized(specs, directory, checkpoint_every, progress, chunk))


def iterate_vectorized(
    specs: Sequence[RunSpec],
    directory: Path,
    checkpoint_every: int | None = None,
    progress: Callable[[float], None] | None = None,
    chunk: int | None = None,
) -> Iterator[RunRecord]:
    """``run_vectorized``, giving each chunk's records as soon as they are there.

    Args:
        specs: of one arm, purpose, rate and number of steps.
        directory: of the comparison.
        checkpoint_every: optimizer steps between further checkpoints.
        progress: called with the share done.
        chunk: seeds at a time.

    Yields:
        Records, in the specs' order.

    Raises:
        NotVectorizable: before the first record, if at all.
        ValueError: specs that do not belong together.
    """
    if not specs:
        return
    first = specs[0]
    for spec in specs:
        for name in ("arm", "purpose", "learning_rate", "steps"):
            if getattr(spec, name) != getattr(first, name):
                raise ValueError(f"{spec.key} and {first.key} differ in {name}: only seeds of one arm train at once.")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk}: at least one seed at a time, or None.")
    if chunk is None:
        with quiet():
            chunk = _fitting(first)
    rounds = -(-len(specs) // chunk)
    done = 0
    for index in range(rounds):
        part = specs[done : (index + 1) * len(specs) // rounds]  # of equal length, but for one

        def report(share: float, before: int = done, size: int = len(part)) -> None:
            if progress is not None:
                progress((before + share * size) / len(specs))

        with quiet():
            records = _train(part, directory, checkpoint_every, report)
        yield from records
        done += len(part)


def _train(
    specs: Sequence[RunSpec], directory: Path, checkpoint_every: int | None, progress: Callable[[float], None]
) -> list[RunRecord]:
    with ExitStack() as folders:
        began = time.perf_counter()
        _check_settings(specs[0])
        seeds = [
            SeedRun(spec, folders.enter_context(checkpoint_folder(directory, spec.key)), checkpoint_every)
            for spec in specs
        ]
        clock = Clock()
        steps = _fit(seeds, clock, progress)
        for seed in seeds:
            if seed.alive:
                seed.finish()
        count = len(seeds)
        timings = {
            "fit_seconds": (time.perf_counter() - began) / count,
            "train_seconds": clock.seconds / count,
            "seconds_per_step": clock.seconds / count / max(steps, 1),
        }
        return [seed.record(dict(timings), directory) for seed in seeds]


def _fit(seeds: Sequence[SeedRun], clock: Clock, progress: Callable[[float], None]) -> int:
    """Trains until all steps are done or no seed is left; returns the steps."""
    for seed in seeds:
        seed.attach()
        _check_module(seed.module)
        _check_loader(seed.data)
    first, steps = seeds[0], seeds[0].spec.steps
    every = int(first.settings["val_check_interval"])
    limit = first.settings.get("gradient_clip_val")
    algorithm: Literal["norm", "value"] = (
        "value" if first.settings.get("gradient_clip_algorithm") == "value" else "norm"
    )
    stack = SeedStack([seed.module for seed in seeds])
    loss = _stacked_loss(stack, first.module)
    optimizer, scheduler = make_optimizer(first.module, stack.trained)
    for step in range(1, steps + 1):
        looks = step % every == 0
        batch = torch.stack([seed.next_batch() for seed in seeds])
        alive = [seed.alive for seed in seeds]
        for seed in seeds if step == 1 else ():
            seed.keep(0)
        clock.start()
        optimizer.zero_grad()
        losses = loss.backward(batch, alive)
        if looks:
            clock.stop()
            for seed in seeds:
                if seed.alive:
                    seed.before_step()
            clock.start()
        if limit:
            stack.clip_(float(limit), algorithm)
        optimizer.step()
        for seed in seeds:
            seed.module.parameterization.after_step_()
        if scheduler is not None:
            scheduler.step()
        values = losses.tolist()
        clock.stop()
        seconds = clock.seconds / len(seeds)
        for index, (seed, value) in enumerate(zip(seeds, values, strict=True)):
            if not seed.alive:
                continue
            if index in loss.errors:
                seed.fail(RuntimeError(loss.errors[index]))
            elif not abs(value) < float("inf"):
                seed.diverge(step, seconds, value)
            else:
                seed.keep(step)
                if looks:
                    seed.look(step, seconds, value)
        if looks:
            progress(step / steps)
        if not any(seed.alive for seed in seeds):
            return step
    return steps


def _fitting(spec: RunSpec) -> int:
    """Seeds at a time: enough to spread Python's cost over, few enough that a step's tensors stay near the processor.

    One thread, milliseconds a seed and step, by the number of seeds at a time: ICNN 32x3 1.8 (5), 1.5 (15), 1.7 (30);
    ICNN 128x3 6.6 (2), 6.7 (5), 5.3 (10); dense lift of ICNN 128x3 16 (2), 21 (4).
    """
    count = count_parameters(spec.config)
    return next(size for size, most in ((15, 10_000), (8, 1_000_000), (2, float("inf"))) if count <= most)


def _check_settings(spec: RunSpec) -> None:
    """Refuses what one stacked optimizer cannot do.

    Raises:
        NotVectorizable: as said.
    """
    trainer: Mapping[str, Any] = spec.config["trainer"]
    if trainer.get("callbacks"):
        raise NotVectorizable("callbacks take part in its training")
    if int(trainer.get("accumulate_grad_batches") or 1) != 1:
        raise NotVectorizable("it accumulates gradients over batches")
    if str(trainer.get("precision") or "32-true") not in ("32", "32-true", "64", "64-true"):
        raise NotVectorizable(f"it trains in precision {trainer['precision']}")
    if trainer.get("devices") not in (None, 1, "1", "auto") or trainer.get("num_nodes") not in (None, 1):
        raise NotVectorizable("it trains on several devices")
    if trainer.get("overfit_batches"):
        raise NotVectorizable("it overfits a few batches")
    if not isinstance(trainer.get("val_check_interval"), int):
        raise NotVectorizable("its looks are not counted in steps")


def _check_module(module: ConvexModule) -> None:
    kind = type(module)
    for name in _HOOKS:
        if getattr(kind, name) is not getattr(L.LightningModule, name):
            raise NotVectorizable(f"{kind.__name__} takes part in training by {name}")
    own = {ConvexModule.training_step, ConvexPotentialFlow.training_step, LogConcaveEBM.training_step}
    if kind.training_step not in own:
        raise NotVectorizable(f"{kind.__name__} has a training step of its own")
    if not module.automatic_optimization:
        raise NotVectorizable(f"{kind.__name__} steps its optimizers itself")


def _check_loader(data: L.LightningDataModule) -> None:
    if not isinstance(data.train_dataloader(), BatchLoader):
        raise NotVectorizable(f"{type(data).__name__} draws its batches from the run's own random numbers")


def _stacked_loss(stack: SeedStack, module: ConvexModule) -> StackedLoss:
    if isinstance(module, ConvexPotentialFlow):
        return flow_loss(stack, module)
    if isinstance(module, LogConcaveEBM):
        return EnergyLoss(stack, module)
    return StackedLoss(stack, Core(module))
