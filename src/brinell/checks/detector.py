"""Check how the plan handles a detector, and give the attacks the natural inputs that the detector accepts."""

from dataclasses import replace
from typing import Any

import torch

from brinell.core.attack import Requires
from brinell.core.dataset import Chunk
from brinell.core.model import Output
from brinell.core.plan import Plan, Stage, Stages
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import ModelError, PlanError, first_line
from brinell.finding import Finding
from brinell.ops.losses import LOSSES
from brinell.ops.rowwise import flat
from brinell.results import Proportion

PLAN = "detector"


def _considers_detector(s: Stage) -> bool:
    """Return whether the stage considers the detector: it uses the detector's score or imitates accepted inputs."""
    return s.attack.joins_detector or LOSSES[s.attack.loss].matches


def fit_to_detector(plan: Plan, threat: Threat, classifier: Any, answer: Output) -> tuple[Plan, list[str]]:
    """Return the plan fitted to the classifier's detector, and a note for every stage left out.

    A stage that imitates natural inputs gets accepted inputs from the detector, or is left out if there are none.
    """
    if answer.reject is None:
        blind = [s.name for s in plan.stages_for(threat) if s.attack.joins_detector]
        if blind:
            raise PlanError(
                expected=f"a model with a detector for {', '.join(blind)}",
                got="a model without a detector",
                remedy="Add a detector, brinell.wrap(net, detector=…), or use the plan autoattack.",
            )
    references = classifier.references
    stages: list[Stage] = []
    notes: list[str] = []
    for s in plan.stages_for(threat):
        if not s.attack.lacks_references:
            stages.append(s)
        elif references is None or (LOSSES[s.attack.loss].of == "features" and references.features is None):
            what = "accepted natural inputs" if references is None else "features"
            notes.append(f"{s.name}: left out, since the model has no {what} to imitate (see brinell.calibrated).")
        else:
            stages.append(replace(s, attack=s.attack.with_references(references)))
    if not stages:
        raise PlanError(
            expected="a model with accepted natural inputs that the attacks imitate",
            got="a model without such inputs",
            remedy="Calibrate the detector, which stores such inputs: brinell.calibrated(model, data).",
        )
    return replace(plan, stages=tuple(stages)), notes


def run_detector_checks(oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, answer: Output) -> list[Finding]:
    """Check that an attack of the plan considers the detector, and that the detector's score has gradients."""
    if answer.reject is None:
        return []
    share = Proportion(int((answer.reject > 0).sum()), len(answer.reject))
    facts = f"the detector rejects {share} clean inputs"
    if oracle.classifier.detector_rule:
        facts += f" ({oracle.classifier.detector_rule})"
    checks = [Finding("clean rejections", "ok", facts)]
    if not any(_considers_detector(s) for s in plan.stages_for(threat)):
        text = (
            f"the model has a detector, and no attack of the plan {plan.name} tries to evade it: robust accuracy may "
            f"be far too high; use the plan {PLAN}."
        )
        return [*checks, Finding("detector ignored", "warn", text)]
    return [*checks, *_check_detector_gradient(oracle, plan.stages_for(threat), first)]


def _check_detector_gradient(oracle: Oracle, stages: Stages, first: Chunk) -> list[Finding]:
    stage = next((s for s in stages if s.attack.requires is Requires.DETECTOR), None)
    if stage is None:
        return []
    n = min(len(first), oracle.checked)
    x, y = (v[:n].to(oracle.classifier.device) for v in (first.x, first.y))
    try:
        a = oracle.query(x, y, torch.full_like(y, -1), "margin", Requires.DETECTOR)
    except RuntimeError as error:
        raise ModelError(
            expected="a detector with gradients with respect to the input",
            got=first_line(error),
            remedy="Wrap non-differentiable parts of the detector with brinell.models.bpda, or use the plan blackbox.",
        ) from error
    dead = float((flat(a.score_gradient) == 0).all(1).float().mean())
    name = "zero gradient (detector)"
    if dead < 1:
        facts = f"the gradient of the detector's score is zero at {100 * dead:.0f} % of the points checked"
        return [Finding(name, "ok", facts)]
    return [
        Finding(
            name,
            "warn",
            "the gradient of the detector's score is exactly zero at every point checked: attacks cannot follow "
            "it to evade the detector. Remove thresholds and quantisation from the score, or use brinell.models.bpda.",
        )
    ]
