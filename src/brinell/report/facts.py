"""A Run as plain data for scripts, computed from its rows."""

from dataclasses import asdict
from typing import Any

from brinell.results import Audit, Layers, Proportion, Run
from brinell.results.bracket import OPEN


def proportion(p: Proportion) -> dict[str, Any]:
    """Return a proportion as a dict: its value, 95 % interval, n and k.

    >>> proportion(Proportion(1, 4))["value"]
    0.25
    """
    return {"value": p.value, "low": p.low, "high": p.high, "n": p.n, "k": p.k}


def facts(run: Run) -> dict[str, Any]:
    """Return a Run as JSON-compatible data: accuracies, cost, audit, layers, verdict, and what was evaluated.

    >>> facts(Run.open("tests/results/golden_run_v1"))["robust_accuracy"]["k"]
    2
    """
    alone = dict(run.accuracy_alone()) if run.identity.individual else {}
    return {
        "path": str(run.path),
        "clean_accuracy": proportion(run.clean_accuracy),
        "robust_accuracy": proportion(run.robust_accuracy),
        "certified_accuracy": None if run.bracket is None else proportion(run.bracket.certified),
        "bracket": _bracket(run),
        "stages": [
            {"attack": name, **proportion(p), **({"alone": proportion(alone[name])} if name in alone else {})}
            for name, p in run.accuracy_after()
        ],
        "cost": {"forwards": run.cost.forwards, "backwards": run.cost.backwards, "seconds": run.cost.seconds},
        "audit": None if run.audit is None else _audit(run.audit),
        "layers": None if run.layers is None else _layers(run.layers),
        "verdict": {
            "level": run.verdict.level,
            "reasons": list(run.verdict.reasons),
            "docs": [finding.anchor for finding in run.verdict.findings],
            "evidence": list(run.verdict.evidence),
            "untested": list(run.verdict.untested),
        },
        "notes": run.notes,
        "threat": run.identity.threat.raw,
        "goal": run.identity.criterion,
        "plan": run.identity.plan.name,
        "seed": run.identity.seed,
        "sentence": run.sentence(),
    }


def _bracket(run: Run) -> dict[str, Any] | None:
    found = run.bracket
    if found is None:
        return None
    open_ids = [i for i, state in run.states().items() if state == OPEN]
    return {
        "width": found.width,
        "open": found.open,
        "open_ids": open_ids,
        "methods": [asdict(m) for m in found.methods],
    }


def _layers(found: Layers) -> dict[str, Any]:
    return {
        "search": [asdict(stage) for stage in found.search],
        "near": [asdict(stage) for stage in found.near],
        "rings": [asdict(ring) for ring in found.rings],
        "complete": found.complete,
    }


def _audit(a: Audit) -> dict[str, Any]:
    return {
        "survivors": a.survivors,
        "audited": a.audited,
        "found": a.found,
        "missed_at_most": a.missed,
        "bound": a.bound,
        "objects": a.objects,
        "cost": {"forwards": a.cost.forwards, "backwards": a.cost.backwards, "seconds": a.cost.seconds},
    }
