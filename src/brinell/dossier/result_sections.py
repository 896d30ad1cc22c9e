"""Sections about what was found: attacks, results, subgroups, the bracket, checks, what was not tested, levels."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from brinell.dossier.check_dossier import unpack, wilson
from brinell.dossier.markup import DossierView, Html, Section, badge, element, facts, items, join, table
from brinell.dossier.system_sections import access, gate, level_decision, run_name
from brinell.results.evidence import check_title

# A group with fewer samples says little: its interval is up to 27 points wide.
SMALL = 50
# Longer tables go into an annex, with the lowest values in the section.
LONG, LOWEST = 30, 10
# Fields of a stored attack that have a column of their own, or say nothing to a reader.
OWN = (
    "name",
    "attack",
    "hash",
    "needs",
    "restarts",
    "ranks",
    "share",
    "near",
    "forwards",
    "backwards",
    "via",
    "copy",
    "noise",
)
OTHERS = (
    "Other norms and radii than those of the threat model.",
    "Attacks that nobody has published, and attacks made by an adversary who knows more than these attacks use.",
    "Changes that no norm describes: rotation, lighting, patches, objects in the scene, common corruptions.",
    "Attacks on training data, on the supply chain of the model, and on the privacy of the training data.",
    "The parts of the system around the model, and the system in operation.",
)

ORDER = (
    "Each attack ran on the samples that the attacks above it had not broken, unless the Run says otherwise. An "
    "adversarial example counts only after a fresh pass of the model verified it."
)


def attacks(view: DossierView) -> Section:
    """Return the section about the attacks: versions, parameters, budgets and successes."""
    parts = [element("p", ORDER)]
    for i, run in enumerate(view.runs):
        rows = [
            (
                a.get("name"),
                _kind(a),
                access(a),
                _budget(a),
                view.count(f"{i}/broken/{j}"),
                view.share(f"{i}/after/{j}"),
            )
            for j, a in enumerate(run["attacks"])
        ]
        plan, brinell = run["plan"], run["environment"].get("brinell") or "of unknown version"
        heads = ("Attack", "Method and parameters", "Access", "Budget", "Broken of attacked", "Accuracy after it")
        parts += [
            element("h3", run["name"], ", ", run["threat"]["text"]),
            facts([("Plan", f"{plan['name']}: {plan['description'] or 'no description'}"),
                   ("Reference", plan["citation"]),
                   ("Version", f"Brinell {brinell}, seed {run['seed']}"), ("Evaluated", run["created"]),
                   ("Audit", run["audit"] or "none"),
                   ("Adaptations", run["notes"] or "none")]),
            table(f"Attacks on {run['name']}", heads, rows),
        ]  # fmt: skip
    return Section("attacks", "Attacks and budgets", join(*parts))


def _kind(attack: dict[str, Any]) -> Html:
    stored = attack.get("attack") or {}
    numbers = {
        **{k: v for k, v in stored.items() if k not in ("type", "kind")},
        **{k: v for k, v in attack.items() if k not in OWN},
    }
    text = ", ".join(f"{k} = {v}" for k, v in numbers.items() if v not in (None, "", [], {}))
    name = stored.get("type") or stored.get("kind") or "attack"
    return join(element("b", name), " ", text, " ", element("code", str(attack.get("hash") or "")))


def _budget(attack: dict[str, Any]) -> str:
    targets = f", {len(attack['ranks'])} targets" if attack.get("ranks") else ""
    share, near = attack.get("share"), attack.get("near")
    drawn = "" if share is None else f", on {100 * share:g} % of the survivors, drawn at random"
    where = f"{drawn}, and on those nearest the boundary" if near is not None else drawn
    restarts = attack.get("restarts", 1)
    tries = f"{restarts} restart{'s' * (restarts != 1)}{targets}{where}"
    return f"{tries}; {attack['forwards']:,} forward and {attack['backwards']:,} backward passes in total"


def results(view: DossierView) -> Section:
    """Return the section with accuracies, distances, and results by class."""
    parts: list[Html] = []
    for i, run in enumerate(view.runs):
        rows = [("no attack", view.share(f"{i}/clean")), ("all attacks", view.share(f"{i}/robust"))]
        parts += [element("h3", run["name"], ", ", run["threat"]["text"])]
        parts += [table("Accuracy", ("Under", "Accuracy"), rows), _distances(run)]
        parts += [element("p", f"Single passes of this randomised model: {run['repeats']}.")] if run["repeats"] else []
        parts += [_grouping(view, i, 0)]
    return Section("results", "Results", join(*parts))


def _distances(run: dict[str, Any]) -> Html:
    found = unpack(run["samples"]["distance"], "<f8", len(run["samples"]["ids"]))
    found = found[np.isfinite(found)]
    if not len(found):
        return element("p", "No attack found an adversarial example.")
    low, middle, high = (f"{v:.4g}" for v in np.quantile(found, [0, 0.5, 1]))
    norm = run["threat"].get("norm") or "its norm"
    text = f"Distances of {len(found):,} adversarial examples from the clean inputs, in {norm}: smallest {low}, median "
    return element("p", f"{text}{middle}, largest {high}.", kind="note")


def subgroups(view: DossierView) -> Section:
    """Return the section about subgroups."""
    parts = [
        join(element("h3", run["name"], ", ", run["threat"]["text"]), _grouping(view, i, g))
        for i, run in enumerate(view.runs)
        for g in range(1, len(run["samples"]["groupings"]))
    ]
    gap = element("p", "No subgroups were given. Differences between groups of people or conditions are not assessed.",
                  kind="gap")  # fmt: skip
    return Section("subgroups", "Results by subgroup", join(*parts) if parts else gap)


def _grouping(view: DossierView, i: int, g: int) -> Html:
    """Return the results of one grouping: all groups, or the lowest ones with the rest in the annex."""
    grouping, rows = view.runs[i]["samples"]["groupings"][g], list(_groups(view, i, g))
    m = len(rows)
    if m > LONG:
        rows = sorted(rows, key=lambda row: row[0])[:LOWEST]
    what = f"Results by {grouping['name']}" + (
        f": the {LOWEST} lowest of {m}, all are in the annex" if m > LONG else ""
    )
    outside = int((unpack(grouping["index"], "<i4", len(view.runs[i]["samples"]["ids"])) < 0).sum())
    note = (
        f"Each of the {m} intervals holds with 95 %, so about one in twenty misses by chance. Those of the column “All "
        "intervals together” hold together with 95 % (Bonferroni). A group is called lower if its wide interval lies "
        f"below the accuracy of all samples. Groups of fewer than {SMALL} samples are called small: they support no "
        "conclusion."
    )
    return join(
        _table(view, i, what, grouping["name"], rows), element("p", note, kind="note"),
        element("p", f"{outside:,} samples belong to no group.", kind="gap") if outside else Html(""),
    )  # fmt: skip


def _table(view: DossierView, i: int, caption: str, name: str, rows: list[tuple[float, tuple[Any, ...]]]) -> Html:
    certified = ("Certified accuracy",) * view.has(f"{i}/certified")
    heads = (name, "Clean accuracy", *certified, "Robust accuracy", "All intervals together", "Note")
    return table(caption, heads, [row for _, row in rows])


def _groups(view: DossierView, i: int, g: int) -> Iterator[tuple[float, tuple[Any, ...]]]:
    """Yield the robust accuracy of every group, and its row of the table."""
    values = view.runs[i]["samples"]["groupings"][g]["values"]
    whole, n_all = view.shares[f"{i}/robust"][:2]
    for v, value in enumerate(values):
        key = f"{i}/by/{g}/{v}"
        k, n = view.shares[f"{key}/robust"][:2]
        lower = n_all > 0 and n > 0 and wilson(k, n, 1 - 0.05 / len(values))[1] < whole / n_all
        note = [badge("warn", f"small, n < {SMALL}")] * (n < SMALL) + [badge("fail", "lower")] * lower
        shown = [view.share(f"{key}/{w}") for w in ("clean", "certified", "robust") if view.has(f"{key}/{w}")]
        wide = view.share(f"{key}/robust", of=len(values))
        yield k / n if n else 1.0, (value, *shown, wide, join(*note) if note else Html("–"))


def annex(view: DossierView) -> Section | None:
    """Return the annex with the tables of long groupings, or None."""
    long = [
        (i, g, grouping)
        for i, run in enumerate(view.runs)
        for g, grouping in enumerate(run["samples"]["groupings"])
        if len(grouping["values"]) > LONG
    ]
    parts = [
        join(
            element("h3", view.runs[i]["name"]),
            _table(view, i, f"Results by {x['name']}", x["name"], list(_groups(view, i, g))),
        )
        for i, g, x in long
    ]
    return Section("annex", "Annex: results of all groups", join(*parts)) if parts else None


def bracket(view: DossierView) -> Section:
    """Return the section about both ends of the true robust accuracy: certified below, not broken above."""
    rows = [
        (run["name"], run["threat"]["text"],
         view.share(f"{i}/certified") if view.has(f"{i}/certified") else badge("warn", "no certificates"),
         view.share(f"{i}/robust"))
        for i, run in enumerate(view.runs)
    ]  # fmt: skip
    text = (
        "The share of these samples that no attack inside the threat can break lies between two ends: samples with a "
        "certificate are robust, and samples broken by an attack are not. The rest is open. Without certificates the "
        "lower end is 0 %: that no attack succeeded does not prove that none can. A certificate is as good as its "
        "method: a proof by bounds holds always, one by random smoothing with the confidence that the method states."
    )
    methods = [f"{run['name']}: {line}" for run in view.runs for line in run["bracket"]]
    heads = ("Model", "Threat", "Lower end: certified", "Upper end: not broken")
    return Section("bracket", "Both ends of the bracket", join(
        element("p", text), table("Bracket", heads, rows),
        join(element("h3", "Methods"), items(methods)) if methods else Html(""),
    ))  # fmt: skip


def checks(view: DossierView) -> Section:
    """Return the section about the evaluation itself: verdict, reasons, evidence and checks."""
    parts = [element("p", "A weak or broken evaluation overstates robustness. These checks test the evaluation.")]
    for i, run in enumerate(view.runs):
        rows = [(check_title(c["name"]), badge(c["level"]), c["message"]) for c in run["checks"]]
        rows += [(f"probe of {p['attack']}", badge(p["level"]), p["message"]) for p in run["probes"]]
        parts += [
            element("h3", run["name"], ", ", run["threat"]["text"]),
            facts([("Verdict", view.verdict(i)),
                   ("Reasons", items(run["reasons"]) if run["reasons"] else "No check found a problem."),
                   ("Evidence", items(run["evidence"]))]),
            table(f"Checks of the evaluation of {run['name']}", ("Check", "Result", "Message"), rows),
        ]  # fmt: skip
    return Section("checks", "Checks of the evaluation itself", join(*parts))


def untested(view: DossierView) -> Section:
    """Return the section about what was not tested."""
    parts = [
        join(element("h3", r["name"], ", ", r["threat"]["text"]), items(r["untested"]))
        for r in view.runs
        if r["untested"]
    ]
    return Section("untested", "What was not tested", join(*parts, element("h3", "In every Run"), items(OTHERS)))


def levels(view: DossierView) -> Section:
    """Return the section about declared levels and the decisions on them."""
    rows = []
    for i, level in enumerate(view.payload["levels"]):
        run = level["run"]
        key = f"{run}/{level['measure']}"
        measured = view.share(key) if run is not None and view.has(key) else "nothing"
        rows.append((level["text"], run_name(view, run), measured, level_decision(view, i)))
    rule = (
        "A level is met if the lower end of the 95 % interval reaches it, and not met if the upper end lies below it; "
        "otherwise it is undecided. A robust accuracy from attacks is an upper end, so it meets a level only if the "
        "verdict on the evaluation is “reliable”, and then against the attacks of this dossier. A certified accuracy "
        "that reaches the level meets it against every attack inside the threat."
    )
    found = table("Declared levels", ("Level", "Run", "Measured", "Decision"), rows) if rows else element(
        "p", "No level is declared, so nothing is decided.", kind="gap")  # fmt: skip
    return Section(
        "levels", "Declared levels and gate", join(element("p", rule), found, gate(view) if rows else Html(""))
    )
