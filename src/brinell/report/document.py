"""The HTML page about one or several Runs: figures, tables and text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brinell.errors import printable
from brinell.report import figures
from brinell.report.advice import advice
from brinell.report.charts.svg import element, escape
from brinell.report.charts.types import Histogram, ReferenceLine, Waterfall
from brinell.report.examples import Examples, SampleSource, adversarial_examples
from brinell.report.formats import pairs
from brinell.report.outcomes import SampleOutcomes, sample_outcomes
from brinell.report.page import markup, own_version, page, render
from brinell.report.paper_text import bibtex, label, labels, paragraph, threat_text
from brinell.results import Proportion, Run, StageResult
from brinell.results.analyses import AnalysisReport, Cell, Figure, Table, saved
from brinell.results.evidence import check_title, proof
from brinell.untrusted import cleaned

EXAMPLES, MOST_IMAGE_TEXT = 4, 1_500_000  # examples per group; characters of all images
MOST_TEXT = 60_000  # characters of a manifest
ORDER = {"fail": 0, "warn": 1, "info": 2, "ok": 3}
SECTIONS = (
    ("accuracy", "Accuracy"), ("breaks", "Attacks"), ("distances", "Distances"), ("margins", "Margins"),
    ("classes", "Classes"), ("examples", "Examples"), ("checks", "Checks"), ("analyses", "Analyses"), ("cost", "Cost"),
    ("provenance", "Provenance"), ("paper", "For a paper"),
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """Everything the page shows of one Run; `key` is the prefix of its sections' HTML ids."""

    key: str
    name: str
    run: Run
    outcomes: SampleOutcomes
    threat: str
    gauge: Any
    reasons: tuple[tuple[str, str], ...]
    proof: str
    stages: Waterfall
    pairs: tuple[tuple[StageResult, Proportion], ...]
    breaks: Table
    first_breaks: Figure | None
    overlap: Figure | None
    confusion: Figure | None
    curve: Figure | None
    distances: Histogram | None
    lines: tuple[ReferenceLine, ...]
    surface: tuple[int, int]
    median: float | None
    margins: Histogram | None
    largest_margins: Histogram | None
    classes: Figure | None
    examples: Examples
    checks: tuple[dict[str, Any], ...]
    analyses: tuple[AnalysisReport, ...]
    cost: Figure
    costs: Table
    facts: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    manifest: str
    paragraph: str


def document(
    runs: Sequence[Run], problem: SampleSource | None = None, classes: Sequence[str] = (), title: str = ""
) -> str:
    """Return one self-contained HTML page about the Runs."""
    several = len(runs) > 1
    names, classes, title = labels(list(runs)), cleaned(list(classes)), printable(title)
    views = [
        view(run, name, f"r{i + 1}-" if several else "", problem, classes, share=len(runs))
        for i, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    heading = title or (names[0] if not several else f"{len(runs)} Runs compared")
    body = render(
        "report.html", title=heading, views=views, several=several, compared=_compared(views),
        together=_together(views), bibtex=bibtex(list(runs)),
    )  # fmt: skip
    kind, made = "robustness report", f"Made by Brinell {escape(own_version())} from the rows of the Run."
    footer = f"{made} No number on this page is typed by hand."
    return page(f"{heading} – {kind}", body, contents=_contents(views), tagline=kind, footer=footer)


def view(run: Run, name: str, key: str, problem: SampleSource | None, classes: Sequence[str], share: int = 1) -> View:
    """Compute what the page shows of one Run; `share` is the number of Runs that share the space for images."""
    s, of_data = sample_outcomes(run), cleaned(list(getattr(problem, "classes", None) or ()))
    names = figures.class_names(run, classes, of_data)
    radius, minimum_norm = figures.radius(run), figures.minimum_norm(run)
    cost, cost_table = figures.costs(run)
    breaks = figures.breaks(run, s)
    distances = np.where(s.correct, np.where(s.broken, s.distance, np.inf), 0.0)
    return View(
        key=key,
        name=name,
        run=run,
        outcomes=s,
        threat=threat_text(run),
        gauge=markup(gauge(run.clean_accuracy, run.robust_accuracy, run.certified_accuracy)),
        reasons=tuple((finding.message, advice(finding.anchor)) for finding in run.verdict.findings),
        proof=proof(run),
        stages=figures.stages(run),
        pairs=tuple(run.steps()),
        breaks=breaks,
        first_breaks=figures.first_breaks(breaks),
        overlap=figures.overlap(run),
        confusion=figures.confusion(run, s, names),
        curve=figures.curve([(name, s)], str(run.identity.threat.norm)) if minimum_norm else None,
        distances=figures.distances(s),
        lines=() if radius is None else (radius,),
        surface=figures.count_on_surface(s),
        median=float(np.sort(distances)[(len(distances) - 1) // 2]) if minimum_norm and len(distances) else None,
        margins=figures.margins(s),
        largest_margins=None if minimum_norm else figures.largest_margins(s),
        classes=None if minimum_norm else figures.classes(s, names),
        examples=adversarial_examples(run, s, problem, names, max(EXAMPLES // share, 2), MOST_IMAGE_TEXT // share),
        checks=tuple({**c, "name": check_title(c["name"])} for c in _by_level(run.checks)),
        analyses=tuple(saved(run.path)),
        cost=cost,
        costs=cost_table,
        facts=_facts(run),
        environment=_filled(run.environment.raw),
        manifest=_manifest(run),
        paragraph=paragraph(run),
    )


def _by_level(checks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(checks, key=lambda c: ORDER.get(str(c["level"]), 1))


def gauge(clean: Proportion, robust: Proportion, certified: Proportion | None = None) -> str:
    """Return an SVG bar from 0 to 100 % with the clean accuracy behind the robust accuracy, and their intervals.

    The certified accuracy, if there is one, lies in front: the lighter part between both ends is open.

    >>> gauge(Proportion(9, 10), Proportion(5, 10)).startswith("<svg")
    True
    """
    if not clean.n:
        return ""
    left, wide = 1.0, 478.0
    text = f"Clean accuracy {clean}. Robust accuracy {robust}."
    bars = [(1.0, "var(--grid)", None), (clean.value, "var(--c0)", 0.35), (robust.value, "var(--c0)", None)]
    if certified is not None:
        text = f"{text} Certified accuracy {certified}."
        bars[2:] = [(robust.value, "var(--c0)", 0.5), (certified.value, "var(--c0)", None)]
    parts = [
        element("rect", x=left, y=8, width=wide * share, height=20, rx=4, fill=colour, opacity=opacity)
        for share, colour, opacity in bars
    ]
    shown = (clean, robust, *([] if certified is None else [certified]))
    for row, p in enumerate(shown):  # each in a row of its own, since intervals of few samples overlap
        y = 8 + 20 * (2 * row + 1) / (2 * len(shown))
        a, b = left + wide * p.low, left + wide * p.high
        d = f"M{a:.2f} {y:.2f}H{b:.2f}M{a:.2f} {y - 3:.2f}v6M{b:.2f} {y - 3:.2f}v6"
        for stroke, width in (("var(--card)", 3.2), ("var(--ink)", 1.4)):
            parts.append(element("path", d=d, stroke=stroke, stroke_width=width, fill="none"))
    for value in (0, 25, 50, 75, 100):
        anchor, x = {0: "start", 100: "end"}.get(value, "middle"), left + wide * value / 100
        tick = f"{value} %" if value == 100 else str(value)
        parts.append(element("text", tick, x=x, y=45, text_anchor=anchor, fill="var(--soft)", font_size=12))
    return element("svg", element("title", escape(text)), *parts, viewBox="0 0 480 48", role="img", aria_label=text)


def _contents(views: Sequence[View]) -> list[tuple[str, str]]:
    if len(views) > 1:
        return [("compared", "Side by side"), *((f"{v.key}top", v.name) for v in views), ("paper", "For a paper")]
    return [entry for entry in SECTIONS if entry[0] != "analyses" or views[0].analyses]


def _compared(views: Sequence[View]) -> Table | None:
    if len(views) < 2:
        return None
    rows: list[tuple[Cell, ...]] = []
    for i, j, c in pairs([v.run for v in views]):
        both = views[i].name, views[j].name
        if isinstance(c, str):
            rows.append((*both, c, "", "", None))
        else:
            differ = "yes" if c.p_value < 0.05 else "not significant"
            rows.append((*both, str(c.difference), f"{c.p_value:.3g}", differ, c.n))
    difference = "robust accuracy of A − B, paired 95 % interval"
    columns = ("A", "B", difference, "p (McNemar)", "differ at 5 %", "common samples")
    return Table("Paired differences", columns, tuple(rows))


def _together(views: Sequence[View]) -> list[Figure]:
    if len(views) < 2:
        return []
    names = tuple(v.name for v in views)
    clean = figures.bar_series("clean", names, [v.run.clean_accuracy for v in views])
    robust = figures.bar_series("robust", names, [v.run.robust_accuracy for v in views])
    by_norm: dict[str, list[tuple[str, SampleOutcomes]]] = {}
    for v in views:
        if v.curve is not None:
            by_norm.setdefault(str(v.run.identity.threat.norm), []).append((v.name, v.outcomes))
    curves = [figures.curve(outcomes, norm) for norm, outcomes in by_norm.items()]
    return [Figure("Accuracies", "bars", "run", figures.SHARE, (clean, robust)), *curves]


def _facts(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what identifies the evaluation as (name, text) pairs, the most important first."""
    identity, seconds = run.identity, run.wall_seconds
    return _filled(
        {
            "model": f"{label(run)}, {identity.model.classes or '?'} classes",
            "model fingerprint": identity.model.fingerprint,
            "data": f"{identity.data.name or 'unnamed'}, {run.clean_accuracy.n:,} samples",
            "data fingerprint": identity.data.fingerprint,
            "threat": threat_text(run),
            "criterion": identity.criterion,
            "plan": identity.plan.name,
            "attacks": identity.plan.description,
            "stages": ", ".join(f"{s.name} ({s.hash or '?'})" for s in identity.plan.stages),
            "seed": identity.seed,
            "precision": identity.precision,
            "created": run.created,
            "wall time": None if seconds is None else f"{seconds:,.1f} s",
            "folder": run.path.name,
        }
    )


def _manifest(run: Run) -> str:
    """Return the manifest as text, cut if it is long: it may hold a mask or a radius per sample."""
    text = json.dumps(run.manifest, indent=2, ensure_ascii=False)
    cut = f"{text[:MOST_TEXT]}\n… and {len(text) - MOST_TEXT:,} more characters in manifest.json"
    return cut if len(text) > MOST_TEXT else text


def _filled(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(value)) for key, value in values.items() if value not in (None, ""))
