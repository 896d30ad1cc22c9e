"""Events that the engine sends to a listener. The library never prints; a listener shows, logs or ignores them."""

from collections.abc import Callable
from typing import NamedTuple


class StageStarted(NamedTuple):
    """A stage begins: its name, its number of samples, and the largest number of forward passes per sample."""

    stage: str
    samples: int
    queries: int


class Progress(NamedTuple):
    """The samples finished and broken so far in this stage, and the forward passes so far."""

    stage: str
    finished: int
    broken: int
    forwards: int


class Shrunk(NamedTuple):
    """The device ran out of memory; each model call now has this many rows."""

    block: int


class Note(NamedTuple):
    """A message for the user."""

    text: str


Event = StageStarted | Progress | Shrunk | Note
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore every event."""
