"""Is the model robust, or did the attack fail? Indicators, and experiments that must turn out one way."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import Pursuit
from brinell.core.attack import Requires
from brinell.core.model import Classifier, Output
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle
from brinell.errors import InputError, PlanError
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import listening
from brinell.finding import Finding
from brinell.ops.norms import Norm
from brinell.reliability.probes import experiments, indicators
from brinell.reliability.probes.experiments import QUERIES
from brinell.reliability.probes.indicators import NEIGHBOURS
from brinell.reliability.probes.probed_attack import PassCount, ProbedAttack
from brinell.reliability.probes.result import Probes
from brinell.reliability.probes.trajectories import Trajectories, TrajectoryRecorder

SAMPLES = 64


def probe(
    classifier: Any,
    problem: Any,
    threat: Threat,
    attack: Any = "apgd-ce",
    *,
    surrogate: Any = None,
    stage: str | None = None,
    samples: int = SAMPLES,
    neighbours: int = NEIGHBOURS,
    queries: int = QUERIES,
    seed: int = 0,
    slots: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = False,
) -> Probes:
    """Look for signs that an attack fails for reasons other than the model's robustness.

    Method: the attack (of a plan its first stage, or the one called `stage`) runs to the end of its budget on the first
    `samples` samples; the six indicators of Pintor et al. 2022 are computed from what it did, and experiments are
    made that must turn out one way: accuracy falls to zero as the threat grows to the whole box, an attack without
    gradients (`queries` passes) and pure noise find nothing that it missed, twice the steps lose nothing, and margins
    grow more along the gradient than at random. With a `surrogate` the attack runs on that, and what it finds is shown
    to the classifier. Cost: counted in the result; about five times that of the attack. Reference: Pintor et al. 2022,
    Indicators of attack failure; Carlini et al. 2019, On evaluating adversarial robustness.

    >>> import brinell
    >>> found = probe("demo", brinell.data.load("demo", 12), brinell.Linf(0.1), brinell.attacks.APGD(20), neighbours=4)
    >>> found.level, len(found.items)
    ('ok', 10)
    """
    evaluated = coerce.as_classifier(classifier, device)
    model = evaluated if surrogate is None else coerce.as_classifier(surrogate, device)
    if samples < 1:
        raise InputError(expected="at least 1 sample", got=f"{samples}", remedy=f"Leave it out for {SAMPLES}.")
    data = coerce.as_problem(problem)[:samples]
    with precisions.exact(model.device), listening(progress) as listener:
        bound = coerce.as_threat(threat)
        plan = _only(coerce.as_plan(attack), stage, bound.norm)
        bench = _bench(model, data, bound, plan, seed, slots, listener)
        return _probe(bench, evaluated, surrogate is None, neighbours, queries)


def _only(plan: Plan, name: str | None, norm: Norm) -> Plan:
    """The plan cut down to one of its stages for a norm."""
    stages = plan.stages_in(norm.name, norm.sparse)
    kept = tuple(s for s in stages if name in (None, s.name))[:1]
    if not kept:
        raise PlanError(
            expected=f"a stage among {', '.join(s.name for s in stages)}", got=repr(name), remedy="See the plan."
        )
    return replace(plan, stages=kept, sparse_stages=None, norm_stages=())


def _bench(
    model: Classifier, data: Any, threat: Threat, plan: Plan, seed: int, slots: int | None, listener: Listener
) -> ProbedAttack:
    if plan.draws > 1:
        raise PlanError(
            expected="an attack on a model that is not randomised", got=plan.name, remedy="Probe one of its attacks."
        )
    prepared = prepare(model, data, threat, plan, seed=seed, slots=slots, precision="float32", listener=listener)
    clean = prepared.clean(next(prepared.chunks()))
    spent = PassCount()
    spent.add(len(clean.chunk))
    at = clean.correct.nonzero()[:, 0]
    if not len(at):
        raise InputError(
            expected="samples that the model gets right", got="none", remedy="Check labels and normalisation."
        )
    listener(Note(f"probing {prepared.plan.stages[0].name} on {len(at)} samples"))
    return ProbedAttack(prepared, prepared.plan.stages[0], clean, at, spent)


def _probe(b: ProbedAttack, evaluated: Classifier, same: bool, neighbours: int, queries: int) -> Probes:
    everyone = torch.ones(len(b.at), dtype=torch.bool)
    criterion, stage = b.prepared.context.criterion, b.stage
    witness = TrajectoryRecorder(b.prepared.context, criterion, len(stage.attempts()), stage.attack.queries, len(b.at))
    fell, points = b.run(stage, everyone, observe=witness)
    t = witness.trajectories()
    curve = experiments.curve(b, fell)
    surface, misled = experiments.surface(b)
    items = [
        *_indicators(b, t, neighbours),
        indicators.transfer_failure(*_labels(b, evaluated, fell, points), same),
        experiments.unconstrained(b, curve),
        experiments.black_box(b, fell, queries),
        experiments.more_steps(b, fell),
        experiments.noise(b, fell),
        experiments.along_the_gradient(misled),
    ]
    return Probes(
        stage.name, len(b.at), tuple(items), b.spent.forwards, b.spent.backwards,
        tuple(curve), surface, int(fell.sum()), tuple(b.prepared.notes),
    )  # fmt: skip


def _indicators(b: ProbedAttack, t: Trajectories, neighbours: int) -> list[Finding]:
    attack, criterion = b.stage.attack, b.prepared.context.criterion
    near = indicators.stability(b.oracle, criterion, b.x, b.y, b.prepared.context.seed, neighbours)
    b.spent.add(near.forwards * len(b.at))
    keeps_best = attack.minimum_norm or attack.requires is Requires.LOGITS or isinstance(attack, Pursuit)
    return [
        indicators.unavailable_gradients(t),
        indicators.unstable_predictions(near),
        indicators.silent_success(t, keeps_best),
        indicators.incomplete_optimisation(t),
    ]


def _labels(b: ProbedAttack, evaluated: Classifier, fell: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """What both models say about the adversarials found: the class, or −1 where the input is rejected."""
    if not bool(fell.any()):
        return torch.zeros(0), torch.zeros(0)
    x = points[fell].to(b.clean.logits.device)
    b.spent.add(2 * len(x))
    both = b.oracle.output(x), Oracle(evaluated, b.oracle.block).output(x)
    return _label(both[0]), _label(both[1])


def _label(out: Output) -> Tensor:
    label = out.logits.argmax(1)
    return label if out.reject is None else torch.where(out.reject <= 0, label, -1)
