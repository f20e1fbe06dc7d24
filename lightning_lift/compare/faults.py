"""What ends a run without being its result: no memory, a full disk, a file that is missing, a killed worker."""

import errno
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_NO_MEMORY = "there is not enough memory: give fewer --jobs, smaller batches or a larger machine"
_NO_SPACE = "the disk is full: free some space, or give an --output on another one"
_NO_FILES = "too many files are open: raise the limit (ulimit -n) or give fewer --jobs"
_NO_DEVICE = "the accelerator cannot be used: see whether it is free and whole, or give --trainer.accelerator cpu"
_KILLED = "a process that loads data was ended, mostly for want of memory: give fewer --jobs or data.num_workers"
_NUMBERS = {
    _NO_MEMORY: (errno.ENOMEM,),
    _NO_SPACE: (errno.ENOSPC, errno.EDQUOT),
    _NO_FILES: (errno.EMFILE, errno.ENFILE),
}
# Libraries in C++ say these things in a RuntimeError, which by itself may be anything.
_TEXTS = {
    _NO_MEMORY: ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "alloc_failed"),
    _NO_SPACE: ("no space left on device", "disk quota exceeded", "pytorchstreamwriter failed"),
    _NO_FILES: ("too many open files",),
    _NO_DEVICE: ("busy or unavailable", "no cuda-capable device", "no nvidia driver", "uncorrectable ecc"),
    _KILLED: ("dataloader worker (pid",),
}
_SIGNALS = {
    signal.SIGKILL: "the system does so when memory runs out: give fewer --jobs",
    signal.SIGTERM: "by the user or a scheduler",
}
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ImportError)
_CRASH = "a crash inside a library, of which the directory's logs/ may tell more"


@dataclass(frozen=True)
class Lost:
    """A run that its surroundings ended: it leaves no record, and is done again on the next call.

    Attributes:
        reason: what happened, and what to do where that is known.
        everywhere: whether the other runs would meet the same, so that none should begin.
        repeatable: whether the run may bring this about itself (a crash, a file or a package that its arm names and
            that is missing): lost to it in two calls, it has failed.
    """

    reason: str
    everywhere: bool = False
    repeatable: bool = False


def lost_by(error: BaseException) -> Lost | None:
    """The fault of the surroundings behind an error; None where the error is the run's own.

    Any ``OSError`` and ``ImportError`` is one, raised as such or as the stated cause of another error; want of memory,
    of space or of an accelerator also where another error merely followed it, or where it stands in the text of a
    ``RuntimeError`` only.

    Args:
        error: that ended a run.
    """
    for one, stated in _chain(error):
        said = f"{type(one).__name__}: {one}"
        hint = _hint(one)
        if hint is not None:
            return Lost(f"{said} ({hint})", everywhere=hint == _NO_SPACE)
        if stated and isinstance(one, OSError | ImportError):
            return Lost(said, repeatable=isinstance(one, _MISSING))
    return None


def lost_by_exit(code: int | None) -> Lost:
    """Why a worker process is gone.

    Args:
        code: its exit status; the negative number of a signal; None where it is not known.
    """
    if code in (0, 128 + signal.SIGTERM):  # Lightning answers SIGTERM by leaving the process, with status 0
        code = -signal.SIGTERM
    if code is None or code >= 0:
        return Lost(f"its worker process ended with status {code}: {_CRASH}", repeatable=True)
    number = signal.Signals(-code)
    reason = f"its worker process was killed by {number.name}: {_SIGNALS.get(number, _CRASH)}"
    return Lost(reason, repeatable=number not in _SIGNALS)


def _chain(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """The error and what it came from, each with whether it was raised as such or stated as a cause."""
    one: BaseException | None = error
    stated, seen = True, set[int]()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one, stated
        if one.__cause__ is None:
            stated, one = False, None if one.__suppress_context__ else one.__context__
        else:
            one = one.__cause__


def _hint(error: BaseException) -> str | None:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return _NO_MEMORY
    if isinstance(error, OSError):
        return next((hint for hint, numbers in _NUMBERS.items() if error.errno in numbers), None)
    if isinstance(error, RuntimeError):
        text = str(error).lower()
        return next((hint for hint, parts in _TEXTS.items() if any(part in text for part in parts)), None)
    return None
