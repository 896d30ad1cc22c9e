"""Sections about what was evaluated: summary, system, model, data and threat model."""

from collections.abc import Iterable
from math import sqrt
from typing import Any

from brinell.dossier.markup import DossierView, Html, Section, element, facts, join, table
from brinell.dossier.system import missing_fields

NOTICE = (
    "This dossier reports how a system withstood the attacks named in it, on the samples named in it. It is evidence "
    "for an assessment. It is not a certificate, not a conformity assessment and no proof of security."
)
RANGE = (
    "“x % [a, b], n = m” is the share x of m samples with its 95 % Wilson interval from a to b. The interval covers "
    "the error of drawing samples only. It says nothing about other data, other attacks or other systems."
)
UNSTATED = (
    "The provider does not state how the samples were drawn. Without a random draw the intervals do not extend beyond "
    "these samples."
)
CRITERIA = {
    "misclassify": "An adversarial example counts if the model misclassifies it.",
    "evade": "An adversarial example counts if the model misclassifies it and its detector accepts it.",
}
# What an attack needs, as stored in a Run, in the words of a threat model.
ACCESS = {"gradient": "white box: gradients of the model", "logits": "black box: outputs (logits) only"}
LABELS = {
    "name": "Name", "version": "Version", "provider": "Provider", "contact": "Contact", "description": "Description",
    "intended_purpose": "Intended purpose", "deployment": "Deployment", "users": "Users", "risk_class": "Risk class",
    "affected_persons": "Affected persons", "responsible": "Responsible for this dossier", "defences": "Defences",
    "preprocessing": "Preprocessing", "sampling": "How the samples were drawn", "population": "What they stand for",
    "subgroups": "Meaning of the subgroups", "adversary": "Adversary and aim", "access": "Access",
    "knowledge": "Knowledge", "norm_and_radius": "Why this norm and radius", "outside": "Left out by the threat model",
}  # fmt: skip


def declared_facts(view: DossierView, section: str) -> Html:
    """Return the declared fields of a section of the TOML file, the missing ones stated as missing."""
    fields = view.declared[section]
    return facts((label, fields[name]) for name, label in LABELS.items() if name in fields)


def each_run(view: DossierView, pairs: Iterable[str], row: Any) -> Html:
    """Return a table with one column per Run: `row(run, name)` is a cell."""
    heads = ("", *(run["name"] for run in view.runs))
    return table("Recorded in the Runs", heads, [(name, *(row(run, name) for run in view.runs)) for name in pairs])


def summary(view: DossierView) -> Section:
    """Return the first section: the result in one table, and what this document is."""
    rows = []
    for i, run in enumerate(view.runs):
        certified = view.share(f"{i}/certified") if view.has(f"{i}/certified") else "no certificates"
        robust = view.share(f"{i}/robust")
        rows.append((run["name"], run["threat"]["text"], view.share(f"{i}/clean"), robust, certified, view.verdict(i)))
    heads = ("Model", "Threat", "Clean accuracy", "Robust accuracy (upper end)", "Certified (lower end)", "Verdict")
    levels = [
        (x["text"], run_name(view, x["run"]), level_decision(view, i)) for i, x in enumerate(view.payload["levels"])
    ]
    return Section("summary", "Summary", join(
        element("p", NOTICE), table("Result", heads, rows),
        element("p", RANGE, kind="note"),
        element("p", "Robust accuracy is the share of samples that are classified correctly and that no attack broke. "
                "A stronger attack can only lower it. The verdict says whether the evaluation itself can be believed.",
                kind="note"),
        join(table("Declared levels", ("Level", "Run", "Decision"), levels), gate(view)) if levels else
        element("p", "No level of accuracy or robustness is declared.", kind="gap"),
    ))  # fmt: skip


def run_name(view: DossierView, i: int | None) -> str:
    """Return the name of a Run, or "none"."""
    return "none" if i is None else view.runs[i]["name"]


def level_decision(view: DossierView, i: int) -> Html:
    """Return the decision on a declared level, with its reason."""
    kind = view.texts[f"level/{i}"].partition(":")[0].replace(" ", "-")
    return element("span", view.data(f"level/{i}"), kind=f"decision {kind}")


def gate(view: DossierView) -> Html:
    """Return whether all declared levels are met, as a sentence."""
    decisions = [view.texts[f"level/{i}"].partition(":")[0] for i in range(len(view.payload["levels"]))]
    met = decisions.count("met")
    passed = "passed" if met == len(decisions) else "not passed"
    return element("p", element("b", f"Gate: {passed}."), f" {met} of {len(decisions)} declared levels met.")


def system(view: DossierView) -> Section:
    """Return the section about the system and its intended purpose."""
    gaps = missing_fields(view.declared)
    note = f"{len(gaps)} of the fields that this dossier asks for are not stated: {', '.join(gaps)}."
    return Section("system", "System and intended purpose", join(
        element("p", "The statements of this section come from the provider and were not tested."),
        declared_facts(view, "system"), element("p", note, kind="gap") if gaps else Html(""),
    ))  # fmt: skip


def model(view: DossierView) -> Section:
    """Return the section about the model and its preprocessing."""
    values = {
        "Name": lambda run: run["model"]["name"],
        "SHA-256 of structure, weights and normalisation": lambda run: element("code", run["model"]["fingerprint"]),
        "Classes": lambda run: run["model"]["classes"],
        "Precision of the attacks": lambda run: run["precision"],
        "Outputs": lambda run: "randomised" if run["randomised"] else "the same for the same input",
        "Software": lambda run: [
            f"{k} {v}" for k, v in run["environment"].items() if k in ("brinell", "python", "torch")
        ],
        "Device": lambda run: run["environment"].get("device"),
    }
    return Section("model", "Model and preprocessing", join(
        each_run(view, values, lambda run, name: values[name](run)),
        element("p", "What the evaluated model does to its input before the first layer is part of the hash. Whatever "
                "happens to an input before it reaches the model was not attacked.", kind="note"),
        element("h3", "Declared by the provider"), declared_facts(view, "model"),
    ))  # fmt: skip


def data(view: DossierView) -> Section:
    """Return the section about data and sampling: what the Runs show, beside what is declared."""
    values = {
        "Name": lambda run: run["data"]["name"],
        "Samples": lambda run: f"{len(run['samples']['ids']):,}",
        "SHA-256 of the data": lambda run: element("code", run["data"]["fingerprint"]),
        "SHA-256 of ids and inputs evaluated": lambda run: element("code", run["samples"]["inputs_sha256"]),
        "Sample ids": lambda run: _ids(run["samples"]["ids"]),
        "Classes with samples": lambda run: len(run["samples"]["groupings"][0]["values"]),
        "Classes of the model without samples": lambda run: run["missing_classes"],
    }
    consequence = (
        "The intervals hold for the population that the samples were drawn from at random. The Runs cannot show how "
        "the samples were drawn."
    )
    stated = view.declared["data"]["sampling"]
    return Section("data", "Data and sampling", join(
        each_run(view, values, lambda run, name: values[name](run)), element("p", consequence),
        Html("") if stated else element("p", UNSTATED, kind="gap"),
        element("h3", "Declared by the provider"), declared_facts(view, "data"),
    ))  # fmt: skip


def _ids(ids: list[Any]) -> str:
    numbers = all(isinstance(i, int) for i in ids)
    if numbers and ids == list(range(len(ids))):
        return f"0 to {len(ids) - 1} without gaps: the first samples of the data in its order, not a draw from it"
    if not ids:
        return "none"
    return f"from {ids[0]} to {ids[-1]}, {'with gaps' if numbers else 'the names of the samples'}"


def threat(view: DossierView) -> Section:
    """Return the section about the threat model."""
    unit, scale = view.payload["unit"]["name"], view.payload["unit"]["per_unit"]
    values = {
        "Norm and radius": lambda run: run["threat"]["text"],
        f"Radius in {unit}": lambda run: physical(run["threat"], unit, scale, run["size"]),
        "Range of inputs": lambda run: _box(run["threat"].get("box"), unit, scale),
        "Counted as broken": lambda run: CRITERIA.get(run["criterion"], run["criterion"]),
        "Access used by the attacks": lambda run: sorted({access(a) for a in run["attacks"]}),
        "Knowledge used by the attacks": lambda run: _knowledge(run),
    }
    default = "" if view.payload["declared_in_file"] else "The unit is the default, as no file declares it. "
    return Section("threat", "Threat model", join(
        each_run(view, values, lambda run, name: values[name](run)),
        element("p", f"{default}1.0 of the model's input stands for {scale:g} {unit}. The result holds for the "
                "declared adversary only if the attacks had at least its access and knowledge.", kind="note"),
        element("h3", "Declared by the provider"), declared_facts(view, "threat"),
    ))  # fmt: skip


def access(attack: dict[str, Any]) -> str:
    """Return what an attack needs from the model."""
    return ACCESS.get(attack.get("needs") or "", attack.get("needs") or "not recorded")


def physical(threat: dict[str, Any], unit: str, scale: float, size: int | None) -> str:
    """Return the radius of a threat in physical units.

    >>> physical({"norm": "Linf", "eps": 8 / 255}, "grey levels", 255.0, 784)
    'up to 8 grey levels for each value'
    >>> physical({"norm": "L2", "eps": 0.5}, "grey levels", 255.0, 784)
    '127.5 grey levels in total (root of the sum of squares); 4.554 for each value if spread equally over 784 values'
    """
    eps, norm = threat.get("eps"), threat.get("norm")
    if eps is None or isinstance(eps, list):
        return "smallest distances; no fixed radius" if eps is None else "one radius for each sample"
    total = eps * scale
    kinds = {
        "Linf": ("up to {:.4g} {} for each value", None),
        "L2": ("{:.4g} {} in total (root of the sum of squares)", sqrt),
        "L1": ("{:.4g} {} in total (sum of absolute changes)", float),
    }
    if norm not in kinds:
        return f"up to {eps:g} values, each changed without limit" if norm == "L0" else "no physical unit"
    text, root = kinds[norm]
    spread = (
        f"; {total / root(size):.4g} for each value if spread equally over {size:,} values" if root and size else ""
    )
    return text.format(total, unit) + spread


def _box(box: list[Any] | None, unit: str, scale: float) -> str:
    if not box or not all(isinstance(end, int | float) for end in box):
        return "one range for each value" if box else ""
    return f"{box[0]:g} to {box[1]:g}, or {box[0] * scale:g} to {box[1] * scale:g} {unit}"


def _knowledge(run: dict[str, Any]) -> str:
    adapted = any(check["name"] == "adaptive" for check in run["checks"]) or any(a.get("via") for a in run["attacks"])
    text = "adapted to this model" if adapted else "general attacks, not made for a defence of this model"
    white = any(a.get("needs") == "gradient" for a in run["attacks"])
    return f"{'structure and weights of the model; ' if white else ''}{text}"
