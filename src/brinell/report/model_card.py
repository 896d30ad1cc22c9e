"""A snippet for a model card: metadata as Hugging Face reads it, and a table for people."""

import json
from collections.abc import Iterator, Sequence

from brinell.report.paper_text import label, threat_text
from brinell.results import Proportion, Run


def as_model_card(runs: Sequence[Run]) -> str:
    """Return the metadata (`model-index`) and a section in Markdown about the Runs, for the README of a model.

    >>> card = as_model_card([Run.open("tests/results/golden_run_v1")])
    >>> card.splitlines()[:2], "## Adversarial robustness" in card
    (['---', 'model-index:'], True)
    """
    models: dict[str, list[Run]] = {}
    for run in runs:
        models.setdefault(label(run), []).append(run)
    metadata = [line for name, own in models.items() for line in _model(name, own)]
    certified = ("certified accuracy",) if any(run.certified_accuracy for run in runs) else ()
    head = ("model", "data", "threat", "attacks", "clean accuracy", *certified, "robust accuracy", "verdict")
    rows = [head, ("---",) * len(head), *(_row(run, bool(certified)) for run in runs)]
    table = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    sentences = [line for run in runs for line in ("", f"{run.sentence()} Verdict: {run.verdict}")]
    return "\n".join(
        ["---", "model-index:", *metadata, "---", "", "## Adversarial robustness", "", *table, *sentences, ""]
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _row(run: Run, certified: bool) -> tuple[str, ...]:
    i = run.identity
    proved = (str(run.certified_accuracy or "–"),) if certified else ()
    accuracies = str(run.clean_accuracy), *proved, str(run.robust_accuracy)
    return (label(run), i.data.name or "own data", threat_text(run), i.plan.name, *accuracies, run.verdict.level)


def _text(value: object) -> str:
    # A JSON value is a YAML value.
    return json.dumps(value, ensure_ascii=False)


def _model(name: str, runs: Sequence[Run]) -> Iterator[str]:
    yield f"- name: {_text(name)}"
    yield "  results:"
    for run in runs:
        data = run.identity.data.name or "own data"
        yield "  - task:"
        yield "      type: image-classification"
        yield "    dataset:"
        yield f"      name: {_text(data)}"
        yield f"      type: {_text(data.partition('/')[0].lower())}"
        yield "    metrics:"
        yield from _metric("accuracy", "Clean accuracy", run.clean_accuracy, {})
        yield from _metric("robust_accuracy", f"Robust accuracy, {threat_text(run)}", run.robust_accuracy, _facts(run))
        if run.certified_accuracy is not None:
            name = f"Certified accuracy, {threat_text(run)}"
            yield from _metric("certified_accuracy", name, run.certified_accuracy, {})


def _facts(run: Run) -> dict[str, object]:
    i = run.identity
    return {
        "threat": threat_text(run), "norm": i.threat.norm, "eps": i.threat.eps_text, "plan": i.plan.name,
        "seed": i.seed, "verdict": run.verdict.level, "brinell": run.environment.brinell,
    }  # fmt: skip


def _metric(kind: str, name: str, p: Proportion, more: dict[str, object]) -> Iterator[str]:
    yield f"    - type: {kind}"
    yield f"      name: {_text(name)}"
    yield f"      value: {p.value:.6g}"
    yield "      args:"
    interval = [round(p.low, 6), round(p.high, 6)]
    for key, value in {"n": p.n, "correct": p.k, "interval_95": interval, **more}.items():
        yield f"        {key}: {_text(value)}"
