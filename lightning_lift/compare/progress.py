"""How far a comparison is: a bar on a terminal; elsewhere a line a task, and one a minute within long ones."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lightning_lift.compare.tasks import Result, Task, task_cost

_SILENCE_SECONDS = 60.0


class RunProgress:
    """Listens to an engine and shows runs done, outcomes, and the time left.

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
        # The outcome of each task is printed where there is no terminal to draw a bar on.
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._row: TaskID | None = None
        self._costs: dict[Task, float] = {}
        self._shares: dict[Task, float] = {}
        self._outcomes: Counter[str] = Counter()
        self._runs = self._done = 0
        self._stage = ""
        self._began = self._spoke = 0.0

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, tasks: Sequence[Task], seconds_per_step: Mapping[str, float]) -> None:
        """Begins a new bar.

        Args:
            name: of the stage.
            tasks: all that are to be done.
            seconds_per_step: by arm, where measured.
        """
        cost = task_cost(seconds_per_step)
        self._costs = {task: cost(task) for task in tasks}
        self._shares = dict.fromkeys(tasks, 0.0)
        self._outcomes = Counter()
        self._runs, self._done = sum(len(task.specs) for task in tasks), 0
        self._stage, self._began, self._spoke = name, self._clock(), self._clock()
        self._row = self._bar.add_task(name, total=sum(self._costs.values()), runs="", left="")
        self._show()

    def started(self, task: Task) -> None:
        """A worker begins a task."""

    def advanced(self, task: Task, share: float) -> None:
        """This share of a task is done."""
        if task in self._shares:  # the pieces of a group that was taken apart are not
            self._shares[task] = max(self._shares[task], share)
        self._show()
        if share < 1.0 and self._clock() - self._spoke > _SILENCE_SECONDS:
            self._line(f"{share:.0%} of {task.label}")

    def finished(self, task: Task, result: Result) -> None:
        """A task is done."""
        self._outcomes.update(record.outcome for record in result.records)
        self._done += len(result.records)
        self.advanced(task, 1.0)
        for note in result.notes:
            self.say(note)
        if result.records:
            self._line(task.label)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """An estimate, by what has been done in the time so far; None before anything is."""
        done, total = self._cost_done(), sum(self._costs.values())
        return (self._clock() - self._began) * (total - done) / done if done > 0 else None

    def _cost_done(self) -> float:
        return sum(self._costs[task] * share for task, share in self._shares.items())

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._spoke = self._clock()
            self.say(f"{self._runs_text()}  {text}{self._left()}")

    def _show(self) -> None:
        if self._row is not None:
            self._bar.update(self._row, completed=self._cost_done(), runs=self._runs_text(), left=self._left())

    def _runs_text(self) -> str:
        bad = "".join(f", {self._outcomes[name]} {name}" for name in ("diverged", "failed") if self._outcomes[name])
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
