"""The result of probing one attack on one model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brinell.finding import Finding, Level, worst


def graded(name: str, value: float, threshold: float, message: str, remedy: str, fail: float = 0.5) -> Finding:
    """Return a finding of level "ok" if `value` is at most `threshold`, "fail" if it is at least `fail`, else "warn".

    >>> graded("more steps", 0.2, 0.05, "2 samples lost", "Use restarts.").level
    'warn'
    """
    level: Level = "ok" if value <= threshold else "fail" if value >= fail else "warn"
    return Finding(name, level, message, remedy, value=value, threshold=threshold)


def _stored(finding: Finding) -> dict[str, Any]:
    """Return a finding as a dict with the keys that manifests use for probes; `Finding.from_json` reads it."""
    return {
        "name": finding.name, "level": finding.level, "value": finding.value, "threshold": finding.threshold,
        "sentence": finding.message, "mitigation": finding.remedy,
    }  # fmt: skip


@dataclass(frozen=True)
class Surface:
    """Mean margins on a grid: steps along the gradient (rows) and in a random direction (columns), in units of eps."""

    along: tuple[float, ...]
    across: tuple[float, ...]
    margin: tuple[tuple[float, ...], ...]
    samples: int


@dataclass(frozen=True)
class Probes:
    """All findings about one attack on one model, the cost of the probes, and data for plots.

    `curve` pairs each radius with the accuracy under attack at that radius.
    """

    attack: str
    samples: int
    items: tuple[Finding, ...]
    forwards: int
    backwards: int
    curve: tuple[tuple[float, float], ...] = ()
    surface: Surface | None = None
    broken: int = 0
    notes: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """The worst level of all findings."""
        return worst(self.items)

    @property
    def flagged(self) -> Mapping[str, Finding]:
        """The findings whose level is not "ok", by name."""
        return {i.name: i for i in self.items if i.level != "ok"}

    def __getitem__(self, name: str) -> Finding:
        return {i.name: i for i in self.items}[name]

    def __str__(self) -> str:
        head = f"{self.attack} on {self.samples} samples, {self.broken} broken"
        cost = f"cost: {self.forwards:,} forwards, {self.backwards:,} backwards"
        return "\n".join([head, *map(str, self.items), cost, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for scripts and manifests."""
        surface = None if self.surface is None else vars(self.surface)
        return {
            "attack": self.attack, "samples": self.samples, "broken": self.broken, "level": self.level,
            "items": [_stored(i) for i in self.items],
            "cost": {"forwards": self.forwards, "backwards": self.backwards},
            "curve": [list(p) for p in self.curve], "surface": surface, "notes": list(self.notes),
        }  # fmt: skip
