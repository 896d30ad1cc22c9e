"""Show the progress of a training: a bar on a terminal, plain lines elsewhere, or nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from brinell.engine.events import Note
from brinell.evaluation.progress import on_standard_error
from brinell.train.curve import Epoch

EVERY = 10.0


class TrainingStarted(NamedTuple):
    """The event that a training of `epochs` epochs with `steps` steps each starts, or resumes after `done` steps."""

    epochs: int
    steps: int
    done: int


class StepFinished(NamedTuple):
    """The event that a step is finished: its number over all epochs, and the mean loss of this epoch so far."""

    step: int
    loss: float


class EpochFinished(NamedTuple):
    """The event that an epoch is finished; `best` says whether this epoch is the best so far."""

    row: Epoch
    best: bool


Event = TrainingStarted | StepFinished | EpochFinished | Note
Listener = Callable[[Event], None]


def sentence(row: Epoch, epochs: int, best: bool = False) -> str:
    """Return one line about an epoch: loss, validation accuracies and seconds."""
    parts = [f"epoch {row.epoch}/{epochs}: loss {row.loss:.3f}"]
    if row.robust_accuracy is not None:
        parts += [f"clean {row.clean_accuracy}", f"robust {row.robust_accuracy}"]
        parts += ["best so far"] * best
    return f"{', '.join(parts)}, {row.seconds:.0f} s"


def _line(event: EpochFinished | Note, epochs: int) -> str:
    return event.text if isinstance(event, Note) else sentence(event.row, epochs, event.best)


class TrainingBar:
    """A listener that shows a progress bar over all steps, and one line per finished epoch above the bar."""

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
        self.started = TrainingStarted(0, 1, 0)
        self.task = self.bar.add_task("train", total=None, loss="")

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrainingStarted):
            self.started = event
            self.bar.update(self.task, total=event.epochs * event.steps, completed=event.done)
        elif isinstance(event, StepFinished):
            epoch = min((event.step - 1) // self.started.steps + 1, self.started.epochs)
            name = f"epoch {epoch}/{self.started.epochs}"
            self.bar.update(self.task, completed=event.step, description=name, loss=f"{event.loss:.3f}")
        else:
            self.bar.console.print(_line(event, self.started.epochs), highlight=False, markup=False)


class TrainingLines:
    """A listener that prints one line per finished epoch and, between epochs, the step and loss every ten seconds."""

    def __init__(self, console: Console) -> None:
        self.console, self.started, self.last = console, TrainingStarted(0, 1, 0), time.perf_counter()

    def _print(self, text: str) -> None:
        self.last = time.perf_counter()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrainingStarted):
            self.started = event
            past = f", {event.done} steps made before" if event.done else ""
            self._print(f"{event.epochs} epochs of {event.steps} steps{past}")
        elif not isinstance(event, StepFinished):
            self._print(_line(event, self.started.epochs))
        elif time.perf_counter() - self.last > EVERY:
            self._print(f"step {event.step}/{self.started.epochs * self.started.steps}: loss {event.loss:.3f}")


@contextmanager
def listening(progress: "bool | Listener | None") -> Iterator[Listener]:
    """Yield the function that receives events: it prints to standard error, does nothing (False), or is `progress`."""
    if callable(progress) or progress is False:
        yield progress or (lambda event: None)
        return
    with on_standard_error(TrainingLines, TrainingBar) as listener:
        yield listener
