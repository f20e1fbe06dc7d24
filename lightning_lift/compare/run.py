"""One run of a comparison by Lightning: from its spec to its record."""

import logging
import math
import platform
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import numpy
import torch
from lightning.pytorch.profilers import Profiler

from lightning_lift import __version__
from lightning_lift.compare.build import make, make_reference, trained_numbers
from lightning_lift.compare.directory import checkpoint_folder, keep
from lightning_lift.compare.faults import lost_by
from lightning_lift.compare.recorder import Recorder, as_curves, start_hash
from lightning_lift.compare.records import Outcome, RunRecord, RunSpec, monitored
from lightning_lift.modules.divergence import DivergenceError, has_diverged


def run(spec: RunSpec, directory: Path, checkpoint_every: int | None = None) -> RunRecord:
    """Train and test one run; the same spec gives the same record, but for its times.

    The state of the lowest monitored validation metric and the last one are both tested. Their checkpoints lie in
    ``DIRECTORY/checkpoints/KEY`` and load by ``lightning-lift fit`` and ``test --ckpt_path``; those of ``tune`` and
    ``timing`` runs are deleted once tested. The folder appears whole, at the end of a finished run, or not at all. The
    record is returned, not written.

    Args:
        spec: the run.
        directory: of the comparison.
        checkpoint_every: optimizer steps between further checkpoints ``step000000.ckpt``, ... (weights alone), the
            first before training; None for none.

    Returns:
        The record: ``finished``; ``diverged`` where the training loss has exploded or the monitored metric is not
        finite, or where an error is one of arithmetic or comes with weights that have grown a thousandfold, with the
        curves to there; ``failed`` with the kind and message of any other error.

    Raises:
        KeyboardInterrupt: passed on, as any fault of the surroundings is (see ``faults.lost_by``); nothing is left
            behind.
    """
    with checkpoint_folder(directory, spec.key) as folder, quiet():
        record, checkpoints = _run(spec, folder, checkpoint_every)
        if record.outcome == "finished" and spec.purpose == "final":
            record.checkpoints = keep(folder, directory, spec.key, checkpoints)
        return record


def _run(spec: RunSpec, folder: Path, checkpoint_every: int | None) -> tuple[RunRecord, dict[str, Path]]:
    """The record and the checkpoints in the folder."""
    results: dict[str, Any] = {"versions": versions()}
    outcome: Outcome
    error: str | None
    recorder: Recorder | None = None
    module: L.LightningModule | None = None
    began = time.perf_counter()
    try:
        reference = make_reference(spec)
        module, data, settings = make(spec)
        results["start_hash"] = start_hash(module, reference)
        del reference
        results["num_parameters"] = trained_numbers(module)
        results["metric"] = getattr(module, "selection_metric", None)
        results["headlines"] = list(getattr(module, "headlines", ()))
        recorder = Recorder(folder, checkpoint_every, weights_only=spec.purpose != "final")
        callbacks = [*(settings["callbacks"] or []), recorder]  # last: after weight averaging
        settings |= {"profiler": settings["profiler"] or _NoProfiler(), "default_root_dir": folder}
        trainer = L.Trainer(**settings | {"callbacks": callbacks})
        began = time.perf_counter()
        with _interrupts_pass():
            trainer.fit(module, datamodule=data)
            results["timings"] = _timings(recorder, trainer.global_step, began)
            results["metrics"] = _metrics(trainer, module, data, recorder)
        outcome, error = "finished", None
    except Exception as raised:
        if lost_by(raised) is not None:
            raise
        outcome, error = ending(raised, module, None if recorder is None else recorder.start_size)
    if recorder is not None:
        results["curves"] = as_curves(recorder.rows)
        results["data_hash"] = recorder.data_hash(outcome == "finished")
        results.setdefault("timings", _timings(recorder, 0, began))
    record = RunRecord.of(spec, outcome, error=error, **results)
    return record, {} if recorder is None else recorder.checkpoints


def _metrics(
    trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule, recorder: Recorder
) -> dict[str, dict[str, float]]:
    """Test metrics of the best and of the last state, beside their validation metrics."""
    steps = trainer.global_step
    best = recorder.checkpoints.setdefault("best", recorder.checkpoints["last"])  # where nothing was monitored
    row = recorder.rows[-1] if recorder.rows and recorder.rows[-1]["step"] == steps else {}
    last = {name: value for name, value in row.items() if name.startswith("val/")}
    options: dict[str, Any] = {"datamodule": data, "weights_only": True, "verbose": False}
    path = str(recorder.checkpoints["last"])
    if not last:
        last = _plain_metrics(trainer.validate(module, ckpt_path=path, **options))
    last |= _plain_metrics(trainer.test(module, ckpt_path=path, **options))
    found = {"best": dict(last), "last": last}
    if recorder.best_step not in (steps, None):
        tested = _plain_metrics(trainer.test(module, ckpt_path=str(best), **options))
        found["best"] = recorder.best_metrics | tested
    _check_tested(found, getattr(module, "selection_metric", None))
    return found


def _plain_metrics(results: Any) -> dict[str, float]:
    """What ``Trainer.validate`` or ``test`` gave, a list of mappings, as numbers by name."""
    return {name: float(value) for result in results for name, value in result.items()}


def _timings(recorder: Recorder, steps: int, began: float) -> dict[str, float]:
    timings = {"fit_seconds": time.perf_counter() - began, "train_seconds": recorder.clock.seconds}
    if steps:
        timings["seconds_per_step"] = recorder.clock.seconds / steps
    return timings


def versions() -> dict[str, str]:
    """The versions of what determines the numbers of a run."""
    return {
        "lightning_lift": __version__,
        "torch": torch.__version__,
        "lightning": L.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


class _NoProfiler(Profiler):
    """Measure nothing, at less cost than Lightning's own, which is entered some fifty times a step."""

    def profile(self, action_name: str) -> Any:
        return nullcontext()

    def start(self, action_name: str) -> None:
        """Never called."""

    def stop(self, action_name: str) -> None:
        """Never called."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no notices of Lightning: hundreds of runs would each say the same."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interrupts_pass() -> Iterator[None]:
    """Lightning answers Ctrl+C by ignoring further ones and leaving the process; here it is passed on."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, KeyboardInterrupt):
            raise
        if main:
            signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from leaving


def ending(error: Exception, module: L.LightningModule | None, start_size: float | None) -> tuple[Outcome, str]:
    """The outcome of a run that an error ended (see ``has_diverged``), and what its record says of it.

    Args:
        error: what was raised.
        module: the run's; None where it could not be made.
        start_size: its ``largest_weight`` before the first step; None where training did not begin.
    """
    if isinstance(error, DivergenceError):
        return "diverged", str(error)
    diverged = module is not None and start_size is not None and has_diverged(error, module, start_size)
    return "diverged" if diverged else "failed", f"{type(error).__name__}: {error}"


def _check_tested(metrics: dict[str, dict[str, float]], own: str | None = None) -> None:
    """Raise ``DivergenceError`` where the best or last state has no finite test metric."""
    for state, found in metrics.items():
        name = (monitored(found, own) or "val/loss").replace("val/", "test/")
        if not math.isfinite(found.get(name, 0.0)):
            raise DivergenceError(f"{name} of the {state} state is {found[name]}")
