"""The charts of a board: accuracy against robustness, robustness by year, over-estimation."""

from collections.abc import Sequence
from statistics import median

from brinell.leaderboard.records import Record
from brinell.leaderboard.site.boards import Board
from brinell.leaderboard.site.columns import series
from brinell.report.charts.chart import chart
from brinell.results.analyses import Figure, Series

MOST_BARS = 12
MOST_VENUES = 16
HOW_YEAR = "The year is the last four-digit number of the venue; records without one are left out."


def board_charts(board: Board) -> list[str]:
    """Return the charts of a board as HTML markup; charts without data are left out."""
    records, ranked = [e.record for e in board.entries], _ranked(board)
    made = (_scatter(board, records), _years(board, ranked), _venues(board, ranked), _over(board, records))
    return [text for text in made if text]


def progress_chart(boards: Sequence[Board]) -> str:
    """Return a chart of the highest robust accuracy by year, one line per board; "" if no record has a year."""
    lines = [(b, _best_by_year(_ranked(b))) for b in boards if not b.corruptions]
    lines = [(b, best) for b, best in lines if len(best) > 1]
    if not lines:
        return ""
    every = range(min(min(best) for _, best in lines), max(max(best) for _, best in lines) + 1)
    # The first series defines the order of the axis, so it has all years.
    blank = float("nan")
    drawn = tuple(
        Series(b.short, tuple(map(str, every)), tuple(f[y][0] if y in f else blank for y in every)) for b, f in lines
    )
    labels = [[best[y][1] if y in best else "" for y in every] for _, best in lines]
    figure = Figure("Progress over the years", "line", "year", "best known robust accuracy so far (%)", drawn)
    return chart(figure, note=HOW_YEAR, labels=labels)


def _ranked(board: Board) -> list[Record]:
    return [e.record for e in board.entries if e.ranked]


def _scatter(board: Board, records: Sequence[Record]) -> str:
    groups = {
        "own data only": [r for r in records if r.status == "published" and not r.extra_data],
        "extra data": [r for r in records if r.status == "published" and r.extra_data],
        "not published": [r for r in records if r.status != "published"],
    }
    drawn, labels = [], []
    for name, members in groups.items():
        known = [(r, r.clean, r.best) for r in members if r.clean is not None and r.best is not None]
        if not known:
            continue
        # The interval belongs to the measured accuracy; an external one has none.
        ends = [r.interval if r.interval and r.external is None else (y, y) for r, _, y in known]
        error_bars = [[e[i] for e in ends] if any(r.interval for r, *_ in known) else [] for i in (0, 1)]
        xs, ys = tuple(x for _, x, _ in known), tuple(y for *_, y in known)
        drawn.append(Series(name, xs, ys, tuple(error_bars[0]), tuple(error_bars[1])))
        labels.append([r.name for r, *_ in known])
    if sum(len(s.x) for s in drawn) < 2:
        return ""
    text = "Accuracy against robustness"
    return chart(Figure(text, "points", "clean accuracy (%)", f"{board.measure} (%)", tuple(drawn)), labels=labels)


def _years(board: Board, records: Sequence[Record]) -> str:
    best = _best_by_year(records)
    if len(best) < 2:
        return ""
    of_year = {y: sorted(r.best for r in records if r.year == y and r.best is not None) for y in best}
    have = [y for y in best if of_year[y]]
    so_far = Series("best so far", tuple(map(str, best)), tuple(value for value, _ in best.values()))
    middle = Series(
        "median of the year (band: lowest to highest)",
        tuple(map(str, have)),
        tuple(median(of_year[y]) for y in have),
        tuple(of_year[y][0] for y in have),
        tuple(of_year[y][-1] for y in have),
    )
    labels = [[name for _, name in best.values()], [f"{len(of_year[y])} records" for y in have]]
    figure = Figure("Robustness over time", "line", "year", f"{board.measure} (%)", (so_far, middle))
    return chart(figure, note=HOW_YEAR, labels=labels, key=board.slug)


def _best_by_year(records: Sequence[Record]) -> dict[int, tuple[float, str]]:
    """Return, for every year from the first to the last, the highest accuracy so far and the name of its model."""
    dated = [(r.year, r.best, r.name) for r in records if r.year is not None and r.best is not None]
    years = [y for y, *_ in dated]
    every = range(min(years), max(years) + 1) if years else ()
    return {year: max((b, name) for y, b, name in dated if y <= year) for year in every}


def _venues(board: Board, records: Sequence[Record]) -> str:
    """Return the chart of robustness by venue (Croce et al. 2021, RobustBench, figure 2 left)."""
    by_venue: dict[str, list[float]] = {}
    for r in records:
        if r.best is not None and series(r):
            by_venue.setdefault(series(r), []).append(r.best)
    if len(by_venue) < 2:
        return ""
    most = sorted(by_venue, key=lambda v: (-len(by_venue[v]), v))[:MOST_VENUES]
    found = sorted(((median(by_venue[v]), v) for v in most), reverse=True)
    bars = Series(
        "", tuple(f"{v} ({len(by_venue[v])})" for _, v in found), tuple(m for m, _ in found),
        tuple(min(by_venue[v]) for _, v in found), tuple(max(by_venue[v]) for _, v in found),
    )  # fmt: skip
    figure = Figure("Robustness by venue", "bars", "venue", f"{board.measure} (%)", (bars,))
    cut = f"The {MOST_VENUES} venues with the most models. " if len(by_venue) > MOST_VENUES else ""
    note = f"{cut}Median over the models of a venue, from the lowest to the highest; their number in brackets."
    return chart(figure, note=note, key=board.slug)


def _over(board: Board, records: Sequence[Record]) -> str:
    known = [(r.overestimation, r.name) for r in records if r.overestimation is not None]
    over = sorted((o, name) for o, name in known if o > 0)[::-1]
    if not over:
        return ""
    shown = over[:MOST_BARS]
    bars = Series("", tuple(name for _, name in shown), tuple(o for o, _ in shown))
    figure = Figure("Over-estimation", "bars", "model", "reported minus best known (points)", (bars,))
    most = f"The {len(shown)} largest. " if len(over) > len(shown) else ""
    note = f"{most}{len(over)} of {len(known)} models were reported more robust than they are known to be."
    return chart(figure, note=note, key=board.slug)
