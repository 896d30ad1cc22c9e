"""Reports as JSON, CSV, Markdown, LaTeX and JUnit."""

import csv
import io
import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

from brinell.errors import RunError
from brinell.report.facts import facts
from brinell.report.figures import costs
from brinell.report.gate import accuracy_name, check_gate, required_verdict
from brinell.report.paper_text import label, labels, shared_paths, threat_text
from brinell.report.text_tables import runs_as_latex
from brinell.results import CLEAN, Comparison, Proportion, Run, compare
from brinell.results.analyses import Table
from brinell.results.bracket import CERTIFIED
from brinell.results.summary import eps_text
from brinell.untrusted import csv_cells

COLUMNS = (
    "run", "model", "data", "norm", "eps", "plan", "seed", "stage", "accuracy", "low", "high", "n", "attacked",
    "broken", "forwards", "backwards", "seconds", "verdict",
)  # fmt: skip


def pairs(runs: Sequence[Run]) -> list[tuple[int, int, Comparison | str]]:
    """Compare every pair of Runs; return their indices and the comparison, or why no comparison is possible."""
    compared: list[tuple[int, int, Comparison | str]] = []
    for (i, a), (j, b) in combinations(enumerate(runs), 2):
        try:
            compared.append((i, j, compare(a, b)))
        except RunError as error:
            message = str(error)
            for run, path in zip((a, b), shared_paths([a, b]), strict=True):
                message = message.replace(str(run.path), path)
            compared.append((i, j, message))
    return compared


def as_json(runs: Sequence[Run]) -> str:
    """Return the facts of every Run and the comparisons as JSON."""
    compared = [_pair(i, j, c) for i, j, c in pairs(runs)]
    whole = [{**_whole(run), "path": path} for run, path in zip(runs, shared_paths(runs), strict=True)]
    return json.dumps({"runs": whole, "comparisons": compared}, indent=2) + "\n"


def as_csv(runs: Sequence[Run]) -> str:
    """Return one CSV line per Run and stage, the clean pass included, and one for certificates if there are any."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for path, run in zip(shared_paths(runs), runs, strict=True):
        identity, threat = run.identity, run.identity.threat
        eps = eps_text(threat.eps) if threat.per_sample else threat.eps
        head = (path, label(run), identity.data.name, threat.norm, eps, identity.plan.name, identity.seed)
        after = {CLEAN: run.clean_accuracy, **dict(run.accuracy_after())}
        broken = {stage.attack: stage.broken for stage in run.stages()}
        broken[CLEAN] = run.clean_accuracy.n - run.clean_accuracy.k
        for stage, attacked, forwards, backwards, seconds, _ in costs(run, idle=True)[1].rows[:-1]:
            p = after[str(stage)]
            row = (stage, p.value, p.low, p.high, p.n, attacked, broken[str(stage)], forwards, backwards, seconds)
            writer.writerow(csv_cells([*head, *row, run.verdict.level]))
        if run.bracket is not None:
            p, methods = run.bracket.certified, run.bracket.methods
            spent = (
                sum(m.samples for m in methods),
                0,
                sum(m.passes for m in methods),
                0,
                sum(m.seconds for m in methods),
            )
            row = (CERTIFIED, p.value, p.low, p.high, p.n, *spent)
            writer.writerow(csv_cells([*head, *row, run.verdict.level]))
    return out.getvalue()


def as_markdown(runs: Sequence[Run]) -> str:
    """Return a Markdown summary, for a pull request or a wiki."""
    names = labels(list(runs))
    both = _bracketed(runs)
    heads = ("run", "threat", "plan", "clean accuracy", *both, "robust accuracy", "verdict")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, run in zip(names, runs, strict=True):
        accuracies = run.clean_accuracy, *_certified(run, both), run.robust_accuracy
        cells = (name, threat_text(run), run.identity.plan.name, *accuracies, run.verdict.level)
        lines.append(f"| {' | '.join(_cell(c) for c in cells)} |")
    for name, run in zip(names, runs, strict=True):
        own = dict(run.accuracy_alone()) if run.identity.individual else {}
        lines += ["", f"**{_cell(name)}**", "", *_head(bool(own))]
        lines.append(f"| {CLEAN} | {run.clean_accuracy} | |{' |' * bool(own)}")
        for stage, p in run.steps():
            alone = f" {own.get(stage.attack, '')} |" if own else ""
            lines.append(f"| {_cell(stage.attack)} | {p} | {stage.broken:,} of {stage.attacked:,} |{alone}")
        lines += [
            line
            for i, text in enumerate(run.bracket.lines if run.bracket else ())
            for line in ("", f"{'Certificates' if i else 'Bracket'}: {_cell(text)}")
        ]
        lines += ["", f"Verdict: {_cell(run.verdict)}", "", f"Evidence: {_cell(' '.join(run.verdict.evidence))}"]
        lines += ["", f"Not tested: {_cell(' '.join(run.verdict.untested))}", "", _cell(run.sentence())]
    compared = [f"- {_cell(_difference(c, names[i], names[j]))}" for i, j, c in pairs(runs)]
    return "\n".join([*lines, *(["", "**Paired differences**", "", *compared] if compared else [])]) + "\n"


def as_latex(runs: Sequence[Run], label: str | None = None) -> str:
    """Return LaTeX tables: accuracies of all Runs, accuracies after every attack, and paired differences.

    Their labels end in `label`, by default in models, data, threats and plans.
    """
    return runs_as_latex(runs, pairs(runs), label)


def _bracketed(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the heading of the column with certified accuracies; nothing if no Run has certificates."""
    return ("certified accuracy",) if any(run.bracket is not None for run in runs) else ()


def _certified(run: Run, heads: tuple[str, ...]) -> tuple[Proportion | str, ...]:
    return tuple("" if run.bracket is None else run.bracket.certified for _ in heads)


def comparison_table(c: Comparison) -> Table:
    """Return the comparison of two Runs as a table: accuracies, paired difference, p-value of McNemar's test."""
    d = c.difference
    difference = f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}] points"
    proved = zip((c.name_a, c.name_b), c.certified, strict=True)
    rows = (
        (c.name_a, str(c.robust_a), c.only_a, c.verdicts[0]), (c.name_b, str(c.robust_b), c.only_b, c.verdicts[1]),
        *((f"certified, {name}", str(p), None, "") for name, p in proved if p is not None),
        ("difference", difference, None, ""), ("McNemar's test", f"p = {c.p_value:.3g}", None, ""),
    )  # fmt: skip
    heads = ("", "robust accuracy", "robust only here", "verdict")
    return Table(f"Paired comparison on {c.n:,} samples", heads, rows)


def _head(alone: bool) -> tuple[str, str]:
    """Return the first two lines of the table of attacks, with or without the accuracy under each attack alone."""
    columns = ("after", "accuracy", "broken", *(["accuracy alone"] if alone else []))
    return f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"


def as_junit(runs: Sequence[Run], percent: float | None = None, require: str | None = None) -> str:
    """Return JUnit XML with one test suite per Run: its verdict, its checks and, if requested, the release gate."""
    root = ElementTree.Element("testsuites", name="brinell")
    for name, run in zip(labels(list(runs)), runs, strict=True):
        cases = _cases(run, percent, require)
        failed = sum(bad for *_, bad in cases)
        seconds = f"{run.cost.seconds:.3f}"
        suite = ElementTree.SubElement(
            root, "testsuite", name=_clean(name), tests=str(len(cases)), failures=str(failed), errors="0", time=seconds
        )
        for case, message, bad in cases:
            item = ElementTree.SubElement(suite, "testcase", classname=f"brinell.{_clean(name)}", name=_clean(case))
            if bad:
                ElementTree.SubElement(item, "failure", message=_clean(message))
            else:
                ElementTree.SubElement(item, "system-out").text = _clean(message)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _cases(run: Run, percent: float | None, require: str | None) -> list[tuple[str, str, bool]]:
    """Return (name, message, failed) for each test of the release gate and each check."""
    messages = {f.name: f"{f.message} {f.remedy}".strip() for f in check_gate(run, percent, require)}
    failed = {name: message.replace(str(run.path), run.path.name) for name, message in messages.items()}
    invalid = {"verdict": str(run.verdict)} if run.verdict.level == "invalid" else {}
    passed = {"verdict": str(run.verdict)}
    if required_verdict(percent, require) is not None:
        passed["finished"] = "the evaluation is finished"
    if percent is not None:
        passed[accuracy_name(percent)] = f"robust accuracy {run.robust_accuracy}, not below {percent:g} %"
    bad = invalid | failed
    gate = [(name, bad.get(name, message), name in bad) for name, message in passed.items()]
    return [*gate, *((c["name"], c["message"], c["level"] == "fail") for c in run.checks)]


def _whole(run: Run) -> dict[str, Any]:
    stages = [{"attack": s.attack, "attacked": s.attacked, "broken": s.broken} for s in run.stages()]
    return {**facts(run), "attacks": stages, "checks": run.checks, "manifest": run.manifest}


def _pair(i: int, j: int, c: Comparison | str) -> dict[str, Any]:
    if isinstance(c, str):
        return {"a": i, "b": j, "error": c}
    d = c.difference
    difference = {"value": d.value, "low": d.low, "high": d.high}
    return {"a": i, "b": j, "n": c.n, "difference": difference, "p_value": c.p_value, "agreement": c.agreement.value}


def _difference(c: Comparison | str, a: str, b: str) -> str:
    return f"{a} − {b}: {c if isinstance(c, str) else f'{c.difference}, p = {c.p_value:.3g}, n = {c.n}'}"


def _cell(value: object) -> str:
    """Escape text for a cell of a Markdown table."""
    text = " ".join(str(value).split())
    for sign in "\\`*_{}[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text if not isinstance(value, Proportion) else str(value)


def _clean(text: str) -> str:
    """Replace characters that are not allowed in XML with spaces."""
    return "".join(c if c in "\t\n\r" or (ord(c) >= 32 and ord(c) not in (0xFFFE, 0xFFFF)) else " " for c in text)
