"""Write the documentation pages made of docstrings: one per attack, one per plan, and the interface."""

import dataclasses
import inspect
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import brinell
from brinell.attacks.catalogue import PLANS
from brinell.core.plan import Plan, Stage

BROKEN = "A sample leaves the attack when it breaks."
STRENGTHS = {
    "weak": "The result is an upper bound only, and the verdict [says so](../../verdict.md#weak-plan).",
    "audited": "The survivors nearest the boundary and a random sample are attacked at full strength, all of them if "
    "too much is found. Masked gradients make the plan stop early; this evidence and the checks detect it.",
    "standard": "The standard of the field, but no proof. Randomised models need `autoattack-rand`, and models with a "
    "detector the plan `detector`. A defence built against these attacks needs an attack built against it.",
}
LABELS = ("Method", "Cost per step", "Cost", "Reference", "Limits")
LABEL = re.compile(rf"(?:(?<=\n)|(?<=\. )|(?<=\.\n))({'|'.join(LABELS)}): (.)")


def write(folder: Path) -> None:
    """Write all pages."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and Markdown of every page."""
    attacks = [getattr(brinell.attacks, name) for name in brinell.attacks.__all__]
    yield (
        "attacks/index.md",
        _index("Attacks", "One page per attack.", [(slug(a), a.__name__, first(a)) for a in attacks]),
    )
    for cls in attacks:
        yield f"attacks/{slug(cls)}.md", attack_page(cls)
    listed = [(p.name.replace("+", "-plus"), p.name, p.description) for p in PLANS.values()]
    yield "plans/index.md", _index("Plans", "Combinations of attacks, by name.", listed)
    for (name, *_), p in zip(listed, PLANS.values(), strict=True):
        yield f"plans/{name}.md", plan_page(p)
    yield "api.md", api_page()


def slug(cls: type) -> str:
    """Return the name of the page of an attack.

    >>> slug(brinell.attacks.HopSkipJump)
    'hopskipjump'
    """
    return cls.__name__.lower()


def first(thing: object) -> str:
    """Return the first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def attack_page(cls: type) -> str:
    """Return method, cost, reference, limits and settings of an attack, from its docstring."""
    lines = [f"# {cls.__name__}", "", document(cls), "", "## Settings", "", "| setting | default |", "|---|---|"]
    # A class attribute is not a setting.
    fields: Any = dataclasses.fields(cls)  # type: ignore[arg-type]
    lines += [f"| `{f.name}` | `{_default(f)}` |" for f in fields]
    plans = [p.name for p in PLANS.values() if any(_holds(s.attack, cls) for s in _stages(p))]
    if plans:
        links = ", ".join(f"[{name}](../plans/{name.replace('+', '-plus')}.md)" for name in plans)
        lines += ["", f"Plans with this attack: {links}."]
    return "\n".join([*lines, ""])


def plan_page(plan: Plan) -> str:
    """Return the stages of a plan, their largest cost and the reference."""
    lines = [f"# Plan `{plan.name}`", "", f"{plan.description}.", ""]
    lines += [f"Strength: *{plan.strength}*. {STRENGTHS[plan.strength]}", "", f"Reference: {plan.citation}.", ""]
    lines += ["| stage | attack | targets | restarts | model calls per sample at most |", "|---|---|---|---|---|"]
    for s in next(iter(_by_norm(plan).values())):
        page = f"[{type(s.attack).__name__}](../attacks/{slug(type(s.attack))}.md)"
        targets, calls = len(s.ranks) or 1, s.attack.queries * (len(s.ranks) or 1) * s.restarts * s.eot
        lines.append(f"| {s.name} | {page} | {targets} | {s.restarts} | {calls:,} |")
    lines += ["", "A model call is a forward pass, plus a backward pass if the attack uses gradients.", BROKEN]
    if "L2" not in _by_norm(plan) and len(set(_by_norm(plan).values())) > 1:
        lines += ["", "In L1 the stages have more restarts and fewer targets, and start with larger radii."]
    if "L2" in _by_norm(plan):
        lines += ["", "Which stages run depends on the norm."]
    lines += ["", "```bash", f"brinell evaluate --model M --data D --eps 8/255 --plan {plan.name}", "```", ""]
    return "\n".join(lines)


def api_page() -> str:
    """Return signature and docstring of every public name."""
    lines = ["# Interface", "", "Every public name. [The Python page](../python.md) has an example of each.", ""]
    for name in brinell.__all__:
        thing = getattr(brinell, name)
        if inspect.ismodule(thing):
            lines += [f"## brinell.{name}", "", first(thing), ""]
            for inner in getattr(thing, "__all__", ()):
                lines += _entry(f"brinell.{name}.{inner}", getattr(thing, inner), "###")
        else:
            lines += _entry(f"brinell.{name}", thing, "##")
    return "\n".join(lines)


def _entry(name: str, thing: Any, level: str) -> list[str]:
    if inspect.ismodule(thing) or not callable(thing):
        return [f"{level} {name}", "", first(thing) if inspect.ismodule(thing) else "", ""]
    lines = [
        f"{level} {name}",
        "",
        "```py",
        f"{name.rpartition('.')[2]}{_signature(thing)}",
        "```",
        "",
        document(thing),
        "",
    ]
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            text = inspect.getdoc(value) if not method.startswith("_") else None
            if text and (callable(value) or isinstance(value, property | classmethod | staticmethod)):
                lines += [f"- `.{method}`: {first(value)}"]
        lines.append("")
    return lines


def _signature(thing: Any) -> str:
    try:
        sign = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(…)"
    # Names and defaults only: the types would fill the page.
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in sign.parameters.values()]
    return re.sub(r"<[^<>]*>", "…", str(sign.replace(parameters=plain, return_annotation=inspect.Signature.empty)))


def document(thing: object) -> str:
    """Return a docstring as Markdown: labels in bold on separate lines, examples as blocks."""
    text = inspect.getdoc(thing) or ""
    prose, _, example = text.partition("\n>>> ")
    prose = LABEL.sub(lambda m: f"\n\n**{m[1]}.** {m[2].upper()}", "\n" + prose).strip().replace("|", "\\|")
    prose = re.sub(r" *\n{2,}", "\n\n", prose)
    return prose + (f"\n\n```pycon\n>>> {example.rstrip()}\n```" if example else "")


def _by_norm(plan: Plan) -> Mapping[str, tuple[Stage, ...]]:
    return plan.stages if isinstance(plan.stages, Mapping) else {"Linf": plan.stages}


def _stages(plan: Plan) -> list[Stage]:
    by_norm = _by_norm(plan)
    return [*by_norm["Linf"], *(() if "L2" in by_norm else by_norm.get("L1", ()))]


def _holds(attack: Any, cls: type) -> bool:
    return type(attack) is cls or any(_holds(getattr(attack, field), cls) for field in attack.parts)


def _default(field: Any) -> str:
    return "required" if field.default is dataclasses.MISSING else repr(field.default)


def _index(title: str, intro: str, entries: list[tuple[str, str, str]]) -> str:
    table = [f"| [{label}]({page}.md) | {text} |" for page, label, text in entries]
    tree = ["```{toctree}", ":hidden:", *(page for page, *_ in entries), "```"]
    return "\n".join([f"# {title}", "", intro, "", "| | |", "|---|---|", *table, "", *tree, ""])


if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
