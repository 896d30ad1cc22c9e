"""Build the site: an overview, a page and a data file per board, and a page per Run."""

import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from brinell.errors import InputError
from brinell.leaderboard.site.boards import Board, boards
from brinell.leaderboard.site.charts import board_charts, progress_chart
from brinell.leaderboard.site.columns import STATUSES, BoardRow, Column, breakable, columns, flag_text, series, title
from brinell.leaderboard.site.entries import Place, collect
from brinell.leaderboard.site.sanitise import plain
from brinell.report.charts.chart import chart
from brinell.report.figures import stages
from brinell.report.page import asset, markup, own_version, page, render
from brinell.results.run import Run
from brinell.storage import is_temporary, make_folder, write_atomic, writing
from brinell.untrusted import read_json

PACKAGE = "brinell.leaderboard.site"  # its folder `files` holds the templates
# Lists the files of a site, so that the next build removes only its own old files.
INDEX = "leaderboard.json"
HOME = "index.html"
TAGLINE = "robustness leaderboard"
SOURCE = "https://robustbench.github.io"
TAKEN = ("content", "charts", "columns")  # ids on the page, which no model may have
FILTERS = (("architecture", "Architecture"), ("venue", "Venue"), ("extra", "Extra data"), ("status", "Status"))


@dataclass(frozen=True)
class Site:
    """The result of a build: the folder, the number of records per board, and the numbers of Runs and of records."""

    path: Path
    boards: dict[str, int]
    runs: int
    records: int

    def __str__(self) -> str:
        return f"{self.path / HOME}: {self.records:,} records on {len(self.boards)} boards, {self.runs} with a Run"


def build(
    runs: Iterable[Place] = (),
    *,
    records: Place | None = None,
    out: Place,
    with_published: bool = True,
    report: Callable[[Run], str] | None = None,
) -> Site:
    """Build a static site in the folder `out` from Runs, a folder of records and the published records.

    A site that an earlier build wrote to the folder is replaced. `report` maps a Run to its full report as HTML; the
    Run's page links to this report.

    Cost: no model is evaluated; every Run is read and hashed once.

    >>> import tempfile
    >>> from brinell.leaderboard.records import Record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Record("toys", "L2", "Mine", eps="1", clean=90.0, autoattack=50.0).write(f"{folder}/records")
    ...     build(records=f"{folder}/records", out=f"{folder}/site", with_published=False).boards
    {'toys-L2-eps-1': 1}
    """
    folder = Path(out)
    _check_folder(folder)
    found = _with_own_pages(boards(collect(runs, records, with_published)))
    if not found:
        remedy = "Pass folders of Runs or records, or leave out --no-published."
        raise InputError(expected="at least one Run or record", got="none", remedy=remedy)
    files, count = _files(found, report)
    _write(folder, files)
    total = sum(not e.repeated for b in found for e in b.entries)
    return Site(folder, {b.slug: len(b.entries) for b in found}, count, total)


def _with_own_pages(found: list[Board]) -> list[Board]:
    """Return the boards; of boards whose pages would have the same name all but the first are left out, with a warning.

    The standard boards are first: a record with a similar name cannot replace them.
    """
    kept: dict[str, Board] = {}
    for board in found:
        if kept.setdefault(board.slug.lower(), board) is not board:
            names = ", ".join(e.record.key for e in board.entries[:3])
            warnings.warn(
                f"The board of {names} is left out: its page {board.slug}.html belongs to another board. Change the "
                "data set or the threat in these records.",
                stacklevel=3,
            )
    return list(kept.values())


def rows(board: Board) -> list[BoardRow]:
    """Return the entries of a board in order, each with its rank, a unique HTML id and the path of its Run's page."""
    taken, made = Counter(TAKEN), []
    for entry, rank in zip(board.entries, board.ranks(), strict=True):
        name = "-".join(entry.record.name.split())
        taken[name] += 1
        row_id = name if taken[name] == 1 else f"{name}.{taken[name]}"
        page_path = page_of(entry.record.key, entry.record.run_hash) if entry.run is not None else None
        made.append(BoardRow(board, entry, rank, row_id, page_path))
    return made


def page_of(row_key: str, run_hash: str | None) -> str:
    """Return the path of the page of a Run in the site.

    >>> page_of("cifar10/Linf/Mine", "0123456789abcdef")
    'runs/cifar10-Linf-Mine-01234567.html'
    """
    name = re.sub(r"[^\w.+-]+", "-", f"{row_key}-{(run_hash or 'unhashed')[:8]}")
    return f"runs/{name}.html"


def _files(found: list[Board], report: Callable[[Run], str] | None) -> tuple[dict[str, str], int]:
    """Return the text of every file of the site by path, and the number of Runs with a page."""
    files, count = {HOME: _home(found)}, 0
    for board in found:
        of_board = rows(board)
        files[f"{board.slug}.html"] = _board(board, of_board, found)
        files[f"{board.slug}.json"] = _data(of_board)
        for row in of_board:
            if row.entry.run is not None and row.page is not None:
                full = None if report is None else row.page.removesuffix(".html") + "-report.html"
                body = _run_summary(row, row.entry.run, full and PurePosixPath(full).name)
                files[row.page] = _page(title(row.record), body, board.title)
                if full is not None and report is not None:
                    files[full] = report(row.entry.run)
                count += 1
    return files, count


def _page(name: str, body: str, above: str = "") -> str:
    whole = " – ".join(part for part in (name, above, "Brinell leaderboard") if part)
    foot = render("footer.html", package=PACKAGE, source=SOURCE, version=own_version())
    style, script = (asset(f"leaderboard.{kind}", PACKAGE) for kind in ("css", "js"))
    return page(whole, body, tagline=TAGLINE, footer=foot, style=style, script=script)


def _home(found: list[Board]) -> str:
    tops = {b.slug: next((e.record for e in b.entries if e.ranked), None) for b in found}
    counts = Counter(e.record.status for b in found for e in b.entries if not e.repeated)
    body = render(
        "home.html", package=PACKAGE, boards=found, tops=tops, name=lambda r: markup(breakable(title(r))),
        statuses=STATUSES, counts=counts, picture=markup(progress_chart(found)),
    )  # fmt: skip
    return _page("All boards", body)


def _board(board: Board, of_board: list[BoardRow], every: list[Board]) -> str:
    shown = columns(of_board)
    filters = [(key, name) for key, name in FILTERS if key in {c.key for c in shown}]
    body = render(
        "board.html", package=PACKAGE, board=board, boards=every, columns=shown, statuses=STATUSES, filters=filters,
        rows=[(row, [_cell(c, row) for c in shown], _facets(row)) for row in of_board],
        charts=[markup(p) for p in board_charts(board)], heading=lambda c: markup(breakable(c.head)),
    )  # fmt: skip
    return _page(board.title, body)


def _cell(column: Column, row: BoardRow) -> tuple[Column, str | None, Any]:
    """Return the column, the sort key of its cell in a row, and the markup of this cell."""
    value = column.value(row)
    key = None if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
    return column, key, markup(column.shown(row))


def _facets(row: BoardRow) -> dict[str, str]:
    r = row.record
    return {
        "architecture": plain(r.architecture) or "unknown",
        "venue": series(r) or "unknown",
        "extra": flag_text(r.extra_data) or "unknown",
        "status": " ".join(row.statuses),
    }


def _data(of_board: list[BoardRow]) -> str:
    # Publish the page of a Run, not its local folder.
    data = [{"rank": row.rank, **replace(row.record, run=row.page).to_json()} for row in of_board]
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _run_summary(row: BoardRow, run: Run, report: str | None) -> str:
    after = [(s.attack, p, s.attacked, s.broken) for s, p in run.steps()]
    return render(
        "run.html", package=PACKAGE, row=row, record=row.record, name=title(row.record), run=run,
        robust=run.robust_accuracy, clean=run.clean_accuracy, verdict=run.verdict, stages=after,
        picture=markup(chart(stages(run))), facts=_run_facts(row, run), sentence=run.sentence(), report=report,
    )  # fmt: skip


def _run_facts(row: BoardRow, run: Run) -> dict[str, str]:
    """Return the settings and the cost of the Run by name, with the versions and the device that were used."""
    identity, cost, where = run.identity, run.cost, run.environment
    made = {"brinell": where.brinell, "torch": where.torch, "device": where.device}
    facts = {
        "Threat": f"{identity.threat.norm}, eps = {row.record.eps}",
        "Data": f"{identity.data.name}, n = {run.clean_accuracy.n:,}",
        "Plan": f"{identity.plan.name}: {identity.plan.description or 'no description'}",
        "Seed": str(identity.seed),
        "Precision": identity.precision,
        "Cost": f"{cost.forwards:,} forwards and {cost.backwards:,} backwards, {cost.seconds:,.1f} s of compute",
        "Made": ", ".join([str(row.record.date or "")[:10], *(f"{k} {v}" for k, v in made.items() if v)]).strip(", "),
        "Model's fingerprint": row.record.fingerprint,
        "Hash of the Run": row.record.run_hash,
    }
    return {name: value for name, value in facts.items() if value}


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(expected="a folder for the site", got=f"the file {folder}", remedy="Pass a folder with --out.")
    if folder.exists() and not all(map(is_temporary, folder.iterdir())) and not (folder / INDEX).is_file():
        got = f"{folder}, which holds other files"
        raise InputError(
            expected="a new or empty folder, or a folder with a site of an earlier build",
            got=got,
            remedy="Pass another folder with --out.",
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of the site, and remove files and temporary files of earlier builds.

    The list is written first, with all old and new files: a killed build leaves a folder that the next one completes.
    """
    make_folder(folder)
    before = _listed(folder)
    _refuse_links(folder, {*files, *before})
    _write_list(folder, {*files, *before})
    for name in sorted(files):
        make_folder((folder / name).parent)
        write_atomic(folder / name, files[name].encode())
    with writing(folder):
        for name in before - set(files):
            (folder / name).unlink(missing_ok=True)
        for parent in {(folder / name).parent for name in (*files, *before)}:
            for leftover in filter(is_temporary, parent.iterdir() if parent.is_dir() else ()):
                leftover.unlink(missing_ok=True)
    _write_list(folder, files)


def _write_list(folder: Path, names: Iterable[str]) -> None:
    write_atomic(folder / INDEX, (json.dumps({"files": sorted(names)}, indent=1) + "\n").encode())


def _refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise an InputError if a folder of the site is a link: files elsewhere would be replaced or deleted."""
    above = {parent for name in names for parent in PurePosixPath(name).parents} - {PurePosixPath(".")}
    links = sorted(str(parent) for parent in above if (folder / parent).is_symlink())
    if links:
        raise InputError(
            expected=f"a site without links in {folder}",
            got=f"{links[0]}, which is a link",
            remedy="Remove the link, or pass another folder with --out.",
        )


def _listed(folder: Path) -> set[str]:
    """Return the paths that the last build in `folder` listed in INDEX, except absolute paths and paths with ".."."""
    try:
        names = read_json(folder / INDEX)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    inside = (PurePosixPath(os.fspath(name)) for name in names if isinstance(name, str))
    return {str(p) for p in inside if not p.is_absolute() and ".." not in p.parts}
