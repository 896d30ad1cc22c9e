"""Boards: one ranked list per data set, threat and radius; numbers at different radii are not comparable."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from brinell.leaderboard.records import CORRUPTIONS, CORRUPTIONS_3D, ranked
from brinell.leaderboard.site.entries import BoardEntry
from brinell.untrusted import parse_number

# How these threats are called in headings and in the navigation.
CORRUPTED = {
    CORRUPTIONS: ("common corruptions", "corruptions"),
    CORRUPTIONS_3D: ("3D common corruptions", "3D corruptions"),
}
# The boards of the public leaderboard in their order, with their radii.
STANDARD = {
    ("cifar10", "Linf"): "8/255",
    ("cifar10", "L2"): "0.5",
    ("cifar10", CORRUPTIONS): "",
    ("cifar100", "Linf"): "8/255",
    ("cifar100", CORRUPTIONS): "",
    ("imagenet", "Linf"): "4/255",
    ("imagenet", CORRUPTIONS): "",
    ("imagenet", CORRUPTIONS_3D): "",
}
# Some papers write 0.031 for 8/255; a larger difference is another radius.
SAME_RADIUS = 0.02
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "demo": "Demo data",
}


@dataclass(frozen=True)
class Board:
    """A ranked list of the entries of one data set, threat and radius, the most robust first."""

    dataset: str
    threat: str
    eps: str
    entries: tuple[BoardEntry, ...]

    @property
    def corruptions(self) -> bool:
        """Whether the inputs of this board are corrupted instead of attacked."""
        return self.threat in CORRUPTED

    @property
    def slug(self) -> str:
        """The file name of the board's page without its ending; it omits the radius of a standard board."""
        return re.sub(r"[^\w.+-]+", "-", f"{self.dataset}-{self.threat}" + self._other_eps("-eps-"))

    @property
    def data_name(self) -> str:
        """The name of the data set in its usual spelling, e.g. "CIFAR-10"."""
        return NAMES.get(self.dataset, self.dataset)

    @property
    def short(self) -> str:
        """The name of the board in the navigation."""
        return f"{self.data_name} {self.threat_name}" + self._other_eps(" ")

    @property
    def threat_name(self) -> str:
        """The name of the threat on the page, e.g. "Linf" or "3D corruptions"."""
        return CORRUPTED[self.threat][1] if self.corruptions else self.threat

    @property
    def title(self) -> str:
        """The name of the board in headings."""
        if self.corruptions:
            return f"{self.data_name}, {CORRUPTED[self.threat][0]}"
        return f"{self.data_name}, {self.threat}" + (f", eps = {self.eps}" if self.eps else "")

    @property
    def measure(self) -> str:
        """The name of the number by which the board is ranked."""
        return f"accuracy under {self.threat_name}" if self.corruptions else "best known robust accuracy"

    def _other_eps(self, prefix: str) -> str:
        standard = STANDARD.get((self.dataset, self.threat)) == self.eps
        return "" if standard or not self.eps else prefix + self.eps

    def ranks(self) -> list[int | None]:
        """Return the rank of every entry, 1 plus the number of ranked entries above it; None if it is not ranked."""
        bests = [e.record.best for e in self.entries if e.ranked]
        return [
            None if not e.ranked else 1 + sum(b > e.record.best for b in bests)  # type: ignore[operator]
            for e in self.entries
        ]


def boards(entries: Iterable[BoardEntry]) -> list[Board]:
    """Group the entries into boards by data set, threat and radius; standard boards first, other boards by name.

    A record of corruptions that also has an accuracy under 3D corruptions is on both boards.

    >>> from brinell.leaderboard.site.entries import collect
    >>> [(b.slug, len(b.entries)) for b in boards(collect())][:2]
    [('cifar10-Linf', 99), ('cifar10-L2', 21)]
    """
    groups: dict[tuple[str, str, str], list[BoardEntry]] = {}
    for e in (both for entry in entries for both in (entry, *_in_3d(entry))):
        groups.setdefault((e.record.dataset, e.record.threat, radius(e)), []).append(e)
    return [Board(*key, _sorted(groups[key])) for key in sorted(groups, key=_place)]


def _in_3d(entry: BoardEntry) -> list[BoardEntry]:
    r = entry.record
    if r.threat != CORRUPTIONS or r.corruptions_3d is None:
        return []
    record = replace(r, threat=CORRUPTIONS_3D, corruptions=None, corruptions_mce=None)
    return [replace(entry, record=record, repeated=True)]


def radius(entry: BoardEntry) -> str:
    """Return the radius of an entry's board as text; a radius within 2 % of the standard one counts as standard.

    Return "" for corruptions.

    >>> from brinell.leaderboard.records import Record
    >>> [radius(BoardEntry(Record("cifar10", "Linf", "m", eps=eps))) for eps in ("8/255", "0.031", "4/255", None)]
    ['8/255', '8/255', '4/255', 'unknown']
    """
    r = entry.record
    if r.threat in CORRUPTED:
        return ""
    usual, value = _number(STANDARD.get((r.dataset, r.threat))), _number(r.eps)
    if usual and value and abs(value - usual) <= SAME_RADIUS * usual:
        return STANDARD[r.dataset, r.threat]
    return (r.eps or "").strip() or "unknown"


def _number(text: str | None) -> float | None:
    try:
        return parse_number(text or "")
    except ValueError:
        return None


def _sorted(entries: list[BoardEntry]) -> tuple[BoardEntry, ...]:
    by_record = {id(e.record): e for e in entries}
    return tuple(by_record[id(r)] for r in ranked(e.record for e in entries))


def _place(key: tuple[str, str, str]) -> tuple[int, tuple[str, str, str]]:
    dataset, threat, eps = key
    known = list(STANDARD)
    usual = STANDARD.get((dataset, threat)) == eps
    return (known.index((dataset, threat)) if usual else len(known)), key
