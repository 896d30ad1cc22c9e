"""Measure a robustness curve by an evaluation without a radius, combined with the distances in existing Runs."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from brinell.arguments import CertifyLike, DataLike, ModelLike, PlanLike
from brinell.core.dataset import Problem, sample_hashes
from brinell.core.execution import Execution, ExecutionOptions
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.core.threat import threat as threat_of
from brinell.curves.curve import Curve, smallest_distances
from brinell.engine.precision import AUTO
from brinell.errors import RunError
from brinell.evaluation import coerce
from brinell.evaluation.evaluate import evaluate
from brinell.evaluation.plan import adapt, require_suitable
from brinell.results import Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

# More classes than the targets of any plan.
MANY = 1000
# The method of certified curves: every sample is certified at several radii.
CHEAP = "crown"


def curve(
    classifier: ModelLike, problem: DataLike, norm: str | float = "L2", plan: PlanLike = "minimal",
    *, known: Sequence["Run | str | os.PathLike[str]"] = (), out: str | os.PathLike[str] | None = None,
    resume: bool = False, progress: bool | None = None, certify: CertifyLike = False,
    **options: "Unpack[ExecutionOptions]",
) -> Curve:  # fmt: skip
    """Measure the robustness curve of a model: the smallest distance at which attacks break each sample.

    Method: every attack of the plan runs on every correctly classified sample; the smallest verified distance counts.
    `known` are Runs of the same model, in any norm and with any radius: the distances of their adversarials count too,
    and a stage of the plan is not repeated if one of these Runs contains it for all samples. `options` are those of
    `brinell.Execution`. `certify=True` also finds, by bisection, the largest radius at which CROWN certifies each
    sample; another method or a Certifier can be passed instead. `Curve.at_most` is then an upper bound. The other
    arguments are those of `brinell.evaluate`; the Run is stored in `out`.

    >>> import brinell
    >>> c = curve("demo", brinell.data.load("demo", 16), "Linf", "minimal-quick", progress=False)
    >>> c.n, c.unresolved, 0 <= c.median < 1
    (16, 0, True)
    """
    coerce.require_folder(resume, out)
    execution = Execution.from_options(options)
    data = coerce.as_problem(problem)
    model = coerce.as_classifier(classifier, execution.device, data)
    runs = [Run.open(run) for run in known]
    for run in runs:
        coerce.require_same_model(run, model)
    threat = threat_of(norm, math.inf)
    norm = threat.norm.name
    ids, hashes = _samples(data)
    remaining = _without(coerce.as_plan(plan), threat, data, runs, ids, execution)
    if remaining is not None:
        made = evaluate(model, data, threat, remaining, out=out, resume=resume, execution=execution, progress=progress)
        runs = [*runs, made]
    best = dict.fromkeys(ids.tolist(), math.inf)
    for run in runs:
        for i, d in adversarial_distances(run, threat, data, dict(zip(ids.tolist(), hashes, strict=True))).items():
            best[i] = min(best[i], d)
    attacks = tuple(dict.fromkeys(name for run in runs for name in run.attacks))
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    path = runs[-1].path if runs else None
    found = Curve(norm, ids, np.array([best[i] for i in ids.tolist()]), model.name, hashes, attacks, path, notes)
    if not certify:
        return found
    return replace(found, certified=_certified(_own(runs, threat), model, data, best, certify, progress))


def _own(runs: list[Run], threat: Threat) -> Run:
    """Return the Run of the curve itself, which stores the certificates."""
    own = [run for run in runs if run.identity.threat.unbounded and run.identity.threat.norm == threat.norm.name]
    if not own:
        raise RunError(
            expected=f"a Run without a radius in {threat.norm.name}, to store the certificates in",
            got="only other Runs",
            remedy="Add one as `known` (--known), or measure the curve without --known.",
        )
    return own[-1]


def _certified(
    run: Run, model: Any, data: Problem, best: dict[int, float], method: Any, progress: bool | None
) -> "npt.NDArray[np.float64]":
    from brinell.evaluation.certificates.radii import certify_radii
    from brinell.models import Smoothed

    chosen = method if method is not True else None if isinstance(model, Smoothed) else CHEAP
    radii = certify_radii(run, model, data, best, method=chosen, progress=progress).certified_radii()
    return np.array([radii.get(i, 0.0) for i in best])


def require_norms(plan: Any, norms: Sequence[str], data: Problem) -> None:
    """Raise an error if the plan has an attack that does not work in one of the norms, before any attack runs."""
    for norm in norms:
        threat = threat_of(norm, math.inf)
        # The number of classes changes losses and targets, not norms.
        require_suitable(adapt(coerce.as_plan(plan), threat, classes=MANY, image=len(data.shape()) == 3)[0], threat)


def _samples(data: Problem) -> tuple[Any, tuple[str, ...]]:
    chunks = list(data.chunks(4096))
    ids = torch.cat([c.ids for c in chunks]).numpy()
    return ids, tuple(h for c in chunks for h in sample_hashes(c.x))


def _without(plan: Plan, threat: Threat, data: Problem, runs: list[Run], ids: Any, execution: Execution) -> Plan | None:
    """Return the plan without the stages that one of `runs` contains for all samples; None if no stage remains."""
    held: set[str] = set()
    classes = None
    for run in runs:
        identity = run.identity
        classes = identity.model.classes
        alike = identity.threat.raw == threat.to_json() and identity.seed == execution.seed
        if alike and execution.precision in (AUTO, identity.precision) and run.finished and _covers(run, ids):
            held |= {stage.hash for stage in identity.plan.stages if stage.hash is not None}
    if not held or classes is None:
        return plan
    image = len(data.shape()) == 3
    fitted, _ = adapt(plan, threat, classes=classes, image=image)
    stages = tuple(s for s in fitted.stages_for(threat) if s.to_json()["hash"] not in held)
    return replace(fitted, stages=stages) if stages else None


def _covers(run: Run, ids: Any) -> bool:
    return set(ids.tolist()) <= coerce.stored_samples(run).keys()


def adversarial_distances(run: Run, threat: Threat, data: Problem, hashes: dict[int, str]) -> dict[int, float]:
    """Return a dict from sample id to the smallest distance of the Run's adversarials in the threat's norm."""
    changed = [i for i, (h, _) in coerce.stored_samples(run).items() if hashes.get(i, h) != h]
    if changed:
        raise RunError(
            expected="Runs with the inputs of this data set",
            got=f"another input under id {changed[0]} in {run.path}",
            remedy="As `known`, pass only Runs on the same data.",
        )
    if run.identity.threat.norm == threat.norm.name:
        return {i: d for i, d in smallest_distances(run).items() if i in hashes}
    wrong = {i: 0.0 for i, d in smallest_distances(run).items() if d == 0 and i in hashes}
    return {**_measured(run, threat, data), **wrong}


def _measured(run: Run, threat: Threat, data: Problem) -> dict[int, float]:
    """Return a dict from sample id to the distance of the Run's adversarial, computed anew in the threat's norm."""
    adv = run.adversarials()
    place = {int(i): k for k, i in enumerate(adv.ids)}
    distances: dict[int, float] = {}
    for chunk in data.chunks(4096):
        rows = [r for r, i in enumerate(chunk.ids.tolist()) if i in place]
        if rows:
            x = torch.from_numpy(np.stack([adv.x[place[int(chunk.ids[r])]] for r in rows]))
            size = threat.norm.size(x.double() - chunk.x[rows].double())
            distances |= dict(zip(chunk.ids[rows].tolist(), size.tolist(), strict=True))
    return distances
