"""The page of a Run: what it measured, in short."""

import re

from brinell.leaderboard.site.columns import BoardRow, title
from brinell.report.charts.chart import chart
from brinell.report.charts.types import Waterfall, WaterfallLevel
from brinell.report.page import markup, render
from brinell.results.run import Run
from brinell.results.statistics import Proportion

FOLDER = "runs"
PACKAGE = "brinell.leaderboard.site"  # its folder `files` holds the templates


def page_of(row_key: str, run_hash: str | None) -> str:
    """Return the path of the page of a Run in the site.

    >>> page_of("cifar10/Linf/Mine", "0123456789abcdef")
    'runs/cifar10-Linf-Mine-01234567.html'
    """
    name = re.sub(r"[^\w.+-]+", "-", f"{row_key}-{(run_hash or 'unhashed')[:8]}")
    return f"{FOLDER}/{name}.html"


def summary(row: BoardRow, run: Run, report: str | None = None) -> str:
    """Return the body of the page: numbers, verdict, stages, the sentence for a paper, and the settings."""
    return render(
        "run.html", package=PACKAGE, row=row, record=row.record, name=title(row.record), run=run,
        robust=run.robust_accuracy, clean=run.clean_accuracy, verdict=run.verdict, stages=_stages(run),
        picture=markup(_fall(run)), facts=_facts(row, run), sentence=run.sentence(), report=report,
    )  # fmt: skip


def _stages(run: Run) -> list[tuple[str, Proportion, int, int]]:
    pairs = zip(run.stages(), run.accuracy_after(), strict=True)
    return [(name, p, stage.attacked, stage.broken) for stage, (name, p) in pairs]


def _fall(run: Run) -> str:
    levels = [("clean", run.clean_accuracy), *run.accuracy_after()]
    drawn = tuple(WaterfallLevel(name, 100 * p.value, 100 * p.low, 100 * p.high) for name, p in levels)
    return chart(Waterfall("Accuracy after each attack", "accuracy (%)", drawn, last="robust"))


def _facts(row: BoardRow, run: Run) -> dict[str, str]:
    """Return the settings of the Run, without details of the machine."""
    identity, cost, where = run.identity, run.cost, run.environment
    made = {"brinell": where.brinell, "torch": where.torch, "device": where.device}
    told = {
        "Threat": f"{identity.threat.norm}, eps = {row.record.eps}",
        "Data": f"{identity.data.name}, n = {run.clean_accuracy.n:,}",
        "Plan": f"{identity.plan.name}: {identity.plan.description or 'no description'}",
        "Seed": str(identity.seed),
        "Precision": identity.precision or "",
        "Cost": f"{cost.forwards:,} forwards and {cost.backwards:,} backwards, {cost.seconds:,.1f} s of compute",
        "Made": ", ".join([str(row.record.date or "")[:10], *(f"{k} {v}" for k, v in made.items() if v)]).strip(", "),
        "Model's fingerprint": str(row.record.fingerprint or ""),
        "Hash of the Run": str(row.record.run_hash or ""),
    }
    return {name: value for name, value in told.items() if value}
