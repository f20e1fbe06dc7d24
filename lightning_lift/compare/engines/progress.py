"""How far a comparison is: a bar on a terminal, elsewhere a line a run."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lightning_lift.compare.faults import Lost
from lightning_lift.compare.plan import cost_of
from lightning_lift.compare.records import RunRecord, RunSpec


class RunProgress:
    """Listen to an engine and show runs done, outcomes, and the time left.

    The time left counts optimizer steps, weighted by the arms' measured seconds per step, so that an arm that is ten
    times as slow does not mislead it.

    Args:
        console: where to write; None for standard error.
        clock: seconds, from any start.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        # The outcome of each run is printed where there is no terminal to draw a bar on.
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._row: TaskID | None = None
        self._cost: Callable[[RunSpec], float] = cost_of({})
        self._total = self._spent = 0.0
        self._outcomes: Counter[str] = Counter()
        self._runs = self._done = 0
        self._stage = ""
        self._began = 0.0

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, specs: Sequence[RunSpec], seconds_per_step: Mapping[str, float]) -> None:
        """Begin a new bar.

        Args:
            name: of the stage.
            specs: all that are to be done.
            seconds_per_step: by arm, where measured.
        """
        self._cost = cost_of(seconds_per_step)
        self._total, self._spent = sum(map(self._cost, specs)), 0.0
        self._outcomes = Counter()
        self._runs, self._done = len(specs), 0
        self._stage, self._began = name, self._clock()
        self._row = self._bar.add_task(name, total=self._total, runs="", left="")
        self._show()

    def finished(self, spec: RunSpec, result: RunRecord | Lost) -> None:
        """A run is done, or given up."""
        self._outcomes["lost" if isinstance(result, Lost) else result.outcome] += 1
        self._done += 1
        self._spent += self._cost(spec)
        self._show()
        if not self._console.is_terminal:
            self.say(f"{self._runs_text()}  {spec.label}{self._left()}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """An estimate, by what has been done in the time so far; None before anything is."""
        left = self._total - self._spent
        return (self._clock() - self._began) * left / self._spent if self._spent > 0 else None

    def _show(self) -> None:
        if self._row is not None:
            self._bar.update(self._row, completed=self._spent, runs=self._runs_text(), left=self._left())

    def _runs_text(self) -> str:
        bad = "".join(
            f", {self._outcomes[name]} {name}" for name in ("diverged", "failed", "lost") if self._outcomes[name]
        )
        return f"{self._stage} {self._done}/{self._runs} runs{bad}"

    def _left(self) -> str:
        left = self.seconds_left()
        if left is None:
            return ""
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        small = f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
        text = f"{hours} h {minutes:02d} min" if hours else small
        return f"  about {text} left"
