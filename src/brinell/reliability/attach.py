"""Run the binarization test or the probes for the plan of a finished Run, and store the outcome in the Run."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.checks.detector import fit_to_detector
from brinell.core.attack import Requires
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.errors import InputError, ModelError, PlanError, RunError, ThreatError
from brinell.evaluation import coerce
from brinell.evaluation.plan import adapt
from brinell.finding import Finding, Level
from brinell.reliability.binarization.result import FAILED, PASS, PASSED, BinarizationTest
from brinell.reliability.binarization.test import run_tests, test_attack
from brinell.reliability.probes.experiments import QUERIES
from brinell.reliability.probes.indicators import NEIGHBOURS
from brinell.reliability.probes.probe import probe
from brinell.results import Run, Writer
from brinell.results.format.manifest import Identity

NAME, PROBE = "active test", "probe"
NOT_MADE = "not made: "
# Errors that mean the test does not apply to this evaluation: the finished Run is kept.
UNSUITED = (InputError, ModelError, PlanError, ThreatError)
# The level of the stored check by the outcome of the test; an inconclusive test is "info".
LEVELS: dict[str, Level] = {PASSED: "ok", FAILED: "warn"}
SAMPLES, INNER = 64, 199
SMALL_REFERENCE = "apgd-ce"
# The small test that every evaluation makes by default: its share of the Run's passes, and its sizes, largest first:
# samples, inner points and random points.
COST_SHARE = 0.05
SIZES = ((64, 199, 100), (32, 99, 50), (16, 49, 20), (16, 19, 5), (16, 9, 2))
# Its closeness κ, and the passes per sample that an attack which passes needs at most, with verification.
SMALL_KAPPA, SMALL_PASSES = 0.99, 20
REMEDY = "Pass the same model, threat and plan as in the evaluation."


def test_run(
    run: "Run | str | os.PathLike[str]", classifier: ModelLike, problem: DataLike, threat: Threat, plan: PlanLike,
    *, n: int = SAMPLES, inner: int = INNER, layer: str | None = None, progress: bool | None = None,
) -> Run:  # fmt: skip
    """Run the binarization test with the plan of a Run, and return the Run with the outcome stored among its checks.

    Method: `brinell.test_attack` with the plan, model, threat and seed of the Run on the first n samples. The outcome
    of an earlier test is replaced; the rows do not change. Reference: Zimmermann et al. 2022.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 16), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = brinell.reliability.test_run(run, "demo", data, threat, "pgd20", inner=99, progress=False)
    >>> run.checks[-1]["name"], run.checks[-1]["level"]
    ('active test', 'ok')
    """
    opened, model, data, threat, chosen = _require_same_inputs(run, classifier, problem, threat, plan, n)
    seed = opened.identity.seed or 0
    test = test_attack(model, data, threat, chosen, inner=inner, layer=layer, seed=seed, progress=progress)
    return _with_check(opened, as_check(test))


def _with_check(opened: Run, check: Finding) -> Run:
    """Store a check in the Run, in place of an earlier check of the same name, and return the Run."""
    return _updated(opened, checks=[*(c for c in opened.checks if c["name"] != check.name), check.to_json()])


def _updated(opened: Run, **values: Any) -> Run:
    with Writer.resume(opened.path, opened.manifest) as writer:
        writer.update(**values)
    return Run.open(opened.path)


def probe_run(
    run: "Run | str | os.PathLike[str]", classifier: ModelLike, problem: DataLike, threat: Threat, plan: PlanLike,
    *, stage: str | None = None, n: int = SAMPLES, neighbours: int = NEIGHBOURS, queries: int = QUERIES,
    progress: bool | None = None,
) -> Run:  # fmt: skip
    """Probe one attack of a Run's plan, store the findings in the Run, and return the Run.

    Method: `brinell.reliability.probe` with the first attack of the plan (or the attack named `stage`), the model,
    threat and seed of the Run, on the first n samples. Findings of an earlier probe of the same attack are replaced;
    the rows do not change. Warnings can make the verdict suspicious. Reference: Pintor et al. 2022, Indicators of
    attack failure.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 8), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = probe_run(run, "demo", data, threat, "pgd20", neighbours=4, queries=20, progress=False)
    >>> [(p["attack"], len(p["items"])) for p in run.probes]
    [('pgd-ce', 10)]
    """
    opened, model, data, threat, chosen = _require_same_inputs(run, classifier, problem, threat, plan, n)
    result = probe(
        model, data, threat, chosen, stage=stage, samples=n, neighbours=neighbours, queries=queries,
        seed=opened.identity.seed or 0, progress=progress,
    )  # fmt: skip
    # The surface is for plots and is not stored.
    stored = {k: v for k, v in result.to_json().items() if k != "surface"}
    return _updated(opened, probes=[*(p for p in opened.probes if p["attack"] != result.attack), stored])


def _require_same_inputs(
    run: Any, classifier: Any, problem: Any, threat: Threat, plan: Any, n: int
) -> tuple[Run, Classifier, Problem, Threat, Plan]:
    opened = Run.open(run)
    model, data = coerce.as_classifier(classifier), coerce.as_problem(problem)[:n]
    chosen, ball = coerce.as_plan(plan), coerce.as_threat(threat)
    identity = opened.identity
    coerce.require_same_model(opened, model)
    if identity.plan.name != chosen.name:
        raise RunError(expected=f"the plan of the Run, {identity.plan.name}", got=chosen.name, remedy=REMEDY)
    # How eps is written does not matter; its value and its mask do.
    if {**identity.threat.raw, "eps_text": ""} != {**ball.to_json(), "eps_text": ""}:
        raise RunError(
            expected=f"the threat of the Run, {coerce.threat_of(opened)}",
            got=f"{ball}, which has another radius, norm or mask",
            remedy=REMEDY,
        )
    _require_same_attacks(identity, model, data, ball, chosen)
    coerce.require_same_samples(opened, coerce.stored_samples(opened), next(data.chunks(len(data))))
    return opened, model, data, ball.subset(slice(n)), chosen


def _require_same_attacks(identity: Identity, model: Classifier, data: Problem, threat: Threat, plan: Plan) -> None:
    """Raise a RunError if `plan` has other attacks than the Run's plan: two custom plans may have the same name."""
    fitted, _ = adapt(plan, threat, classes=identity.model.classes or 0, image=len(data.shape()) == 3)
    with torch.no_grad():
        fitted, _ = fit_to_detector(fitted, threat, model, model.forward(next(data.chunks(1)).x.to(model.device)))
    given = [s.to_json()["hash"] for s in fitted.stages_for(threat) if not s.is_audit]
    stored = [stage.hash for stage in identity.plan.main_stages]
    if given != stored:
        raise RunError(
            expected=f"the plan of the Run, {identity.plan.name}, with the same attacks",
            got="a plan of the same name with other attacks",
            remedy=REMEDY,
        )


def small_test_run(run: Run, classifier: Any, problem: Any, threat: Threat, plan: Any) -> Run:
    """Run a small binarization test where the verdict would be *reliable* without it, and return the Run with it.

    Method: as `test_run`, at one closeness κ, with the attacks of the plan that use gradients, without an audit. The
    size is the largest of `SIZES` that costs at most 5 % of the Run's passes; an attack that fails takes longer. A
    score whose interval lies below 0.95 is stored as a warning, and a low score with a wider interval as information.
    If even the smallest size costs more, a note is stored instead.
    """
    known = any(check["name"] == NAME for check in run.checks)
    found = None if known else small_test(run, classifier, problem, threat, plan)
    return run if found is None else _with_check(run, found)


def small_test(run: Run, classifier: Any, problem: Any, threat: Threat, plan: Any) -> Finding | None:
    """Return the outcome of the small test of `small_test_run`; None if the verdict is not *reliable* without it."""
    if not run.finished or run.verdict.level != "reliable" or run.identity.plan.draws > 1:
        return None
    tested = _gradient_part(coerce.as_plan(plan), threat)
    if tested is None or not len(run.survivors()):
        return None
    size = _affordable(run.cost.forwards + run.cost.backwards)
    if size is None:
        why = f"{NOT_MADE}it would take more than {100 * COST_SHARE:g} % of the passes of the Run"
        return Finding(NAME, "info", why)
    n, inner, queries = size
    (test,) = run_tests(
        classifier, coerce.as_problem(problem)[:n], threat.subset(slice(n)), [tested], inner=inner,
        levels=(SMALL_KAPPA,), random_queries=queries, reference=SMALL_REFERENCE, checked=True,
        seed=run.identity.seed or 0, progress=False,
    )  # fmt: skip
    check = as_check(test)
    narrow = check.level == "warn" and test.high >= PASS
    return replace(check, level="info") if narrow else check


def _affordable(passes: int) -> tuple[int, int, int] | None:
    """Return the largest size of the small test that takes at most its share of these passes; None if none does."""
    costs = {size: size[0] * (size[1] + 2 * size[2] + SMALL_PASSES) for size in SIZES}
    return next((size for size, cost in costs.items() if cost <= COST_SHARE * passes), None)


def _gradient_part(plan: Plan, threat: Threat) -> Plan | None:
    """Return the plan with only the attacks that use gradients, without the audit; None if there are none."""
    stages = [s for s in plan.stages_for(threat) if not s.is_audit and s.attack.requires is not Requires.LOGITS]
    return replace(plan, stages=tuple(stages)) if stages else None


class _Attached:
    """An extra step of `brinell.evaluate` that calls `function` on the finished Run, with its fields as keywords.

    If `function` does not apply to the evaluation, the step stores a check that says why.
    """

    check: ClassVar[str]
    function: ClassVar[Callable[..., Run]]

    def __call__(self, run: Run, classifier: Classifier, problem: Problem, threat: Threat, plan: Plan) -> Run:
        try:
            return type(self).function(run, classifier, problem, threat, plan, **vars(self))
        except UNSUITED as error:
            return _with_check(run, Finding(self.check, "info", f"{NOT_MADE}{error}"))


@dataclass(frozen=True)
class WithTest(_Attached):
    """An extra step, `brinell.evaluate(..., also=[WithTest()])`: run the binarization test of the plan (`test_run`).

    >>> import brinell
    >>> data, also = brinell.data.load("demo", 16), [WithTest(inner=49)]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "pgd20", also=also, progress=False)
    >>> run.checks[-1]["name"], run.checks[-1]["level"]
    ('active test', 'ok')
    """

    n: int = SAMPLES
    inner: int = INNER
    layer: Any = None
    progress: bool | None = False
    check, function = NAME, test_run


@dataclass(frozen=True)
class WithSmallTest(_Attached):
    """The extra step of every evaluation unless `test=False`: a small binarization test (`small_test_run`).

    >>> WithSmallTest().check
    'active test'
    """

    check, function = NAME, small_test_run


@dataclass(frozen=True)
class WithProbe(_Attached):
    """An extra step, `brinell.evaluate(..., also=[WithProbe()])`: probe an attack of the plan (`probe_run`).

    >>> WithProbe(stage="apgd-ce").n
    64
    """

    stage: str | None = None
    n: int = SAMPLES
    neighbours: int = NEIGHBOURS
    queries: int = QUERIES
    progress: bool | None = False
    check, function = PROBE, probe_run


# Keep pytest from collecting this function as a test.
setattr(test_run, "__test__", False)  # noqa: B010


def as_check(test: BinarizationTest) -> Finding:
    """Return a check with the outcome of a test: "ok" if it passed, "warn" if it failed, "info" if inconclusive."""
    score = test.score if test.n else None
    return Finding(NAME, LEVELS.get(test.verdict, "info"), str(test), value=score, threshold=PASS)
