"""Run the binarization test or the probes of a Run's plan and store the outcome in the Run, for its verdict."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from brinell.checks.detector import fit_to_detector
from brinell.core.dataset import Problem, sample_hashes
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.errors import InputError, ModelError, PlanError, RunError, ThreatError
from brinell.evaluation import coerce
from brinell.evaluation.plan import adapt
from brinell.finding import Finding, Level
from brinell.reliability.binarization.result import FAILED, PASSED, BinarizationTest
from brinell.reliability.binarization.test import test_attack
from brinell.reliability.probes.experiments import QUERIES
from brinell.reliability.probes.indicators import NEIGHBOURS
from brinell.reliability.probes.probe import probe
from brinell.reliability.probes.result import Probes
from brinell.results import Run, Writer
from brinell.results.format.manifest import Identity

NAME, PROBE = "active test", "probe"
NOT_MADE = "not made: "
# Errors that mean the test does not apply to this evaluation: the finished Run is kept.
UNSUITED = (InputError, ModelError, PlanError, ThreatError)
# The level of the stored check by the outcome of the test; an inconclusive test is "info".
LEVELS: dict[str, Level] = {PASSED: "ok", FAILED: "warn"}
SAMPLES, INNER = 64, 199


def test_run(
    run: "Run | str | os.PathLike[str]",
    classifier: Any,
    problem: Any,
    threat: Threat,
    plan: Any,
    *,
    n: int = SAMPLES,
    inner: int = INNER,
    layer: Any = None,
    progress: bool | None = None,
) -> Run:
    """Return the Run with the binarization test of its plan among its checks; a failed test makes it suspicious.

    Method: `brinell.test_attack` with the plan, model, threat and seed of the Run on the first n samples. The check
    replaces that of an earlier test; the rows do not change. Reference: Zimmermann et al. 2022.

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
    """Store one more check in the Run, in place of an earlier one of the same name."""
    checks = [c for c in opened.checks if c["name"] != check.name]
    with Writer.resume(opened.path, opened.manifest) as writer:
        writer.update(checks=[*checks, check.to_json()])
    return Run.open(opened.path)


def probe_run(
    run: "Run | str | os.PathLike[str]",
    classifier: Any,
    problem: Any,
    threat: Threat,
    plan: Any,
    *,
    stage: str | None = None,
    n: int = SAMPLES,
    neighbours: int = NEIGHBOURS,
    queries: int = QUERIES,
    progress: bool | None = None,
) -> Run:
    """Return the Run with probes of one attack of its plan; warnings make the Run suspicious.

    Method: `brinell.reliability.probe` with the first attack of the plan (or the one named `stage`), the model, threat
    and seed of the Run, on the first n samples. It replaces an earlier probe of the same attack; the rows do not
    change. Reference: Pintor et al. 2022, Indicators of attack failure.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 8), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = probe_run(run, "demo", data, threat, "pgd20", neighbours=4, queries=20, progress=False)
    >>> [(p["attack"], len(p["items"])) for p in run.probes]
    [('pgd-ce', 10)]
    """
    opened, model, data, threat, chosen = _require_same_inputs(run, classifier, problem, threat, plan, n)
    found = probe(
        model,
        data,
        threat,
        chosen,
        stage=stage,
        samples=n,
        neighbours=neighbours,
        queries=queries,
        seed=opened.identity.seed or 0,
        progress=progress,
    )
    others = [p for p in opened.probes if p["attack"] != found.attack]
    with Writer.resume(opened.path, opened.manifest) as writer:
        writer.update(probes=[*others, _stored(found)])
    return Run.open(opened.path)


def _stored(found: Probes) -> dict[str, Any]:
    """Return what a manifest stores: everything but the surface, which is for plots."""
    return {k: v for k, v in found.to_json().items() if k != "surface"}


def _require_same_inputs(
    run: Any, classifier: Any, problem: Any, threat: Threat, plan: Any, n: int
) -> tuple[Run, Classifier, Problem, Threat, Plan]:
    """Return the opened Run and its inputs, with the first n samples of the data; refuse anything else."""
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = coerce.as_classifier(classifier), coerce.as_problem(problem)[:n]
    chosen, ball = coerce.as_plan(plan), coerce.as_threat(threat)
    identity = opened.identity
    same = {
        "model": (identity.model.fingerprint, model.fingerprint),
        "plan": (identity.plan.name, chosen.name),
    }
    for what, (stored, given) in same.items():
        if stored != given:
            raise RunError(
                expected=f"the {what} of the Run, {stored}",
                got=given,
                remedy="Pass the same model, threat and plan as in the evaluation.",
            )
    # How eps is written does not matter; its value and its mask do.
    if {**identity.threat.raw, "eps_text": ""} != {**ball.to_json(), "eps_text": ""}:
        raise RunError(
            expected=f"the threat of the Run, {coerce.threat_of(opened)}",
            got=f"{ball}, with another radius, norm or mask",
            remedy="Pass the same model, threat and plan as in the evaluation.",
        )
    _require_same_attacks(identity, model, data, ball, chosen)
    _require_same_samples(opened, data)
    return opened, model, data, ball.subset(slice(n)), chosen


def _require_same_attacks(identity: Identity, model: Classifier, data: Problem, threat: Threat, plan: Plan) -> None:
    """Refuse a plan with other attacks: custom plans may share a name."""
    fitted, _ = adapt(plan, threat, classes=identity.model.classes or 0, image=len(data.shape()) == 3)
    with torch.no_grad():
        fitted, _ = fit_to_detector(fitted, threat, model, model.forward(next(data.chunks(1)).x.to(model.device)))
    given = [s.to_json()["hash"] for s in fitted.stages_for(threat) if not s.is_audit]
    stored = [stage.hash for stage in identity.plan.main_stages]
    if given != stored:
        raise RunError(
            expected=f"the plan of the Run, {identity.plan.name}, with the same attacks",
            got="a plan of that name with other attacks",
            remedy="Pass the same model, threat and plan as in the evaluation.",
        )


def _require_same_samples(opened: Run, data: Problem) -> None:
    """Refuse samples that are not in the Run with the same id, input and label."""
    rows = opened.rows().select(["sample_id", "x_sha256", "label"]).to_pylist()
    known = {(r["sample_id"], r["x_sha256"], r["label"]) for r in rows}
    chunk = next(data.chunks(len(data)))
    given = set(zip(chunk.ids.tolist(), sample_hashes(chunk.x), chunk.y.tolist(), strict=True))
    if not given <= known:
        raise RunError(
            expected="samples of the Run, with their ids and labels",
            got=f"{len(given - known)} other samples",
            remedy="Pass the data of the evaluation.",
        )


@dataclass(frozen=True)
class WithTest:
    """For `brinell.evaluate(..., also=[WithTest()])`: run the binarization test of the plan (`test_run`).

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

    def __call__(self, run: Run, classifier: Classifier, problem: Problem, threat: Threat, plan: Plan) -> Run:
        """Return the Run with its test, or with a check that says why there is none."""
        options: Any = {"n": self.n, "inner": self.inner, "layer": self.layer, "progress": self.progress}
        try:
            return test_run(run, classifier, problem, threat, plan, **options)
        except UNSUITED as error:
            return _with_check(run, Finding(NAME, "info", f"{NOT_MADE}{error}"))


@dataclass(frozen=True)
class WithProbe:
    """For `brinell.evaluate(..., also=[WithProbe()])`: probe an attack of the plan (`probe_run`).

    >>> WithProbe(stage="apgd-ce").n
    64
    """

    stage: str | None = None
    n: int = SAMPLES
    neighbours: int = NEIGHBOURS
    queries: int = QUERIES
    progress: bool | None = False

    def __call__(self, run: Run, classifier: Classifier, problem: Problem, threat: Threat, plan: Plan) -> Run:
        """Return the Run with its probes, or with a check that says why there are none."""
        options: Any = {"stage": self.stage, "n": self.n, "neighbours": self.neighbours, "queries": self.queries}
        try:
            return probe_run(run, classifier, problem, threat, plan, progress=self.progress, **options)
        except UNSUITED as error:
            return _with_check(run, Finding(PROBE, "info", f"{NOT_MADE}{error}"))


# Keep pytest from collecting this function as a test.
setattr(test_run, "__test__", False)  # noqa: B010


def as_check(test: BinarizationTest) -> Finding:
    """Return the outcome as a check: a failed test warns, a passed one is ok, an inconclusive one is "info"."""
    return Finding(NAME, LEVELS.get(test.verdict, "info"), str(test))
