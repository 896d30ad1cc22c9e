"""Shows how a training goes: a bar on a terminal, plain lines elsewhere, or nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from brinell.evaluation.progress import on_standard_error
from brinell.train.curve import Epoch

EVERY = 10.0


@dataclass(frozen=True)
class Begun:
    """So many epochs of so many steps; `done` steps were made before."""

    epochs: int
    steps: int
    done: int


@dataclass(frozen=True)
class Stepped:
    """Steps made so far in all, and the mean loss of this epoch's."""

    step: int
    loss: float


@dataclass(frozen=True)
class Measured:
    """An epoch is over; `best`: it is the best so far."""

    row: Epoch
    best: bool


@dataclass(frozen=True)
class Said:
    """A sentence for the user."""

    text: str


Event = Begun | Stepped | Measured | Said
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignores everything."""


def sentence(row: Epoch, epochs: int, best: bool = False) -> str:
    """An epoch in one line."""
    parts = [f"epoch {row.epoch}/{epochs}: loss {row.loss:.3f}"]
    if row.robust_accuracy is not None:
        parts += [f"clean {row.clean_accuracy}", f"robust {row.robust_accuracy}"]
        parts += ["the best so far"] * best
    return f"{', '.join(parts)}, {row.seconds:.0f} s"


class Terminal:
    """A rich bar over all steps, and a line per epoch above it."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self.begun = Begun(0, 1, 0)
        self.task = self.bar.add_task("train", total=None, loss="")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Begun):
            self.begun = event
            self.bar.update(self.task, total=event.epochs * event.steps, completed=event.done)
        elif isinstance(event, Stepped):
            epoch = min((event.step - 1) // self.begun.steps + 1, self.begun.epochs)
            name = f"epoch {epoch}/{self.begun.epochs}"
            self.bar.update(self.task, completed=event.step, description=name, loss=f"{event.loss:.3f}")
        else:
            text = sentence(event.row, self.begun.epochs, event.best) if isinstance(event, Measured) else event.text
            self.bar.console.print(text, highlight=False, markup=False)


class Lines:
    """A plain line per epoch and every few seconds between."""

    def __init__(self, console: Console) -> None:
        self.console, self.begun, self.last = console, Begun(0, 1, 0), time.perf_counter()

    def _say(self, text: str) -> None:
        self.last = time.perf_counter()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Begun):
            self.begun = event
            past = f", {event.done} made before" if event.done else ""
            self._say(f"epochs: {event.epochs}, steps in each: {event.steps}{past}")
        elif isinstance(event, Measured):
            self._say(sentence(event.row, self.begun.epochs, event.best))
        elif isinstance(event, Said):
            self._say(event.text)
        elif time.perf_counter() - self.last > EVERY:
            self._say(f"step {event.step}/{self.begun.epochs * self.begun.steps}: loss {event.loss:.3f}")


@contextmanager
def listening(progress: "bool | Listener | None") -> Iterator[Listener]:
    """A listener: None and True show on standard error, False is silent, a function is told every event."""
    if callable(progress):
        yield progress
        return
    if progress is False:
        yield silent
        return
    with on_standard_error(Lines, Terminal) as listener:
        yield listener
