"""Show the engine's events: a progress bar on a terminal, plain lines elsewhere, or nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from brinell.engine.calls import Calls
from brinell.engine.events import Event, Listener, Note, Phase, Progress, Shrunk, StageStarted, silent

# Seconds between two lines of progress, and between two events of a stage in which no sample has finished.
EVERY = 10.0
PAUSE = 0.5
# After this many seconds without an answer of the model, a line says which call it is.
UNANSWERED = 60.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class StageProgress:
    """The progress of a stage, which it sends to a listener: when samples finish, and every `PAUSE` seconds."""

    def __init__(self, stage: str, samples: int, budget: int, listener: Listener) -> None:
        self.stage, self.samples, self.budget, self.listener = stage, samples, budget, listener
        self.finished = self.broken = self.forwards = self.passes = self.begun = 0
        self.sent = time.perf_counter()

    def watch(self, passes: int, begun: int) -> None:
        """Count passes that the engine has made; `begun` samples are finished or under attack."""
        self.passes, self.begun = self.passes + passes, begun
        if self.listener is not silent and time.perf_counter() - self.sent >= PAUSE:
            self._send()

    def finish(self, samples: int, broken: int, forwards: int) -> None:
        """Count samples that have finished, and their forward passes."""
        self.finished, self.broken = self.finished + samples, self.broken + broken
        self.forwards += forwards
        self._send()

    def expected(self) -> int:
        """Return how many passes the stage will make in all.

        Method: most samples that still withstand the attack will do so to the end, since most broken samples break
        early. Samples that have not begun are like those that have.
        """
        under_attack = self.begun - self.finished
        ahead = max(under_attack * self.budget - max(self.passes - self.forwards, 0), 0)
        each = (self.passes + ahead) / max(self.begun, 1)
        return round(self.passes + ahead + max(self.samples - self.begun, 0) * each)

    def _send(self) -> None:
        self.sent = time.perf_counter()
        passes = max(self.passes, self.forwards)
        expected = passes if self.finished == self.samples else max(self.expected(), passes)
        self.listener(Progress(self.stage, self.finished, self.broken, self.forwards, passes, expected))


class RemainingTime:
    """An estimate of the remaining time of a stage, from the passes made so far."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, samples: int) -> None:
        """Begin a stage with this many samples."""
        self.begun, self.samples = time.perf_counter(), samples

    def remaining(self, event: Progress) -> str:
        """Return the remaining time as text; without passes, unfinished samples take as long as finished ones."""
        done, total = (event.passes, event.expected) if event.expected else (event.finished, self.samples)
        seconds = (time.perf_counter() - self.begun) / max(done, 1) * (total - done)
        return f"about {_clock(seconds)} left"


class ProgressBar:
    """A display with one progress bar per stage, drawn by the library rich."""

    def __init__(self, console: Console) -> None:
        self.bar = Bar(
            TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[finished]}"),
            TextColumn("{task.fields[broken]} broken"), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            console=console,
        )  # fmt: skip
        self.estimate, self.task = RemainingTime(), TaskID(0)
        self.tasks: dict[str, TaskID] = {}
        self.start_up: TaskID | None = None

    def _show(self, event: StageStarted) -> None:
        """Show the bar of a stage that begins; reset it if the stage began before, on an earlier chunk of samples."""
        fields: dict[str, Any] = {"finished": f"0/{event.samples}", "broken": 0, "left": ""}
        if event.stage in self.tasks:
            self.bar.reset(self.tasks[event.stage], total=event.samples, **fields)
        else:
            self.tasks[event.stage] = self.bar.add_task(event.stage, total=event.samples, **fields)
        self.task = self.tasks[event.stage]

    def _phase(self, text: str) -> None:
        """Show what start-up does, in a line without a bar below the stages; none if the text is empty."""
        if self.start_up is None:
            self.start_up = self.bar.add_task(text, total=None, finished="", broken=0, left="")
        self.bar.update(self.start_up, description=text, left="", visible=bool(text))

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.estimate.start(event.samples)
            self._show(event)
        elif isinstance(event, Progress):
            samples = self.estimate.samples
            left = self.estimate.remaining(event) if event.finished < samples else ""
            done, total = (event.passes, event.expected) if event.expected else (event.finished, samples)
            self.bar.update(
                self.task, completed=done, total=total, finished=f"{event.finished}/{samples}", broken=event.broken,
                left=left,
            )  # fmt: skip
        elif isinstance(event, Phase):
            self._phase(event.text)
        else:
            self.bar.console.print(_sentence(event), highlight=False, markup=False)


class ProgressLines:
    """A display of plain lines: at the start and end of each stage, and every few seconds in between."""

    def __init__(self, console: Console) -> None:
        self.console, self.estimate, self.last = console, RemainingTime(), 0.0

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.estimate.start(event.samples)
            self.last = time.perf_counter()
            self._print(f"{event.stage}: {event.samples} samples, at most {event.queries} passes each")
        elif isinstance(event, Progress):
            over = event.finished == self.estimate.samples
            if over or time.perf_counter() - self.last > EVERY:
                self.last = time.perf_counter()
                left, total = "done" if over else self.estimate.remaining(event), self.estimate.samples
                passes = f", {event.passes:,} passes" if event.passes else ""
                self._print(f"{event.stage}: {event.finished}/{total} finished, {event.broken} broken{passes}, {left}")
        elif not isinstance(event, Phase):
            self._print(_sentence(event))


def _sentence(event: Event) -> str:
    if isinstance(event, Shrunk):
        return f"out of memory: continuing with {event.block} rows at a time"
    return event.text if isinstance(event, Note) else str(event)


@contextmanager
def watched(calls: Calls, listener: Listener, every: float = UNANSWERED) -> Iterator[None]:
    """Send a Note, once per call, if the model has not answered for `every` seconds: which call, on which samples."""
    if listener is silent:
        yield
        return
    over, named = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(every / 4):
            begun = calls.begun
            if begun is not None and calls.count > named[0] and time.monotonic() - begun >= every:
                named[0] = calls.count
                waiting = f"the model has not answered for {every:.0f} s, in {calls}"
                listener(Note(f"{waiting}; Ctrl-C leaves a Run that can be resumed"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def on_standard_error(lines: Callable[[Console], Any], terminal: Callable[[Console], Any]) -> Iterator[Any]:
    """Yield a display on standard error: `terminal(console)` on a terminal, `lines(console)` for files and pipes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(console)
        return
    shown = terminal(console)
    with shown.bar:
        yield shown


def say(line: str, progress: bool | None) -> None:
    """Print what is done now, one line on standard error; nothing if `progress` is False."""
    if progress is not False:
        Console(stderr=True).print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def show_progress(progress: bool | Listener | None) -> Iterator[Listener]:
    """Yield a listener that shows the engine's events on standard error, or is silent if `progress` is False.

    A function as `progress` is that listener itself.
    """
    if callable(progress):
        yield progress
        return
    if progress is False:
        yield silent
        return
    with on_standard_error(ProgressLines, ProgressBar) as listener:
        yield listener
