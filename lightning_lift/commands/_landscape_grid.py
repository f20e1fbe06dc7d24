"""Fills the grid of a slice: in parallel, resumable, bit for bit the same however it was interrupted."""

import hashlib
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_lift.commands._landscape_runs import Rows, load_convex_module, prepare
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
        tensors = [self.plane.origin, self.plane.directions, *self.axes, self.rows.validation, *self.rows.calibration]
        for tensor in tensors:
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
    """Evaluates what is missing of a slice.

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
    loss, lowest, done = _read(path, job.fingerprint, len(coordinates))
    progress(int(done.sum()))
    missing = np.flatnonzero(~done)
    chunks = [missing[start : start + _CHUNK] for start in range(0, len(missing), _CHUNK)]
    saved = time.monotonic()
    try:
        for chunk, values in _evaluated(job, chunks, coordinates, jobs):
            loss[chunk], lowest[chunk] = values
            done[chunk] = True
            progress(len(chunk))
            if time.monotonic() - saved > _SAVE_SECONDS:
                _save(path, job.fingerprint, loss, lowest, done)
                saved = time.monotonic()
    finally:
        if len(missing):
            _save(path, job.fingerprint, loss, lowest, done)
    shape = (len(job.axes[0]), len(job.axes[1]))
    return Slice(loss.reshape(shape), lowest.reshape(shape))


Chunk = NDArray[np.int64]
Values = tuple[NDArray[np.float64], NDArray[np.float64]]


def _evaluated(job: SliceJob, chunks: list[Chunk], coordinates: Tensor, jobs: int) -> Iterator[tuple[Chunk, Values]]:
    jobs = min(jobs, len(chunks))
    if jobs <= 1:
        space = job.open() if chunks else None
        for chunk in chunks:
            assert space is not None
            with _one_thread():
                values = _values(space, job.plane, coordinates[torch.from_numpy(chunk)])
            yield chunk, values
        return
    # Not forked: a process with torch's threads in it may hang in a fork.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker, (job, named_modules(job.checkpoint))) as pool:
        running = {pool.submit(_work, coordinates[torch.from_numpy(chunk)].numpy()): chunk for chunk in chunks}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            for future in running:
                future.cancel()


_worker: dict[str, tuple[NetworkSpace | TrainedSpace, Plane]] = {}


def _start_worker(job: SliceJob, modules: Sequence[str]) -> None:
    for name in modules:  # this process has imported them, and read_checkpoint imports nothing
        importlib.import_module(name)
    torch.set_num_threads(1)
    _worker["space"] = (job.open(), job.plane)


def _work(coordinates: NDArray[np.float64]) -> Values:
    space, plane = _worker["space"]
    return _values(space, plane, torch.from_numpy(coordinates))


def _values(space: NetworkSpace | TrainedSpace, plane: Plane, coordinates: Tensor) -> Values:
    loss, lowest = np.full(len(coordinates), np.nan), np.full(len(coordinates), np.nan)
    for index, pair in enumerate(coordinates):
        vector = plane.point(pair)
        loss[index] = space.loss(vector)
        if isinstance(space, NetworkSpace):
            lowest[index] = space.lowest(vector)
    return loss, lowest


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in the workers, whose sums are then the same ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _read(
    path: Path, fingerprint: str, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    if not path.is_file():
        return np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=bool)
    with np.load(path) as arrays:
        if str(arrays["fingerprint"]) != fingerprint:
            raise ValueError(
                f"{path} holds another slice (other checkpoints, rows or points): give another --output, or delete it."
            )
        return arrays["loss"], arrays["lowest"], arrays["done"]


def _save(
    path: Path,
    fingerprint: str,
    loss: NDArray[np.float64],
    lowest: NDArray[np.float64],
    done: NDArray[np.bool_],
) -> None:
    with whole_file(path) as temporary:
        np.savez(temporary, fingerprint=fingerprint, loss=loss, lowest=lowest, done=done)
