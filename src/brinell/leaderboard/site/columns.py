"""The columns of a board: meaning, cell markup and sort key."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from brinell.leaderboard.records import Record
from brinell.leaderboard.site.boards import Board
from brinell.leaderboard.site.entries import BoardEntry
from brinell.leaderboard.site.sanitise import anchor, footnote, plain
from brinell.report.charts.svg import element, escape
from brinell.results.format.manifest import EVADE

NOTHING = "–"
# Plans whose name starts like this are not mentioned in the column AutoAttack.
USUAL_PLAN = "autoattack"
# Over-estimation in points above which a cell is marked; seeds never differ that much.
MUCH = 5.0
YES, NO, UNKNOWN = "yes", "no", "unknown"
STATUSES = {
    "published": "copied from the public leaderboard RobustBench, not run again",
    "unverified": "measured by the submitter of the Run, not checked by others",
    "verified": "checked by others, who attacked the same model again",
    "external": "the best known accuracy comes from attacks outside the leaderboard",
}


@dataclass(frozen=True)
class BoardRow:
    """An entry in the table of a board; `page` is the page of its Run."""

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
        """The status of the record, and "external" if the best known accuracy is external."""
        return [self.record.status, *(["external"] if self.entry.external else [])]


Sortable = int | float | str | None


@dataclass(frozen=True)
class Column:
    """A column: `value` is the sort key (None sorts last); `cell` is the markup, by default of the value."""

    key: str
    head: str
    about: str
    value: Callable[[BoardRow], Sortable]
    cell: Callable[[BoardRow], str] | None = None
    number: bool = True
    up: bool = False  # whether the first click sorts ascending
    always: bool = True  # else left out if no row has a value

    def shown(self, row: BoardRow) -> str:
        """Return the cell as markup."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value(row)
        return NOTHING if value is None else escape(f"{value:.2f}" if isinstance(value, float) else str(value))


def columns(rows: list[BoardRow]) -> list[Column]:
    """Return the permanent columns, and those for which a row has a value."""
    corruptions = any(r.board.corruptions for r in rows)
    return [
        c
        for c in COLUMNS
        if (c.always and not (corruptions and c.key in ("autoattack", "best")))
        or any(c.value(r) is not None for r in rows if c.key != "best" or r.entry.external)
    ]


def venue(record: Record) -> str:
    """Return the venue without markup; empty if unknown."""
    text = plain(record.venue)
    return "" if text == "N/A" else text


def series(record: Record) -> str:
    """Return the venue without its date, for filters.

    >>> [series(Record("d", "t", "m", venue=v)) for v in ("arXiv, Mar 2021", "ICLR 2020", "TMLR, Aug 2024", "N/A")]
    ['arXiv', 'ICLR', 'TMLR', '']
    """
    return re.sub(r"[,\s]*(?:\b[A-Z][a-z]{2}\.?\s+)?\b(?:19|20)\d\d\b.*$", "", venue(record))


def title(record: Record) -> str:
    """Return the displayed name of the model."""
    return record.title or record.name


def _percent(field: str) -> Callable[[BoardRow], Sortable]:
    def value(row: BoardRow) -> Sortable:
        found: float | None = getattr(row.record, field)
        return found

    return value


def _word(flag: bool | None) -> str:
    return UNKNOWN if flag is None else YES if flag else NO


def _tag(text: str, told: str | None = None, kind: str = "") -> str:
    return element("span", escape(text), class_=f"tag {kind}".strip(), title=told)


def breakable(text: str) -> str:
    """Return a name as markup that breaks between its parts, not inside a word.

    >>> breakable("Wang2023Better_WRN-70-16"), breakable("AutoAttack")
    ('Wang2023<wbr>Better_<wbr>WRN-70-16', 'Auto<wbr>Attack')
    """
    return "<wbr>".join(map(escape, re.split(r"(?<=_)(?!$)|(?<=\d{4})(?=[A-Z])|(?<=[a-z])(?=[A-Z])", text)))


def _method(row: BoardRow) -> str:
    r = row.record
    name = anchor(breakable(title(r)), r.link)
    below = [element("span", escape(r.name), class_="id")] if r.title else []
    if r.authors:
        below.append(element("span", escape(plain(r.authors)), class_="authors"))
    return element("span", name, class_="model") + "".join(below) + _tags(row) + _note(r)


def _tags(row: BoardRow) -> str:
    r, tags = row.record, []
    if r.eps and row.board.eps and r.eps != row.board.eps:
        tags.append(_tag(f"eps {r.eps}", "the radius as its authors write it"))
    if r.forward_passes > 1:
        tags.append(_tag(f"{r.forward_passes} passes", "forward passes for one prediction"))
    if row.entry.run is not None and row.entry.run.identity.criterion == EVADE:
        tags.append(_tag("detector", "an adversarial example must also evade the model's detector"))
    tags += [_tag(plain(text), "a violated restriction of the leaderboard", "warn") for text in r.restrictions]
    return element("span", *tags, class_="tags") if tags else ""


def _note(record: Record) -> str:
    text = footnote(record.footnote)
    return element("details", element("summary", "Note"), element("p", text), class_="footnote") if text else ""


def _attacked(row: BoardRow) -> str:
    r = row.record
    if r.autoattack is None:
        return NOTHING
    other = r.plan is not None and not r.plan.startswith(USUAL_PLAN)
    plan = _tag(f"plan {r.plan}", "attacked by this plan, not by AutoAttack", "warn") if other else ""
    return f"{r.autoattack:.2f}{plan}"


def _corrupted(row: BoardRow) -> str:
    value = row.record.corruptions
    return NOTHING if value is None else element("strong", f"{value:.2f}")


def _best(row: BoardRow) -> str:
    if row.record.best is None:
        return NOTHING
    mark = _tag("external", STATUSES["external"]) if row.entry.external else ""
    return element("strong", f"{row.record.best:.2f}") + mark


def _over(row: BoardRow) -> str:
    points = row.record.overestimation
    if points is None:
        return NOTHING
    text = f"{points:+.2f}".replace("-", "−") if points else "0.00"
    return element("span", text, class_="much" if points >= MUCH else None if points else "quiet")


def _unreliable(row: BoardRow) -> str:
    r = row.record
    word = _word(r.unreliable)
    if not r.unreliable:
        return element("span", word, class_="quiet")
    told = " ".join(r.reasons) or "AutoAttack's own checks raised a warning"
    return element("span", word, class_="badge small warn", title=told)


def _interval(row: BoardRow) -> str:
    return NOTHING if row.record.interval is None else "[{:.2f}, {:.2f}]".format(*row.record.interval)


def _width(row: BoardRow) -> Sortable:
    return None if row.record.interval is None else row.record.interval[1] - row.record.interval[0]


def _passes(row: BoardRow) -> Sortable:
    return None if row.record.cost is None else row.record.cost.forwards + row.record.cost.backwards


def _cost(row: BoardRow) -> str:
    cost = row.record.cost
    if cost is None:
        return NOTHING
    both, told = cost.forwards + cost.backwards, f"{cost.forwards:,} forwards, {cost.backwards:,} backwards"
    each = element("span", f"{both / cost.samples:,.0f} per sample", class_="tag") if cost.samples else ""
    return element("span", f"{both:,}", title=told) + each


def _status(row: BoardRow) -> str:
    kinds = {"published": "info", "unverified": "warn", "verified": "ok"}
    status = row.record.status
    return element("span", status, class_=f"badge small {kinds[status]}", title=STATUSES[status])


def _run(row: BoardRow) -> str:
    if row.page is None:
        return NOTHING
    return element("a", "Run", element("span", escape(f" of {title(row.record)}"), class_="hidden"), href=row.page)


def _text(row: BoardRow, text: str) -> str:
    return escape(text) if text else NOTHING


def _count(row: BoardRow) -> str:
    return NOTHING if row.record.n is None else f"{row.record.n:,}"


COLUMNS = (
    Column(
        "rank", "Rank",
        "By the best known robust accuracy (under corruptions: by the accuracy under them). Equal numbers share a "
        "rank; Runs whose verdict is not “reliable” have none.",
        lambda r: r.rank, up=True,
    ),
    Column("method", "Method", "The model, with its paper and notes.", lambda r: title(r.record), _method,
           number=False, up=True),
    Column("clean", "Clean", "Accuracy without any attack, in per cent.", _percent("clean")),
    Column("autoattack", "AutoAttack", "Robust accuracy under AutoAttack, in per cent; where a Run used another plan, "
           "it is named.", _percent("autoattack"), _attacked),
    Column("corruptions", "Robust", "Accuracy under common corruptions, the mean over kinds and severities.",
           _percent("corruptions"), _corrupted, always=False),
    Column("corruptions_mce", "mCE", "Mean corruption error relative to AlexNet, in per cent: smaller is better.",
           _percent("corruptions_mce"), always=False, up=True),
    Column("corruptions_3d", "3DCC", "Accuracy under 3D common corruptions.", _percent("corruptions_3d"), always=False),
    Column("corruptions_mce_3d", "3DCC mCE", "Mean corruption error under 3D common corruptions: smaller is better.",
           _percent("corruptions_mce_3d"), always=False, up=True),
    Column("best", "Best known", "The lowest robust accuracy any attack has reached: “external” where it was found by "
           "other attacks than AutoAttack. Boards are sorted by it.", lambda r: r.record.best, _best),
    Column("reported", "Reported", "Robust accuracy as its authors report it.", _percent("reported")),
    Column("over", "Over-estimation", "Reported minus best known, in points: what the authors' evaluation missed.",
           lambda r: r.record.overestimation, _over),
    Column("unreliable", "Potentially unreliable",
           "Whether the evaluation may be misleading: published records as the public leaderboard flags them, Runs by "
           "their verdict.",
           lambda r: None if r.record.unreliable is None else _word(r.record.unreliable), _unreliable, number=False,
           always=False),
    Column("extra", "Extra data", "Whether the model was trained on more data than the data set's own.",
           lambda r: None if r.record.extra_data is None else _word(r.record.extra_data),
           lambda r: element("span", _word(r.record.extra_data), class_=None if r.record.extra_data else "quiet"),
           number=False),
    Column("architecture", "Architecture", "The network.", lambda r: plain(r.record.architecture) or None,
           lambda r: _text(r, plain(r.record.architecture)), number=False, up=True),
    Column("venue", "Venue", "Where the paper appeared.", lambda r: venue(r.record) or None,
           lambda r: _text(r, venue(r.record)), number=False, up=True),
    Column("year", "Year", "The last four-digit number of the venue.", lambda r: r.record.year),
    Column("interval", "95 % interval",
           "Wilson interval of the robust accuracy that a Run measured (under AutoAttack or its plan, not the best "
           "known one); sorted by its width.", _width, _interval, always=False, up=True),
    Column("n", "n", "Samples of the Run.", lambda r: r.record.n, _count, always=False),
    Column("cost", "Passes", "Forward and backward passes of a Run, all together.", _passes, _cost, always=False),
    Column("status", "Status", "Who stands behind the numbers.", lambda r: r.record.status, _status, number=False,
           up=True),
    Column("run", "Run", "What was measured, in detail.", lambda r: r.page, _run, number=False, up=True, always=False),
)  # fmt: skip
