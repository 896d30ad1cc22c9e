"""The columns of a board: explanation, cell markup and sort key."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from brinell.leaderboard.records import Record
from brinell.leaderboard.site.boards import Board
from brinell.leaderboard.site.entries import BoardEntry
from brinell.leaderboard.site.sanitise import anchor, footnote, plain
from brinell.leaderboard.tables import without_date
from brinell.report.charts.svg import element, escape
from brinell.results.format.manifest import EVADE

NOTHING = "–"
# Plans whose name starts like this are not mentioned in the column AutoAttack.
USUAL_PLAN = "autoattack"
# Over-estimation in points above which a cell is marked; seeds never differ that much.
MUCH = 5.0
# Columns that only Runs fill.
OF_RUNS = ("interval", "n", "cost", "run")
UNKNOWN = element("span", "unknown", class_="quiet")
STATUSES = {
    "published": "copied from the public leaderboard RobustBench, not run again",
    "unverified": "measured by the submitter of the Run, not checked by others",
    "verified": "checked by others, who attacked the same model again",
    "external": "the best known accuracy comes from attacks outside the leaderboard",
}


@dataclass(frozen=True)
class BoardRow:
    """A row in the table of a board; `page` is the path of the page about its Run, None without a Run."""

    board: Board
    entry: BoardEntry
    rank: int | None
    id: str
    page: str | None = None

    @property
    def record(self) -> Record:
        """The record of the entry."""
        return self.entry.record

    @property
    def statuses(self) -> list[str]:
        """The status of the record, and "external" if the best known accuracy is not from the leaderboard's attacks."""
        return [self.record.status, *(["external"] if self.entry.external else [])]


Sortable = int | float | str | None


@dataclass(frozen=True)
class Column:
    """A column: `value(row)` returns the sort key of a row (None sorts last), and `cell(row, key)` its markup.

    `unknown` is the markup if the key is None. With `up`, the first click sorts ascending. Unless `always`, the column
    is left out if no row has a key.
    """

    key: str
    head: str
    about: str
    value: Callable[[BoardRow], Sortable]
    cell: Callable[[BoardRow, Any], str] | None = None
    number: bool = True
    up: bool = False
    always: bool = True
    unknown: str = NOTHING

    def shown(self, row: BoardRow) -> str:
        """Return the markup of the column's cell in a row."""
        value = self.value(row)
        if value is None:
            return self.unknown
        if self.cell is not None:
            return self.cell(row, value)
        return escape(f"{value:.2f}" if isinstance(value, float) else str(value))


def columns(rows: list[BoardRow]) -> list[Column]:
    """Return the columns to show: those marked `always`, and those for which some row has a value."""
    corruptions = any(r.board.corruptions for r in rows)
    shown = [
        c
        for c in COLUMNS
        if (c.always and not (corruptions and c.key in ("autoattack", "best")))
        or any(c.value(r) is not None for r in rows if c.key != "best" or r.entry.external)
    ]
    # On a board of published records few rows have them: then they come last.
    rare = [c for c in shown if c.key in OF_RUNS and sum(c.value(r) is not None for r in rows) < len(rows) / 2]
    return [*(c for c in shown if c not in rare), *rare]


def venue(record: Record) -> str:
    """Return the venue without markup; empty if unknown."""
    text = plain(record.venue)
    return "" if text == "N/A" else text


def series(record: Record) -> str:
    """Return the venue without its date, such as "ICLR", for filters.

    >>> [series(Record("d", "t", "m", venue=v)) for v in ("arXiv, Mar 2021", "ICLR 2020", "TMLR, Aug 2024", "N/A")]
    ['arXiv', 'ICLR', 'TMLR', '']
    """
    return without_date(venue(record))


def title(record: Record) -> str:
    """Return the title of the model's paper, or else the name of the model."""
    return record.title or record.name


def flag_text(flag: bool | None) -> str | None:
    """Return "yes" or "no"; None if unknown."""
    return None if flag is None else "yes" if flag else "no"


def _tag(text: str, explanation: str, kind: str = "") -> str:
    return element("span", escape(text), class_=f"tag {kind}".strip(), title=explanation)


def breakable(text: str) -> str:
    """Return a name as markup that may wrap between its parts, but not inside a word.

    >>> breakable("Wang2023Better_WRN-70-16"), breakable("AutoAttack")
    ('Wang2023<wbr>Better_<wbr>WRN-70-16', 'Auto<wbr>Attack')
    """
    return "<wbr>".join(map(escape, re.split(r"(?<=_)(?!$)|(?<=\d{4})(?=[A-Z])|(?<=[a-z])(?=[A-Z])", text)))


def _method(row: BoardRow, name: str) -> str:
    r = row.record
    lines = [element("span", anchor(breakable(name), r.link), class_="model")]
    if r.authors:
        lines.append(element("span", escape(plain(r.authors)), class_="authors"))
    if r.title:
        lines.append(element("span", breakable(r.name), class_="id"))
    return "".join(lines) + _tags(row) + _note(r)


def _tags(row: BoardRow) -> str:
    r, tags = row.record, []
    if r.eps and row.board.eps and r.eps != row.board.eps:
        tags.append(_tag(f"eps {r.eps}", "the radius as its authors write it"))
    if r.non_commercial:
        tags.append(_tag("non-commercial", f"licence {r.licence}: the weights must not be used commercially", "warn"))
    if r.forward_passes > 1:
        tags.append(_tag(f"{r.forward_passes} passes", "forward passes for one prediction"))
    if row.entry.run is not None and row.entry.run.identity.criterion == EVADE:
        tags.append(_tag("detector", "an adversarial example must also evade the model's detector"))
    tags += [_tag(plain(text), "a violated restriction of the leaderboard", "warn") for text in r.restrictions]
    return element("span", *tags, class_="tags") if tags else ""


def _note(record: Record) -> str:
    text = footnote(record.footnote)
    return element("span", text, class_="footnote") if text else ""


def _attacked(row: BoardRow, value: float) -> str:
    plan = row.record.plan
    if plan is None or plan.startswith(USUAL_PLAN):
        return f"{value:.2f}"
    return f"{value:.2f}" + _tag(f"plan {plan}", "attacked by this plan, not by AutoAttack", "warn")


def _best(row: BoardRow, value: float) -> str:
    mark = _tag("external", STATUSES["external"]) if row.entry.external else ""
    return element("strong", f"{value:.2f}") + mark


def _over(row: BoardRow, points: float) -> str:
    text = f"{points:+.2f}".replace("-", "−") if points else "0.00"
    return element("span", text, class_="much" if points >= MUCH else None if points else "quiet")


def _unreliable(row: BoardRow, word: str) -> str:
    if not row.record.unreliable:
        return element("span", word, class_="quiet")
    reasons = " ".join(row.record.reasons) or "AutoAttack's own checks raised a warning"
    if row.record.verdict == "upper bound":  # no sign of trouble
        return element("span", "upper bound", class_="badge small upper-bound", title=reasons)
    return element("span", word, class_="badge small warn", title=reasons)


def _interval(row: BoardRow, width: float) -> str:
    return "[{:.2f}, {:.2f}]".format(*row.record.interval or ())


def _width(row: BoardRow) -> Sortable:
    return None if row.record.interval is None else row.record.interval[1] - row.record.interval[0]


def _passes(row: BoardRow) -> Sortable:
    return None if row.record.cost is None else row.record.cost.forwards + row.record.cost.backwards


def _cost(row: BoardRow, passes: int) -> str:
    cost: Any = row.record.cost
    each = element("span", f"{passes / cost.samples:,.0f} per sample", class_="tag") if cost.samples else ""
    return element("span", f"{passes:,}", title=f"{cost.forwards:,} forwards, {cost.backwards:,} backwards") + each


def _status(row: BoardRow, status: str) -> str:
    kind = {"published": "info", "unverified": "warn", "verified": "ok"}[status]
    return element("span", status, class_=f"badge small {kind}", title=STATUSES[status])


def _licence(row: BoardRow, text: str) -> str:
    return element("span", escape(text), class_="much" if row.record.non_commercial else "quiet")


def _run(row: BoardRow, page: str) -> str:
    return element("a", "Run", element("span", escape(f" of {title(row.record)}"), class_="hidden"), href=page)


COLUMNS = (
    Column("rank", "Rank", "By the best known robust accuracy, or by the accuracy under corruptions. Equal numbers "
           "share a rank. Runs whose verdict is not “reliable” have none.", attrgetter("rank"), up=True),
    Column("method", "Method", "The paper of the model, its authors, the name of the model in the zoo, and notes.",
           lambda r: title(r.record), _method,
           number=False, up=True),
    Column("clean", "Clean", "Accuracy without any attack, in per cent.", attrgetter("record.clean")),
    Column("autoattack", "AutoAttack", "Robust accuracy under AutoAttack, in per cent. Another plan of a Run is "
           "named.", attrgetter("record.autoattack"), _attacked),
    Column("corruptions", "Robust", "Accuracy under common corruptions, the mean over kinds and severities.",
           attrgetter("record.corruptions"), lambda r, value: element("strong", f"{value:.2f}"), always=False),
    Column("corruptions_mce", "mCE", "Mean corruption error relative to AlexNet, in per cent: smaller is better.",
           attrgetter("record.corruptions_mce"), always=False, up=True),
    Column("corruptions_3d", "3DCC", "Accuracy under 3D common corruptions.", attrgetter("record.corruptions_3d"),
           always=False),
    Column("corruptions_mce_3d", "3DCC mCE", "Mean corruption error under 3D common corruptions: smaller is better.",
           attrgetter("record.corruptions_mce_3d"), always=False, up=True),
    Column("best", "Best known", "The lowest robust accuracy that any attack has reached; “external” if this attack is "
           "not AutoAttack. Boards are sorted by it.", attrgetter("record.best"), _best),
    Column("interval", "95 % interval",
           "Wilson interval of the robust accuracy that a Run measured (under AutoAttack or its plan, not the best "
           "known one); sorted by its width.", _width, _interval, always=False, up=True),
    Column("n", "n", "Samples of the Run.", attrgetter("record.n"), lambda r, n: f"{n:,}", always=False),
    Column("certified", "Certified", "The share of samples that are proved to be robust: a lower bound on the robust "
           "accuracy, in per cent.", attrgetter("record.certified"), always=False),
    Column("reported", "Reported", "Robust accuracy as its authors report it.", attrgetter("record.reported"),
           always=False),
    Column("over", "Over-estimation", "Reported minus best known, in points: what the authors' evaluation missed.",
           attrgetter("record.overestimation"), _over, always=False),
    Column("unreliable", "Potentially unreliable",
           "Whether the evaluation may be misleading. The public leaderboard flags published records; Runs have a "
           "verdict.",
           lambda r: flag_text(r.record.unreliable), _unreliable, number=False, always=False, unknown=UNKNOWN),
    Column("extra", "Extra data", "Whether the model was trained on more data than the data set's own.",
           lambda r: flag_text(r.record.extra_data),
           lambda r, word: element("span", word, class_=None if r.record.extra_data else "quiet"),
           number=False, always=False, unknown=UNKNOWN),
    Column("architecture", "Architecture", "The network.", lambda r: plain(r.record.architecture) or None,
           number=False, up=True, always=False),
    Column("venue", "Venue", "Where the paper appeared.", lambda r: venue(r.record) or None, number=False, up=True,
           always=False),
    Column("year", "Year", "The last four-digit number of the venue.", attrgetter("record.year"), always=False),
    Column("licence", "Licence", "The licence of the weights, if they are public.",
           lambda r: plain(r.record.licence) or None, _licence, number=False, up=True, always=False),
    Column("cost", "Passes", "Forward and backward passes of a Run, all together.", _passes, _cost, always=False),
    Column("status", "Status", "Who stands behind the numbers.", attrgetter("record.status"), _status,
           number=False, up=True),
    Column("run", "Run", "The details of the Run.", attrgetter("page"), _run, number=False, up=True, always=False),
)  # fmt: skip
