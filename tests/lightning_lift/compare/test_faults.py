"""What is a fault of the surroundings, with the hint that names its cause, and what is the run's own."""

import errno

import pytest
import torch

from lightning_lift.compare.faults import lost_by, lost_by_exit


def raised(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    """The error as it comes out of an except clause."""
    try:
        if context is not None:
            try:
                raise context
            except type(context):
                raise error  # noqa: B904
        raise error from cause
    except type(error) as caught:
        return caught


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (FULL, "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (MemoryError(), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "not enough memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), "not enough"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 MB)"), "not enough memory"),
        (RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed."), "ended, mostly for want of memory"),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "the disk is full"),
        (RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"), "accelerator"),
        (raised(RuntimeError("unexpected pos 64 vs 0"), context=FULL), "the disk is full"),
        (raised(ValueError("the table cannot be read"), cause=FULL), "the disk is full"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "Broken pipe"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "table.csv"), "table.csv"),
        (raised(ValueError("give --data.path"), cause=FileNotFoundError("table.csv")), "table.csv"),
        (ModuleNotFoundError("No module named 'nflows'"), "nflows"),
    ],
)
def test_a_fault_of_the_surroundings_names_its_cause(error: Exception, hint: str) -> None:
    lost = lost_by(error)
    assert lost is not None and hint in lost.reason
    assert lost.everywhere is ("the disk is full" in lost.reason)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        ValueError("memory"),  # a text of another kind of error says nothing
        KeyError("loss"),
        ZeroDivisionError("no"),
        torch.linalg.LinAlgError("the input is singular"),
        raised(ValueError("nan"), context=FileNotFoundError("no cache yet")),  # it only followed it
    ],
)
def test_an_error_of_the_run_is_its_result(error: Exception) -> None:
    assert lost_by(error) is None


def test_what_a_run_may_bring_about_itself() -> None:
    own = [lost_by(ModuleNotFoundError("nflows")), lost_by(FileNotFoundError("table.csv")), lost_by_exit(-11)]
    others = [lost_by(FULL), lost_by(MemoryError()), lost_by(ConnectionResetError()), lost_by_exit(-9), lost_by_exit(0)]
    assert [lost is not None and lost.repeatable for lost in own + others] == [True] * 3 + [False] * 5


def test_how_a_worker_ended_is_told_by_its_exit_status() -> None:
    assert "killed by SIGKILL: the system does so when memory runs out" in lost_by_exit(-9).reason
    for code in (-15, 0, 143):  # Lightning leaves a process with 0 where it got the signal
        assert "killed by SIGTERM: by the user or a scheduler" in lost_by_exit(code).reason
    assert "killed by SIGSEGV: a crash inside a library" in lost_by_exit(-11).reason
    assert "ended with status 3" in lost_by_exit(3).reason and "status None" in lost_by_exit(None).reason
