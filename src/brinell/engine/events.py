"""Events that the engine sends to a listener. The library never prints; a listener shows, logs or ignores them."""

from collections.abc import Callable
from typing import NamedTuple


class StageStarted(NamedTuple):
    """The event that a stage begins: its name, number of samples and largest number of forward passes per sample."""

    stage: str
    samples: int
    queries: int


class Progress(NamedTuple):
    """The progress of a stage: the numbers of finished samples, of broken samples and of their forward passes so far.

    `passes` also counts passes on samples under attack. `expected` is the number that the stage will make in all, as
    far as is known (0: unknown).
    """

    stage: str
    finished: int
    broken: int
    forwards: int
    passes: int = 0
    expected: int = 0


class Shrunk(NamedTuple):
    """The event that the device ran out of memory: each model call now has fewer rows, namely `block`."""

    block: int


class Phase(NamedTuple):
    """What the evaluation does while no attack advances, such as checking, capturing or compiling; empty at the end."""

    text: str


class Note(NamedTuple):
    """A message for the user."""

    text: str


Event = StageStarted | Progress | Shrunk | Phase | Note
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore every event."""
