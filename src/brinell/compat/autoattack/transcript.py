"""What AutoAttack prints while it runs: one line per batch of samples, and the accuracy after each attack."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from brinell.engine.events import Event, Note, Progress, StageStarted


class Log:
    """Lines for the screen (if `verbose`) and for a file (if there is a path)."""

    def __init__(self, verbose: bool, path: str | None) -> None:
        self.verbose, self.path = verbose, path

    def __call__(self, line: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        if self.path is not None:
            with Path(self.path).open("a") as file:
                file.write(f"{line}\n")


class Transcript:
    """A listener that writes the lines of AutoAttack as the evaluation proceeds.

    `correct` of `n` samples are classified correctly. The accuracy after an attack is written as soon as it is known:
    at once if the first attack covers all correct samples, else at the end (`said` holds the lines written so far).
    """

    def __init__(self, log: Callable[[str], None], n: int, correct: int, bs: int) -> None:
        self.log, self.n, self.standing, self.bs = log, n, correct, max(bs, 1)
        self.begun, self.said, self.live = time.perf_counter(), set[str](), correct > 0
        self.samples, self.batches, self.written = 0, 0, (0, 0)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.live = self.live and event.samples == self.standing
            self.samples, self.batches, self.written = event.samples, 0, (0, 0)
        elif isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, Note):
            self.log(event.text)

    def _progress(self, event: Progress) -> None:
        over, total = event.finished == self.samples, -(-self.samples // self.bs)
        batch = total if over else event.finished // self.bs
        if batch > self.batches:
            self.batches = batch
            broken, finished = event.broken - self.written[0], event.finished - self.written[1]
            self.written = event.broken, event.finished
            self.log(f"{event.stage} - {batch}/{total} - {broken} out of {finished} successfully perturbed")
        if over and self.live:
            self.standing -= event.broken
            self.after(event.stage, self.standing / self.n)

    def after(self, stage: str, accuracy: float) -> None:
        """Write the accuracy after an attack, with the time so far."""
        line = f"robust accuracy after {stage.upper()}: {accuracy:.2%}"
        if line not in self.said:
            self.said.add(line)
            self.log(f"{line} (total time {time.perf_counter() - self.begun:.1f} s)")
