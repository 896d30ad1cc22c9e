"""Text for a paper: a paragraph about a Run, and its references."""

import json
import os
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from brinell.results import Run
from brinell.results.evidence import proof
from brinell.results.summary import eps_text, mask_text

CITED = re.compile(r"^(?:[^,]{1,20}: )?(?P<author>.+?),? (?P<year>\d{4}), (?P<title>.+)$")


def label(run: Run) -> str:
    """Return the name of a Run in a report: its model, or its folder."""
    return run.identity.model.name or run.path.name or str(run.path)


def shared_paths(runs: Sequence[Run]) -> list[str]:
    """Return the folders of the Runs for a text to share: below the folder that has them all, without what is above.

    >>> shared_paths([Run.open("tests/results/golden_run_v1")])
    ['golden_run_v1']
    """
    parents = [os.path.abspath(run.path.parent) for run in runs]
    try:
        above = os.path.commonpath(parents)
    except ValueError:  # on different drives
        return [run.path.name for run in runs]
    return [Path(os.path.relpath(os.path.abspath(run.path), above)).as_posix() for run in runs]


def labels(runs: list[Run]) -> list[str]:
    """Return distinct names of the Runs: the model, followed by plan, folder or path if several Runs share a model."""
    names = [label(run) for run in runs]
    plans = [f"{name}, {run.identity.plan.name}" for name, run in zip(names, runs, strict=True)]
    folders = [f"{name} ({run.path.name})" for name, run in zip(names, runs, strict=True)]
    paths = [f"{name} ({path})" for name, path in zip(names, shared_paths(runs), strict=True)]
    for candidates in (names, plans, folders, paths):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [f"{name} {i + 1}" for i, name in enumerate(paths)]


def threat_text(run: Run) -> str:
    """Return the threat as short text.

    >>> threat_text(Run.open("tests/results/golden_run_v1"))
    'Linf, eps = 8/255'
    """
    norm, eps = run.identity.threat.norm, run.identity.threat.eps
    free = mask_text(run.identity.threat.mask)
    return f"{norm or 'unnamed'}{free}, smallest distances" if eps is None else f"{norm}{free}, eps = {eps_text(eps)}"


def paragraph(run: Run) -> str:
    """Return a paragraph about the evaluation and its result, for the section on experiments."""
    clean, cost, verdict = run.clean_accuracy, run.cost, run.verdict
    parts = [
        run.sentence(),
        f"Its clean accuracy on the same samples is {100 * clean.value:.1f} % "
        f"(95 % Wilson interval [{100 * clean.low:.1f}, {100 * clean.high:.1f}]).",
    ]
    if run.attacks:
        parts.append(f"The attacks were run in the order {', '.join(run.attacks)}.")
    parts.append(
        "Every counted adversarial example was verified by a fresh forward pass in float32 and lies within the threat "
        f"in float64. The evaluation took {cost.forwards_per_sample:,.0f} forward and {cost.backwards_per_sample:,.0f} "
        "backward passes per sample."
    )
    reasons = f": {' '.join(verdict.reasons)}" if verdict.reasons else f". {proof(run)}".rstrip()
    parts.append(f"Brinell's verdict on the evaluation is “{verdict.level}”{reasons}")
    return " ".join(parts)


def bibtex(runs: list[Run]) -> str:
    """Return BibTeX entries of the package and of the publications that the plans cite."""
    entries: list[str] = []
    for version in dict.fromkeys(run.environment.brinell or "unknown" for run in runs):
        year = min((run.created or "")[:4] for run in runs)
        key = "brinell" if not entries else f"brinell-{len(entries) + 1}"
        title = "{Brinell}: measuring the adversarial robustness of classifiers"
        fields = {"title": title, "version": _tex(version), "year": _tex(year)}
        entries.append(_entry("software", key, author="{Brinell contributors}", **fields))
    cited = dict.fromkeys(run.identity.plan.citation or "" for run in runs)
    works = dict.fromkeys(work for text in cited for work in text.split("; ") if work)
    entries += [_cited(work) for work in works]
    return "\n\n".join(entries)


@cache
def references() -> dict[str, dict[str, str]]:
    """Return authors, title, venue and year of the works that plans cite, by the beginning of their citation."""
    facts: dict[str, dict[str, str]] = json.loads(
        (files("brinell.report") / "files" / "references.json").read_text("utf-8")
    )
    return facts


def _cited(work: str) -> str:
    """Return the BibTeX entry of a work that a plan cites as "topic: authors year, title"; the topic is optional."""
    key = max((known for known in references() if known in work), key=len, default=None)
    if key is not None:
        facts = dict(references()[key])
        first, year = facts["author"].partition(",")[0], facts["year"]
        word = re.sub(r"\W.*", "", facts["title"])
        fields = {name: _tex(value) for name, value in facts.items() if name not in ("kind", "title")}
        return _entry(facts["kind"], _key(f"{first}{year}{word}"), title=f"{{{_tex(facts['title'])}}}", **fields)
    match = CITED.match(work)
    if not match:
        return _entry("misc", _key(work), note=_tex(work))
    author = match["author"].rpartition(" after ")[2]  # "B after A" cites A
    for sign, word in ((" et al.", " and others"), (" & ", " and "), (", ", " and ")):
        author = author.replace(sign, word)
    key = _key(f"{author.split(' and ')[0]}{match['year']}{match['title'].split()[0]}")
    return _entry("misc", key, author=_tex(author), title=f"{{{_tex(match['title'])}}}", year=match["year"])


def _key(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"\W+", "-", plain).strip("-").lower()[:40]


def _entry(kind: str, key: str, **fields: str) -> str:
    inside = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items() if value)
    return f"@{kind}{{{key},\n{inside}\n}}"


def _tex(text: str) -> str:
    """Escape text for BibTeX.

    >>> print(_tex("50 % of {A} & B"))
    50 \\% of A \\& B
    """
    return re.sub(r"([%&#$_])", r"\\\1", re.sub(r"[{}\\]", "", text))
