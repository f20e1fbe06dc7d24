"""What a user sees while runs go on."""

import io

from rich.console import Console

from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.records import RunRecord, RunSpec


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spec(arm: str, seed: int = 0) -> RunSpec:
    return RunSpec(arm, "final", 1e-3, seed, 100, {})


def test_the_time_left_weighs_the_arms_by_their_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    fast, slow = spec("fast"), spec("slow")
    with RunProgress(Console(file=out, width=40), clock) as progress:
        progress.stage("final", [slow, fast], {"fast": 0.1, "slow": 0.9})
        assert progress.seconds_left() is None
        clock.now = 90.0
        progress.finished(slow, RunRecord.of(slow, "finished"))
        assert abs((progress.seconds_left() or 0.0) - 10.0) < 1e-9
        progress.finished(fast, RunRecord.of(fast, "finished"))
        assert progress.seconds_left() == 0.0
    assert out.getvalue().splitlines() == [
        "final 1/2 runs  final slow, lr 0.001, seed 0  about 10 s left",
        "final 2/2 runs  final fast, lr 0.001, seed 0  about 0 s left",
    ]


def test_outcomes_are_counted_and_what_was_lost_too() -> None:
    out = io.StringIO()
    runs = [spec("lift", seed) for seed in range(4)]
    with RunProgress(Console(file=out)) as progress:
        progress.stage("final", runs, {})
        for run, outcome in zip(runs, ("failed", "diverged", "finished"), strict=False):
            progress.finished(run, RunRecord.of(run, outcome))  # type: ignore[arg-type]
        progress.say("lift: taken [apart]")
        progress.finished(runs[3], Lost("killed"))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("final 1/4 runs, 1 failed  final lift, lr 0.001, seed 0")
    assert lines[3] == "lift: taken [apart]"
    assert lines[4].startswith("final 4/4 runs, 1 diverged, 1 failed, 1 lost  final lift, lr 0.001, seed 3")


def test_on_a_terminal_there_is_a_bar_with_the_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    runs = [spec("a"), spec("b")]
    console = Console(file=out, force_terminal=True, width=120)
    with RunProgress(console, clock) as progress:
        progress.stage("final", runs, {})
        clock.now = 3700.0
        progress.finished(runs[0], RunRecord.of(runs[0], "finished"))
    assert "final 1/2 runs" in out.getvalue() and "about 1 h 01 min left" in out.getvalue()
