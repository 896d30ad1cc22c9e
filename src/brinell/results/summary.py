"""A Run in words: the summary for the terminal, the sentence for a paper, and the card for a notebook."""

import base64
import math
from html import escape
from typing import TYPE_CHECKING, Any

from brinell.finding import n_samples
from brinell.results.bracket import proved
from brinell.results.evidence import in_short
from brinell.results.format.manifest import EVADE

if TYPE_CHECKING:
    from brinell.results.run import Run

COLOURS = {"reliable": "#0f6b4a", "upper bound": "#3f4a5a", "suspicious": "#8a4b00", "invalid": "#a3211b"}


def sentence(run: "Run") -> str:
    """Return the result as one sentence: model, norm, eps, plan, n, interval, seed and version of Brinell.

    >>> from brinell.results import Run
    >>> sentence(Run.open("tests/results/golden_run_v1"))[:47]
    'Under Linf perturbations of size eps = 8/255, t'
    """
    p, plan, data = run.robust_accuracy, run.identity.plan, run.identity.data.name
    samples = n_samples(p.n).rpartition(" ")[2]
    text = (
        f"{_threat(run)}, {run.identity.model.name or 'the model'} has a robust accuracy of {100 * p.value:.1f} % "
        f"(95 % Wilson interval [{100 * p.low:.1f}, {100 * p.high:.1f}], n = {p.n:,}"
        f"{f' {samples} of {data}' if data else ''}) against the plan {plan.name}"
    )
    text += f" [{plan.citation}]" if plan.citation else ""
    if run.bracket is not None:
        low = run.bracket.certified
        text += f"; {100 * low.value:.1f} % [{100 * low.low:.1f}, {100 * low.high:.1f}] are certified to be robust"
        found = proved(run)
        text += ", so every sample is decided by proof" if found is not None and found.settled else ""
    # A small random sample beside other evidence says little about how much was missed.
    layered = run.layers is not None and bool(run.layers.rings)
    if run.audit is not None and not run.audit.complete and not (layered and run.audit.too_small(p)):
        fallen = f"would lower it by at most {100 * run.audit.bound:.1f} points (95 %, from the audit)"
        text += f"; the full plan ({', '.join(run.audit.attacks)}) {fallen}"
    if run.identity.criterion == EVADE:
        text += "; it has a detector: clean inputs count if right and accepted, adversarials if wrong and accepted"
    if not run.images:
        text += "; every adversarial was verified when it was found, and none is stored"
    text += f" (seed {run.identity.seed}, Brinell {run.environment.brinell or 'of unknown version'})."
    return text if run.finished else f"Provisional, from an unfinished Run: {text}"


def setting(run: "Run") -> str:
    """Return what the robust accuracy of a Run depends on besides the model: threat, plan and data, in short.

    >>> from brinell.results import Run
    >>> setting(Run.open("tests/results/golden_run_v1"))
    'Linf, eps = 8/255, plan golden, toys, n = 6'
    """
    threat, data = run.identity.threat, run.identity.data.name
    radius = "" if threat.eps is None else f", eps = {eps_text(threat.eps_text or threat.eps)}"
    size = f"{threat.norm or 'unnamed threat'}{mask_text(threat.mask)}{radius}"
    return f"{size}, plan {run.identity.plan.name}, {f'{data}, ' if data else ''}n = {run.robust_accuracy.n:,}"


def summary(run: "Run") -> str:
    """Return the plain text that `print(run)` shows: settings, accuracies, attacks, cost and verdict.

    >>> from brinell.results import Run
    >>> summary(Run.open("tests/results/golden_run_v1")).splitlines()[-1].startswith("Under Linf")
    True
    """
    paragraphs = [
        _head(run),
        _accuracies(run),
        _stages(run),
        _cost(run),
        f"verdict   {run.verdict}",
        "\n".join(f"{'' if i else 'evidence':<9} {line}" for i, line in enumerate(in_short(run))),
        f"untested  {' '.join(run.verdict.untested)}",
        "\n".join(["notes", *(f"  - {note}" for note in run.notes)]) if run.notes else "",
        run.sentence(),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def eps_text(eps: Any) -> str:
    """Return an eps as papers write it: 8/255 instead of 0.03137.

    >>> eps_text(8 / 255), eps_text(0.5), eps_text("8/255"), eps_text([0.1, 0.2])
    ('8/255', '0.5', '8/255', 'one value per sample')
    """
    if isinstance(eps, list):
        return "one value per sample"
    if isinstance(eps, str) or float(f"{eps:.4g}") == eps:
        return eps if isinstance(eps, str) else f"{eps:.4g}"
    return f"{eps * 255:.0f}/255" if abs(eps * 255 - round(eps * 255)) < 1e-4 else f"{eps:.6g}"


def mask_text(mask: Any) -> str:
    """Return how many input values a mask allows to change, as words to put after the norm; "" without a mask.

    >>> mask_text({"shape": [1, 2, 2], "bits": "gA=="}), mask_text(None)
    (' of 1 of 4 values', '')
    """
    if mask is None:
        return ""
    try:
        free, size = sum(byte.bit_count() for byte in base64.b64decode(mask["bits"])), math.prod(mask["shape"])
    except (KeyError, TypeError, ValueError):
        return " of some values"
    return f" of {free:,} of {size:,} values"


def _threat(run: "Run") -> str:
    threat = run.identity.threat
    text = f"Under {threat.norm or 'unnamed'} perturbations{mask_text(threat.mask)}"
    return text if threat.eps is None else f"{text} of size eps = {eps_text(threat.eps)}"


def _head(run: "Run") -> str:
    identity = run.identity
    lines = [
        f"Run {run.path}" + ("" if run.finished else " (unfinished: all numbers are provisional)"),
        f"model     {identity.model.name or 'unnamed'}, {identity.model.classes or '?'} classes",
        f"data      {identity.data.name or 'unnamed'}, {run.clean_accuracy.n} samples",
        f"threat    {_threat(run).removeprefix('Under ')}",
        f"plan      {identity.plan.name}, seed {identity.seed}",
    ]
    if run.identity.criterion == EVADE:
        lines.insert(-1, "criterion misclassified and accepted by the detector")
    return "\n".join(lines)


def _accuracies(run: "Run") -> str:
    lines = [f"clean accuracy    {run.clean_accuracy}", f"robust accuracy   {run.robust_accuracy}"]
    if run.bracket is not None:
        lines += [f"{'' if i else 'bracket':<17} {line}" for i, line in enumerate(run.bracket.lines)]
    if run.repeats is not None:
        lines.append(f"single passes     {run.repeats}")
    return "\n".join(lines)


def _stages(run: "Run") -> str:
    if not run.attacks:
        return ""
    steps = run.steps()
    width = max(len("attack"), *(len(name) for name in run.attacks))
    lines = [f"{'attack':<{width}}   attacked   broken   accuracy after"]
    for stage, accuracy in steps:
        lines.append(f"{stage.attack:<{width}}   {stage.attacked:>8}   {stage.broken:>6}   {accuracy}")
    lines += [run.idle] if run.idle else []
    if run.identity.individual:
        lines += ["", f"{'attack':<{width}}   accuracy under it alone"]
        lines += [f"{name:<{width}}   {accuracy}" for name, accuracy in run.accuracy_alone()]
    return "\n".join(lines)


def _cost(run: "Run") -> str:
    cost = run.cost
    lines = [
        f"cost      {cost.forwards} forwards, {cost.backwards} backwards, {cost.seconds:.1f} s of compute"
        + ("" if run.wall_seconds is None else f", {run.wall_seconds:.1f} s on the clock"),
        f"          per sample {cost.forwards_per_sample:.1f} forwards, {cost.backwards_per_sample:.1f} backwards, "
        f"{cost.seconds_per_sample:.3g} s",
    ]
    if run.audit is not None and run.audit.cost.forwards:
        spent = run.audit.cost
        names = ", ".join(stage.attack for stage, _ in run.steps() if stage.attack in run.audit.attacks)
        lines.append(f"          of this {names} {spent.forwards} forwards, {spent.backwards} backwards")
    return "\n".join(lines)


def card(run: "Run") -> str:
    """Return a Run as an HTML card for notebooks, with accuracies and verdict, without scripts or external styles.

    >>> from brinell.results import Run
    >>> "33.3 %" in card(Run.open("tests/results/golden_run_v1"))
    True
    """
    robust, verdict, state = run.robust_accuracy, run.verdict, "" if run.finished else ", unfinished"
    name = run.identity.model.name or run.path.name
    level = f'<b style="color:{COLOURS[verdict.level]}">{verdict.level}</b>'
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    after = [("clean", run.clean_accuracy), *((stage.attack, p) for stage, p in run.steps())]
    rows = "".join(
        f'<tr><td style="text-align:left">{escape(stage)}</td><td>{100 * p.value:.1f} %</td>'
        f"<td>[{100 * p.low:.1f}, {100 * p.high:.1f}]</td><td>{_bar(p.value)}</td></tr>"
        for stage, p in after
    )
    return (
        '<div style="border:1px solid #8886;border-radius:8px;padding:.8em 1em;max-width:44em;line-height:1.45">'
        f"<div><b>{escape(name)}</b>, plan {escape(run.identity.plan.name)}{state}</div>"
        f'<div style="font-size:2em;font-weight:650">{100 * robust.value:.1f} %</div>'
        f"<div>robust accuracy, 95 % interval [{100 * robust.low:.1f}, {100 * robust.high:.1f}], n = {robust.n:,}</div>"
        f'<table style="margin:.6em 0"><thead><tr><th style="text-align:left">after</th><th>accuracy</th><th>interval'
        f"</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
        f'<div>verdict: {level}</div><ul style="margin:.2em 0 0;padding-left:1.2em">{reasons}</ul></div>'
    )


def _bar(share: float) -> str:
    width = 0.0 if math.isnan(share) else 100 * share
    return (
        '<div style="width:12em;background:#8883;border-radius:3px"><div style="height:.7em;border-radius:3px;'
        f'background:#0072b2;width:{width:.1f}%"></div></div>'
    )
