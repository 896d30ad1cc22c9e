"""A leaderboard on disk: an overview, a page for every board with its data, a page for every Run."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from brinell.errors import InputError
from brinell.leaderboard.site.boards import Board, boards
from brinell.leaderboard.site.charts import board_charts, progress_chart
from brinell.leaderboard.site.columns import STATUSES, BoardRow, Column, breakable, columns, series, title
from brinell.leaderboard.site.entries import Place, collect
from brinell.leaderboard.site.run_page import PACKAGE, page_of, summary
from brinell.leaderboard.site.sanitise import plain
from brinell.report.page import asset, markup, own_version, page, render
from brinell.results.format.files import write_atomic
from brinell.results.run import Run

# Lists the files of a site, so that building it again removes what is left over and nothing else.
INDEX = "leaderboard.json"
HOME = "index.html"
TAGLINE = "robustness leaderboard"
SOURCE = "https://robustbench.github.io"
TAKEN = ("content", "charts", "columns")  # places on the page, which no model may be called
FILTERS = (("architecture", "Architecture"), ("venue", "Venue"), ("extra", "Extra data"), ("status", "Status"))


@dataclass(frozen=True)
class Site:
    """What was built: where, how many records, and how many of each board."""

    path: Path
    boards: dict[str, int]
    runs: int

    def __str__(self) -> str:
        total = sum(self.boards.values())
        return f"{self.path / HOME}: {total:,} records on {len(self.boards)} boards, {self.runs} with a Run"


def build(
    runs: Iterable[Place] = (),
    *,
    records: Place | None = None,
    out: Place,
    with_published: bool = True,
    report: Callable[[Run], str] | None = None,
) -> Site:
    """Write a static site from Runs, a folder of records and the published records; an older site is replaced.

    `report` makes a whole page of a Run; it is put beside the Run's own short page, which links to it.

    Cost: no model is asked; every Run is read and hashed once.

    >>> import tempfile
    >>> from brinell.leaderboard.records import Record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Record("toys", "L2", "Mine", eps="1", clean=90.0, autoattack=50.0).write(f"{folder}/records")
    ...     build(records=f"{folder}/records", out=f"{folder}/site", with_published=False).boards
    {'toys-L2-eps-1': 1}
    """
    folder = Path(out)
    _refuse_others(folder)
    found = boards(collect(runs, records, with_published))
    if not found:
        raise InputError(
            expected="something to show", got="no Run and no record", remedy="Give Runs, or keep the published records."
        )
    twice = [slug for slug, count in Counter(b.slug.lower() for b in found).items() if count > 1]
    if twice:
        raise InputError(
            expected="data sets and threats with names of their own", got=f"two boards {twice[0]}", remedy="Rename one."
        )
    files, told = _files(found, report)
    _write(folder, files)
    return Site(folder, {b.slug: len(b.entries) for b in found}, told)


def rows(board: Board) -> list[BoardRow]:
    """The entries of a board in their order, each with its rank, an id of its own and its page."""
    taken, made = Counter(TAKEN), []
    for entry, rank in zip(board.entries, board.ranks(), strict=True):
        name = "-".join(entry.record.name.split())
        taken[name] += 1
        own = name if taken[name] == 1 else f"{name}.{taken[name]}"
        where = page_of(entry.record.key, entry.record.run_hash) if entry.run is not None else None
        made.append(BoardRow(board, entry, rank, own, where))
    return made


def _files(found: list[Board], report: Callable[[Run], str] | None) -> tuple[dict[str, str], int]:
    """Every file of the site by name, and the number of Runs with a page."""
    files, told = {HOME: _home(found)}, 0
    for board in found:
        of_board = rows(board)
        files[f"{board.slug}.html"] = _board(board, of_board, found)
        files[f"{board.slug}.json"] = _data(of_board)
        for row in of_board:
            if row.entry.run is not None and row.page is not None:
                whole = row.page.removesuffix(".html") + "-report.html" if report is not None else None
                body = summary(row, row.entry.run, whole and PurePosixPath(whole).name)
                files[row.page] = _page(title(row.record), body, board.title)
                if whole is not None and report is not None:
                    files[whole] = report(row.entry.run)
                told += 1
    return files, told


def _page(name: str, body: str, above: str = "") -> str:
    whole = " – ".join(part for part in (name, above, "Brinell leaderboard") if part)
    foot = render("footer.html", package=PACKAGE, source=SOURCE, version=own_version())
    return page(
        whole,
        body,
        tagline=TAGLINE,
        footer=foot,
        style=asset("leaderboard.css", PACKAGE),
        script=asset("leaderboard.js", PACKAGE),
    )


def _home(found: list[Board]) -> str:
    tops = {b.slug: next((e.record for e in b.entries if e.ranked), None) for b in found}
    counts = Counter(e.record.status for b in found for e in b.entries)
    body = render(
        "home.html", package=PACKAGE, boards=found, tops=tops, name=lambda r: markup(breakable(title(r))),
        statuses=STATUSES, counts=counts, picture=markup(progress_chart(found)),
    )  # fmt: skip
    return _page("All boards", body)


def _board(board: Board, of_board: list[BoardRow], every: list[Board]) -> str:
    shown = columns(of_board)
    body = render(
        "board.html", package=PACKAGE, board=board, boards=every, columns=shown, statuses=STATUSES, filters=FILTERS,
        rows=[(row, [_cell(c, row) for c in shown], _facets(row)) for row in of_board],
        charts=[markup(p) for p in board_charts(board)], heading=lambda c: markup(breakable(c.head)),
    )  # fmt: skip
    return _page(board.title, body)


def _cell(column: Column, row: BoardRow) -> tuple[Column, str | None, Any]:
    """The column, what the cell sorts by, and its markup."""
    value = column.value(row)
    key = None if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
    return column, key, markup(column.shown(row))


def _facets(row: BoardRow) -> dict[str, str]:
    """What a row can be filtered by."""
    r = row.record
    return {
        "architecture": plain(r.architecture) or "unknown",
        "venue": series(r) or "unknown",
        "extra": "unknown" if r.extra_data is None else "yes" if r.extra_data else "no",
        "status": " ".join(row.statuses),
    }


def _data(of_board: list[BoardRow]) -> str:
    # The folder a Run was in is nobody's business; its page is.
    told = [{"rank": row.rank, **replace(row.record, run=row.page).to_json()} for row in of_board]
    return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _refuse_others(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(expected="a folder for the site", got=f"{folder}, a file", remedy="Choose another.")
    if folder.exists() and any(folder.iterdir()) and not (folder / INDEX).is_file():
        raise InputError(
            expected="an empty folder or an older site",
            got=f"{folder}, which holds other files",
            remedy="Choose another.",
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    left_over = _listed(folder) - set(files)
    for name in sorted({*files}):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, files[name].encode())
    for name in left_over:
        (folder / name).unlink(missing_ok=True)
    write_atomic(folder / INDEX, (json.dumps({"files": sorted(files)}, indent=1) + "\n").encode())


def _listed(folder: Path) -> set[str]:
    """The files of an older site; names that lead out of the folder are none."""
    try:
        names = json.loads((folder / INDEX).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    inside = (PurePosixPath(os.fspath(name)) for name in names if isinstance(name, str))
    return {str(p) for p in inside if not p.is_absolute() and ".." not in p.parts}
