"""Fill the grid of a slice: in parallel, resumable, bit for bit the same however it was interrupted."""

import hashlib
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_lift.commands._landscape_runs import Rows, load_convex_module, prepare
from lightning_lift.datamodules.batches import parts_of
from lightning_lift.diagnostics.landscape import Plane, grid_coordinates
from lightning_lift.diagnostics.weight_spaces import NetworkSpace, TrainedSpace
from lightning_lift.files import whole_file
from lightning_lift.modules.checkpoints import named_modules

SpaceName = Literal["network", "trained"]
_CHUNK = 16
_SAVE_SECONDS = 2.0


@dataclass(frozen=True)
class SliceJob:
    """All that decides the numbers of a slice; it travels to the worker processes.

    Attributes:
        space: ``network`` (weights under evaluation) or ``trained`` (what the run trains).
        checkpoint: gives the module whose loss it is.
        rows: what the loss is evaluated on.
        plane: of the slice.
        axes: of the grid, each (n,).
    """

    space: SpaceName
    checkpoint: Path
    rows: Rows
    plane: Plane
    axes: tuple[Tensor, Tensor]

    def open(self) -> NetworkSpace | TrainedSpace:
        """The space, on a freshly loaded module."""
        module = load_convex_module(self.checkpoint)
        prepare(module, self.rows.window)
        if self.space == "network":
            return NetworkSpace(module, self.rows.validation)
        return TrainedSpace(module, self.rows.validation, self.rows.calibration)

    @property
    def fingerprint(self) -> str:
        """Of every number in it."""
        digest = hashlib.sha256(self.space.encode())
        tensors = [self.plane.origin, self.plane.directions, *self.axes]
        for tensor in [*tensors, *parts_of(self.rows.validation).values(), *self.rows.calibration]:
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Slice:
    """A filled grid, first index along the first direction.

    Attributes:
        loss: shape (n, n), nats; NaN where it is not defined.
        lowest: the smallest constrained weight, shape (n, n); negative where the network need not be convex. NaN in
            the trained space, where weights are never negative.
    """

    loss: NDArray[np.float64]
    lowest: NDArray[np.float64]


def fill(job: SliceJob, path: Path, jobs: int, progress: Callable[[int], None]) -> Slice:
    """Evaluate what is missing of a slice.

    Every two seconds, and at the end, what is there is written to ``path``; a later call goes on from it.

    Args:
        job: the slice.
        path: of the partial results.
        jobs: processes, one thread each; 1 for none beside this one.
        progress: called with the number of points done since the last call.

    Raises:
        ValueError: the file holds another slice.
    """
    coordinates = grid_coordinates(job.axes)
    grid = _read(path, job.fingerprint, len(coordinates))
    missing = np.flatnonzero(~grid["done"])
    progress(len(coordinates) - len(missing))
    chunks = [missing[start : start + _CHUNK] for start in range(0, len(missing), _CHUNK)]
    saved = time.monotonic()
    try:
        for chunk, (loss, lowest) in _evaluated(job, chunks, coordinates, jobs):
            grid["loss"][chunk], grid["lowest"][chunk], grid["done"][chunk] = loss, lowest, True
            progress(len(chunk))
            if time.monotonic() - saved > _SAVE_SECONDS:
                _save(path, job.fingerprint, grid)
                saved = time.monotonic()
    finally:
        if chunks:
            _save(path, job.fingerprint, grid)
    shape = (len(job.axes[0]), len(job.axes[1]))
    return Slice(grid["loss"].reshape(shape), grid["lowest"].reshape(shape))


Chunk = NDArray[np.int64]
Values = tuple[NDArray[np.float64], NDArray[np.float64]]


def _evaluated(job: SliceJob, chunks: list[Chunk], coordinates: Tensor, jobs: int) -> Iterator[tuple[Chunk, Values]]:
    parts = [coordinates[torch.from_numpy(chunk)].numpy() for chunk in chunks]
    jobs = min(jobs, len(chunks))
    if jobs > 1:
        # Not forked: a process with torch's threads in it may hang in a fork.
        started = (job, named_modules(job.checkpoint))
        with ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, started) as pool:
            try:
                yield from zip(chunks, pool.map(_work, parts), strict=True)
            finally:
                pool.shutdown(cancel_futures=True)
    elif chunks:
        space, threads = job.open(), torch.get_num_threads()
        for chunk, part in zip(chunks, parts, strict=True):
            torch.set_num_threads(1)  # as in the workers, whose sums are then the same ones
            try:
                values = _values(space, job.plane, part)
            finally:
                torch.set_num_threads(threads)
            yield chunk, values


_worker: dict[str, tuple[NetworkSpace | TrainedSpace, Plane]] = {}


def _start_worker(job: SliceJob, modules: Sequence[str]) -> None:
    for name in modules:  # the process above has imported them, and read_checkpoint imports nothing
        importlib.import_module(name)
    torch.set_num_threads(1)
    _worker["space"] = (job.open(), job.plane)


def _work(coordinates: NDArray[np.float64]) -> Values:
    return _values(*_worker["space"], coordinates)


def _values(space: NetworkSpace | TrainedSpace, plane: Plane, coordinates: NDArray[np.float64]) -> Values:
    vectors = [plane.point(pair) for pair in torch.from_numpy(coordinates)]
    loss = [space.loss(vector) for vector in vectors]
    lowest = [space.lowest(vector) if isinstance(space, NetworkSpace) else np.nan for vector in vectors]
    return np.array(loss), np.array(lowest)


def _read(path: Path, fingerprint: str, size: int) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        return {"loss": np.full(size, np.nan), "lowest": np.full(size, np.nan), "done": np.zeros(size, dtype=bool)}
    try:
        with np.load(path) as file:
            known, grid = str(file["fingerprint"]), {name: file[name] for name in ("loss", "lowest", "done")}
    except Exception as error:  # NumPy has no error of its own: a damaged file gives one of half a dozen
        raise ValueError(f"{path} cannot be read ({type(error).__name__}): delete it to start anew.") from error
    if known != fingerprint:
        raise ValueError(
            f"{path} holds another slice (other checkpoints, rows or points): give another --output, or delete it."
        )
    return grid


def _save(path: Path, fingerprint: str, grid: dict[str, NDArray[Any]]) -> None:
    with whole_file(path) as temporary:
        np.savez(temporary, fingerprint=np.array(fingerprint), **grid)  # type: ignore[arg-type]
