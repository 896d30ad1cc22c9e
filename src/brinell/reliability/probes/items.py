"""What a probe says: one thing that was looked at, and all of them together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEVELS = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Item:
    """One thing looked at: "ok", "warn" or "fail", the number, what it may be, a sentence, and what to do about it.

    >>> print(Item("zero gradients", "warn", 0.25, 0.0, "a quarter of the gradients is zero", "use a logit loss"))
    warn  zero gradients: a quarter of the gradients is zero; use a logit loss
    """

    name: str
    level: str
    value: float | None
    threshold: float | None
    sentence: str
    mitigation: str = ""

    def __str__(self) -> str:
        advice = f"; {self.mitigation}" if self.level != "ok" and self.mitigation else ""
        return f"{self.level:<4}  {self.name}: {self.sentence}{advice}"

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "name": self.name, "level": self.level, "value": self.value, "threshold": self.threshold,
            "sentence": self.sentence, "mitigation": self.mitigation,
        }  # fmt: skip


def judged(name: str, value: float, threshold: float, sentence: str, mitigation: str, fail: float = 0.5) -> Item:
    """Warn above the threshold, fail from `fail` on."""
    level = "ok" if value <= threshold else "fail" if value >= fail else "warn"
    return Item(name, level, value, threshold, sentence, mitigation)


@dataclass(frozen=True)
class Surface:
    """Margins on a grid around some samples: `along` the gradient (rows) and a random direction (columns), in radii."""

    along: tuple[float, ...]
    across: tuple[float, ...]
    margin: tuple[tuple[float, ...], ...]
    samples: int


@dataclass(frozen=True)
class Probes:
    """Everything that was looked at about one attack on one model, what it cost, and numbers for plots.

    `curve` pairs a radius with the accuracy that the attack leaves there.
    """

    attack: str
    samples: int
    items: tuple[Item, ...]
    forwards: int
    backwards: int
    curve: tuple[tuple[float, float], ...] = ()
    surface: Surface | None = None
    broken: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def level(self) -> str:
        """The worst level of any item."""
        return max((i.level for i in self.items), key=LEVELS.index, default="ok")

    @property
    def flagged(self) -> Mapping[str, Item]:
        """The items that object, by name."""
        return {i.name: i for i in self.items if i.level != "ok"}

    def __getitem__(self, name: str) -> Item:
        return {i.name: i for i in self.items}[name]

    def __str__(self) -> str:
        head = f"{self.attack} on {self.samples} samples, {self.broken} broken"
        cost = f"cost: {self.forwards:,} forwards, {self.backwards:,} backwards"
        return "\n".join([head, *map(str, self.items), cost, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        surface = None if self.surface is None else vars(self.surface)
        return {
            "attack": self.attack, "samples": self.samples, "broken": self.broken, "level": self.level,
            "items": [i.to_json() for i in self.items],
            "cost": {"forwards": self.forwards, "backwards": self.backwards},
            "curve": [list(p) for p in self.curve], "surface": surface, "notes": list(self.notes),
        }  # fmt: skip
