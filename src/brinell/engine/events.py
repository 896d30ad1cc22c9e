"""What the engine tells whoever listens. The library never prints; a listener shows, logs or ignores."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StageStarted:
    """A stage begins on so many samples, each worth at most so many model calls."""

    stage: str
    samples: int
    queries: int


@dataclass(frozen=True)
class Progress:
    """Samples finished and broken so far in this stage, and model calls per row made so far."""

    stage: str
    finished: int
    broken: int
    forwards: int


@dataclass(frozen=True)
class Shrunk:
    """The device ran out of memory; the model is now asked about fewer rows at a time."""

    block: int


@dataclass(frozen=True)
class Note:
    """A sentence for the user."""

    text: str


Event = StageStarted | Progress | Shrunk | Note
Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignores everything."""
