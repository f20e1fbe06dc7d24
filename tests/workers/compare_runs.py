"""Stand-ins for the runs of a comparison: numbers from the spec alone, and arms that behave as their labels say."""

import errno
import hashlib
import os
import signal
import time
from pathlib import Path

from lightning_lift.compare.records import RunRecord, RunSpec
from lightning_lift.files import whole_file

MODULE = "tests.workers.compare_runs"


def run(spec: RunSpec, directory: Path, checkpoint_every: int | None = None) -> RunRecord:
    """A run whose numbers follow from its spec.

    Arms called ``breaks`` raise, ``full`` find the disk full, ``starves`` have no memory, ``dies`` are killed each
    time, ``dies-once`` the first time, ``diverges`` diverge.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "calls.txt").open("a") as file:
        file.write(f"{spec.key} {os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")
    time.sleep(float(os.environ.get("FAKE_RUN_SECONDS", "0")))
    if spec.arm == "breaks":
        raise RuntimeError("no such luck")
    if spec.arm == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if spec.arm == "starves":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")
    marker = directory / f"{spec.key}.died"
    if spec.arm == "dies" or (spec.arm == "dies-once" and not marker.exists()):
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint = Path("checkpoints") / spec.key / "last.ckpt"
    with whole_file(directory / checkpoint) as temporary:
        temporary.write_text(spec.fingerprint)
    return record_of(spec, str(checkpoint))


def record_of(spec: RunSpec, checkpoint: str = "") -> RunRecord:
    """What ``run`` gives."""
    number = int(hashlib.sha256(f"{spec.arm} {spec.seed}".encode()).hexdigest()[:8], 16) / 2**32
    rate = spec.learning_rate or 1e-3
    value = number + abs(rate - 3e-3) * 100
    return RunRecord.of(
        spec,
        "diverged" if spec.arm == "diverges" else "finished",
        metrics={"best": {"val/nll": value, "test/nll": value + 0.01}, "last": {"val/nll": value + 0.1}},
        curves={"step": [1.0, float(spec.steps)], "seconds": [time.monotonic(), 2.0], "val/nll": [3.0, value]},
        timings={"seconds_per_step": 0.02 if spec.arm == "slow" else 0.01, "fit_seconds": time.monotonic()},
        start_hash=f"start-{spec.seed}",
        data_hash=f"data-{spec.seed}",
        checkpoints={"last": checkpoint} if checkpoint else {},
    )
