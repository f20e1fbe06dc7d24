"""One run of a comparison by Lightning: from its spec to its record."""

import logging
import math
import os
import platform
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy
import torch

from lightning_lift import __version__
from lightning_lift.compare.build import make, make_reference
from lightning_lift.compare.hashing import start_hash
from lightning_lift.compare.observers import DivergenceError, Recorder, as_curves, largest_weight, monitored
from lightning_lift.compare.record import RunRecord, RunSpec

_BLOWN_UP = 1e3  # no sane training makes the largest weight that many times as large


def run(spec: RunSpec, directory: Path, checkpoint_every: int | None = None) -> RunRecord:
    """Trains and tests one run; the same spec gives the same record, but for its times.

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
        The record: ``finished``; ``diverged`` where the training loss or the monitored metric is not finite, or where
        an error is one of arithmetic or comes with weights that have grown a thousandfold, with the curves to there;
        ``failed`` with the kind and message of any other error.

    Raises:
        KeyboardInterrupt: passed on; nothing is left behind.
    """
    folder = directory / "checkpoints" / spec.key
    temporary = _empty_folder(folder)
    try:
        with quiet():
            record = _run(spec, temporary, checkpoint_every)
        if record.outcome == "finished" and spec.purpose == "final":
            _remove(folder)  # of a run that was killed between its folder and its record
            temporary.replace(folder)
            record.checkpoints = {name: str((folder / file).relative_to(directory)) for name, file in _files(record)}
        else:
            record.checkpoints = {}
        return record
    finally:
        _remove(temporary)


def _run(spec: RunSpec, folder: Path, checkpoint_every: int | None) -> RunRecord:
    results: dict[str, Any] = {"versions": versions()}
    recorder: Recorder | None = None
    module: L.LightningModule | None = None
    began = time.perf_counter()
    try:
        reference = make_reference(spec)
        module, data, settings = make(spec)
        results["start_hash"] = start_hash(module, reference)
        del reference
        results["num_parameters"] = sum(p.numel() for p in module.parameters() if p.requires_grad)
        recorder = Recorder(folder, checkpoint_every, weights_only=spec.purpose != "final")
        callbacks = [*(settings.pop("callbacks") or []), recorder]  # last: after weight averaging
        trainer = L.Trainer(**settings | {"callbacks": callbacks, "default_root_dir": folder})
        began = time.perf_counter()
        with _interrupts_pass():
            trainer.fit(module, datamodule=data)
            results["timings"] = _timings(recorder, trainer.global_step, began)
            results["metrics"] = _metrics(trainer, module, data, recorder)
        results["checkpoints"] = {name: path.name for name, path in recorder.checkpoints.items()}
        outcome, error = "finished", None
    except DivergenceError as reason:
        outcome, error = "diverged", str(reason)
    except Exception as raised:
        outcome = "diverged" if recorder is not None and _by_divergence(raised, module, recorder) else "failed"
        error = f"{type(raised).__name__}: {raised}"
    if recorder is not None:
        results["curves"] = as_curves(recorder.rows)
        results["data_hash"] = recorder.data_hash if outcome == "finished" or recorder.saw_enough else ""
        results.setdefault("timings", _timings(recorder, 0, began))
    return RunRecord.of(spec, outcome, error=error, **results)  # type: ignore[arg-type]


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
        last = _floats(trainer.validate(module, ckpt_path=path, **options))
    last |= _floats(trainer.test(module, ckpt_path=path, **options))
    if recorder.best_step in (steps, None):
        found = {"best": dict(last), "last": last}
    else:
        tested = _floats(trainer.test(module, ckpt_path=str(best), **options))
        found = {"best": recorder.best_metrics | tested, "last": last}
    for state, metrics in found.items():
        name = (monitored(metrics) or "val/loss").replace("val/", "test/")
        if not math.isfinite(metrics.get(name, 0.0)):
            raise DivergenceError(f"{name} of the {state} state is {metrics[name]}")
    return found


def _floats(results: Any) -> dict[str, float]:
    return {name: float(value) for result in results for name, value in result.items()}


def _timings(recorder: Recorder, steps: int, began: float) -> dict[str, float]:
    timings = {"fit_seconds": time.perf_counter() - began, "train_seconds": recorder.clock.seconds}
    if steps:
        timings["seconds_per_step"] = recorder.clock.seconds / steps
    return timings


def _by_divergence(error: Exception, module: L.LightningModule | None, recorder: Recorder) -> bool:
    """Whether an error is how a diverged model shows: linear algebra and quadrature refuse it before a loss is NaN."""
    if isinstance(error, ArithmeticError | torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        return True
    if module is None or recorder.start_size is None:
        return False
    size = largest_weight(module)
    return not size <= _BLOWN_UP * max(1.0, recorder.start_size)


def versions() -> dict[str, str]:
    """Of what determines the numbers of a run."""
    return {
        "lightning_lift": __version__,
        "torch": torch.__version__,
        "lightning": L.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


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


def _empty_folder(folder: Path) -> Path:
    """A new folder beside this one; those that a killed process left there are removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*"):
        _remove(left)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir()
    return temporary


def _files(record: RunRecord) -> list[tuple[str, str]]:
    return sorted(record.checkpoints.items())


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
