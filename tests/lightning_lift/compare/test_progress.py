"""What a user sees while runs go on."""

import io

from rich.console import Console

from lightning_lift.compare.progress import RunProgress
from lightning_lift.compare.record import RunRecord, RunSpec
from lightning_lift.compare.tasks import Result, Task


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def task(arm: str, count: int = 1, steps: int = 100) -> Task:
    return Task(tuple(RunSpec(arm, "final", 1e-3, seed, steps, {}) for seed in range(count)), count > 1)


def done(one: Task, outcome: str = "finished") -> Result:
    return Result(tuple(RunRecord.of(spec, outcome) for spec in one.specs))  # type: ignore[arg-type]


def test_the_time_left_weighs_the_arms_by_their_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    fast, slow = task("fast"), task("slow")
    with RunProgress(Console(file=out, width=40), clock) as progress:
        progress.stage("final", [slow, fast], {"fast": 0.1, "slow": 0.9})
        assert progress.seconds_left() is None
        clock.now = 45.0
        progress.advanced(slow, 0.5)
        assert abs((progress.seconds_left() or 0.0) - 55.0) < 1e-9
        clock.now = 90.0
        progress.finished(slow, done(slow))
        assert abs((progress.seconds_left() or 0.0) - 10.0) < 1e-9
        progress.finished(fast, done(fast))
        assert progress.seconds_left() == 0.0
    assert out.getvalue().splitlines() == [
        "final 1/2 runs  final slow, lr 0.001, seed 0  about 10 s left",
        "final 2/2 runs  final fast, lr 0.001, seed 0  about 0 s left",
    ]


def test_outcomes_are_counted_and_notes_and_pieces_shown() -> None:
    out = io.StringIO()
    group = task("lift", 3)
    piece = Task(group.specs[:1])
    with RunProgress(Console(file=out)) as progress:
        progress.stage("final", [group], {})
        progress.finished(piece, Result((RunRecord.of(piece.specs[0], "failed"),), ("lift: taken [apart]",)))
        progress.finished(group, done(Task(group.specs[1:]), "diverged"))
    lines = out.getvalue().splitlines()
    assert lines[0] == "lift: taken [apart]" and lines[1].startswith(
        "final 1/3 runs, 1 failed  final lift, lr 0.001, seed 0"
    )
    assert lines[2].startswith("final 3/3 runs, 2 diverged, 1 failed  final lift, lr 0.001, 3 seeds from 0")


def test_a_log_hears_of_a_long_task_once_a_minute() -> None:
    clock, out = Clock(), io.StringIO()
    group = task("lift", 3)
    with RunProgress(Console(file=out), clock) as progress:
        progress.stage("final", [group], {})
        for second in range(1, 150):
            clock.now = float(second)
            progress.advanced(group, second / 150)
    assert out.getvalue().splitlines() == [
        "final 0/3 runs  41% of final lift, lr 0.001, 3 seeds from 0  about 1 min 29 s left",
        "final 0/3 runs  81% of final lift, lr 0.001, 3 seeds from 0  about 28 s left",
    ]


def test_on_a_terminal_there_is_a_bar_with_the_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    tasks = [task("a"), task("b")]
    console = Console(file=out, force_terminal=True, width=120)
    with RunProgress(console, clock) as progress:
        progress.stage("final", tasks, {})
        clock.now = 3700.0
        progress.finished(tasks[0], done(tasks[0]))
    assert "final 1/2 runs" in out.getvalue() and "about 1 h 01 min left" in out.getvalue()
