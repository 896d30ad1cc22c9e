"""Probe one attack on one model: tell a robust model from a failed attack."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.attacks import Pursuit
from brinell.core.attack import Requires
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.model import Classifier, Output
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle
from brinell.errors import InputError, PlanError
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.finding import Finding
from brinell.reliability.probes import experiments, indicators
from brinell.reliability.probes.experiments import QUERIES, PassCount, ProbedAttack
from brinell.reliability.probes.indicators import NEIGHBOURS, Trajectories, TrajectoryRecorder
from brinell.reliability.probes.result import Probes

if TYPE_CHECKING:
    from typing_extensions import Unpack

SAMPLES = 64


def probe(
    classifier: ModelLike, problem: DataLike, threat: Threat, attack: PlanLike = "apgd-ce",
    *, surrogate: ModelLike | None = None, stage: str | None = None, samples: int = SAMPLES,
    neighbours: int = NEIGHBOURS, queries: int = QUERIES, progress: bool | None = False,
    **options: "Unpack[ComputeOptions]",
) -> Probes:  # fmt: skip
    """Look for signs that an attack fails for reasons other than the model's robustness.

    Method: the attack (the first stage of a plan, or the stage named `stage`) runs to the end of its budget on the
    first `samples` samples. Its trajectories give the six indicators of Pintor et al. 2022. Then come experiments whose
    outcome is known if the attack works: accuracy drops to zero as the threat grows to the whole box; a black-box
    attack with `queries` queries and random noise break no sample that the attack missed; twice the steps break the
    same samples; margins grow more along the gradient than in a random direction. With a `surrogate` the attack runs on
    the surrogate, and its adversarials are then shown to the classifier. `options` are `seed`, `slots` and `device`.
    Cost: counted in the result; about five times the cost of the attack. Reference: Pintor et al. 2022, Indicators of
    attack failure; Carlini et al. 2019, On evaluating adversarial robustness.

    >>> import brinell
    >>> result = probe("demo", brinell.data.load("demo", 12), brinell.Linf(0.1), brinell.attacks.APGD(20), neighbours=4)
    >>> result.level, len(result.items)
    ('ok', 10)
    """
    execution = Execution.from_options(options, ComputeOptions)
    evaluated = coerce.as_classifier(classifier, execution.device)
    model = evaluated if surrogate is None else coerce.as_classifier(surrogate, execution.device)
    if samples < 1:
        raise InputError(
            expected="at least 1 sample", got=f"{samples}", remedy=f"Omit `samples` for the default, {SAMPLES}."
        )
    data = coerce.as_problem(problem)[:samples]
    with precisions.exact(model.device), show_progress(progress) as listener:
        bound = coerce.as_threat(threat)
        plan = _only(coerce.as_plan(attack), stage, bound)
        probed = _probed_attack(model, data, bound, plan, execution, listener)
        return _probe(probed, evaluated, surrogate is None, neighbours, queries)


def _only(plan: Plan, name: str | None, threat: Threat) -> Plan:
    stages = plan.stages_for(threat)
    kept = tuple(s for s in stages if name in (None, s.name))[:1]
    if not kept:
        raise PlanError(
            expected=f"a stage among {', '.join(s.name for s in stages)}",
            got=repr(name),
            remedy="Pass one of these names, or omit `stage` for the first stage.",
        )
    return replace(plan, stages=kept)


def _probed_attack(
    model: Classifier, data: Any, threat: Threat, plan: Plan, execution: Execution, listener: Listener
) -> ProbedAttack:
    if plan.draws > 1:
        raise PlanError(
            expected="a plan for deterministic models", got=plan.name, remedy="Pass one attack, e.g. APGD()."
        )
    prepared = prepare(model, data, threat, plan, execution, listener)
    clean = prepared.clean(next(prepared.chunks()))
    passes = PassCount()
    passes.add(len(clean.chunk))
    at = clean.correct.nonzero()[:, 0]
    if not len(at):
        raise InputError(
            expected="at least one sample that the model classifies correctly",
            got="only misclassified samples",
            remedy="Check the labels of the data and the normalisation of the inputs.",
        )
    (stage,) = prepared.plan.stages_for(threat)
    listener(Note(f"Probing {stage.name} on {len(at)} samples."))
    return ProbedAttack(prepared, stage, clean, at, passes)


def _probe(b: ProbedAttack, evaluated: Classifier, same: bool, neighbours: int, queries: int) -> Probes:
    everyone = torch.ones(len(b.at), dtype=torch.bool, device="cpu")
    criterion, stage = b.prepared.context.criterion, b.stage
    recorder = TrajectoryRecorder(b.prepared.context, criterion, len(stage.attempts()), stage.attack.queries, len(b.at))
    broken, points = b.run(stage, everyone, observe=recorder)
    t = recorder.trajectories()
    curve = experiments.curve(b, broken)
    surface, misled = experiments.surface(b)
    items = [
        *_indicators(b, t, neighbours),
        indicators.transfer_failure(*_labels(b, evaluated, broken, points), same),
        experiments.unconstrained(b, curve),
        experiments.black_box(b, broken, queries),
        experiments.more_steps(b, broken),
        experiments.noise(b, broken),
        experiments.along_the_gradient(misled),
    ]
    return Probes(
        stage.name, len(b.at), tuple(items), b.passes.forwards, b.passes.backwards,
        tuple(curve), surface, int(broken.sum()), tuple(b.prepared.notes),
    )  # fmt: skip


def _indicators(b: ProbedAttack, t: Trajectories, neighbours: int) -> list[Finding]:
    attack, criterion = b.stage.attack, b.prepared.context.criterion
    near = indicators.stability(b.oracle, criterion, b.x, b.y, b.prepared.context.seed, neighbours)
    b.passes.add(near.forwards * len(b.at))
    keeps_best = attack.minimum_norm or attack.requires is Requires.LOGITS or isinstance(attack, Pursuit)
    return [
        indicators.unavailable_gradients(t),
        indicators.unstable_predictions(near),
        indicators.silent_success(t, keeps_best),
        indicators.incomplete_optimisation(t),
    ]


def _labels(b: ProbedAttack, evaluated: Classifier, broken: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes that the attacked and the evaluated model give to the adversarials found; −1: rejected."""
    if not bool(broken.any()):
        return torch.zeros(0, dtype=torch.float32, device="cpu"), torch.zeros(0, dtype=torch.float32, device="cpu")
    x = points[broken].to(b.clean.logits.device)
    b.passes.add(2 * len(x))
    both = b.oracle.output(x), Oracle(evaluated, b.oracle.block).output(x)
    return _label(both[0]), _label(both[1])


def _label(out: Output) -> Tensor:
    label = out.logits.argmax(1)
    return label if out.reject is None else torch.where(out.reject <= 0, label, -1)
