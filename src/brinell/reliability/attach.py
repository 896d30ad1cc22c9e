"""The binarization test and the probes of a Run's own plan, stored in the Run, whose verdict reads them."""

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
# What says that an examination does not suit the evaluation, which was long and must not be lost for that.
UNSUITED = (InputError, ModelError, PlanError, ThreatError)
# What a verdict makes of the test; one that says nothing changes nothing.
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
    """The Run with its plan's binarization test among the checks: a plan that fails it makes the Run suspicious.

    Method: `brinell.test_attack` with the plan, model, threat and seed of the Run on the first n samples. The check
    replaces one of an earlier test; the rows stay as they are.
    Reference: Zimmermann et al. 2022.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 16), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = brinell.reliability.test_run(run, "demo", data, threat, "pgd20", inner=99, progress=False)
    >>> run.checks[-1]["name"], run.checks[-1]["level"]
    ('active test', 'ok')
    """
    opened, model, data, threat, chosen = _same(run, classifier, problem, threat, plan, n)
    seed = opened.identity.seed or 0
    test = test_attack(model, data, threat, chosen, inner=inner, layer=layer, seed=seed, progress=progress)
    return _with_check(opened, as_check(test))


def _with_check(opened: Run, check: Finding) -> Run:
    """The Run with one more check, in place of an earlier one of its name."""
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
    """The Run with probes of one attack of its plan: what they object to makes the Run suspicious.

    Method: `brinell.reliability.probe` with the plan's first attack (or the one called `stage`), the model, threat and
    seed of the Run, on the first n samples. It replaces an earlier probe of the same attack; the rows stay as they are.
    Reference: Pintor et al. 2022, Indicators of attack failure.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 8), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = probe_run(run, "demo", data, threat, "pgd20", neighbours=4, queries=20, progress=False)
    >>> [(p["attack"], len(p["items"])) for p in run.probes]
    [('pgd-ce', 10)]
    """
    opened, model, data, threat, chosen = _same(run, classifier, problem, threat, plan, n)
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
    """What a manifest keeps: everything but the surface, which is for plots."""
    return {k: v for k, v in found.to_json().items() if k != "surface"}


def _same(
    run: Any, classifier: Any, problem: Any, threat: Threat, plan: Any, n: int
) -> tuple[Run, Classifier, Problem, Threat, Plan]:
    """The Run opened, and what it was made with, of the data the first n samples; anything else is refused."""
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
                expected=f"the {what} of the Run, {stored}", got=given, remedy="Test what the Run was made with."
            )
    # How eps is written is no part of what it is; its radii and its mask are.
    if {**identity.threat.raw, "eps_text": ""} != {**ball.to_json(), "eps_text": ""}:
        raise RunError(
            expected=f"the threat of the Run, {coerce.threat_of(opened)}",
            got=f"{ball}, with another radius, norm or mask",
            remedy="Test what the Run was made with.",
        )
    _same_attacks(identity, model, data, ball, chosen)
    _same_samples(opened, data)
    return opened, model, data, ball.subset(slice(n)), chosen


def _same_attacks(identity: Identity, model: Classifier, data: Problem, threat: Threat, plan: Plan) -> None:
    """Plans of the same name may differ in their attacks: those of one's own all have one name."""
    fitted, _ = adapt(plan, threat, classes=identity.model.classes or 0, image=len(data.shape()) == 3)
    with torch.no_grad():
        fitted, _ = fit_to_detector(fitted, threat, model, model.forward(next(data.chunks(1)).x.to(model.device)))
    given = [s.to_json()["hash"] for s in fitted.stages_for(threat) if not s.is_audit]
    stored = [stage.hash for stage in identity.plan.main_stages]
    if given != stored:
        raise RunError(
            expected=f"the plan of the Run, {identity.plan.name}, with the same attacks",
            got="one of that name with other attacks",
            remedy="Test what the Run was made with.",
        )


def _same_samples(opened: Run, data: Problem) -> None:
    """Every sample must be one of the Run's, with its id, its input and its label."""
    rows = opened.rows().select(["sample_id", "x_sha256", "label"]).to_pylist()
    known = {(r["sample_id"], r["x_sha256"], r["label"]) for r in rows}
    chunk = next(data.chunks(len(data)))
    given = set(zip(chunk.ids.tolist(), sample_hashes(chunk.x), chunk.y.tolist(), strict=True))
    if not given <= known:
        raise RunError(
            expected="samples of the Run, with their ids and labels",
            got=f"{len(given - known)} others",
            remedy="Test with data the Run was made from.",
        )


@dataclass(frozen=True)
class WithTest:
    """For `brinell.evaluate(..., also=[WithTest()])`: the binarization test of the plan, in the verdict (`test_run`).

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
        """The Run with its test, or with a check that says why there is none."""
        options: Any = {"n": self.n, "inner": self.inner, "layer": self.layer, "progress": self.progress}
        try:
            return test_run(run, classifier, problem, threat, plan, **options)
        except UNSUITED as error:
            return _with_check(run, Finding(NAME, "info", f"{NOT_MADE}{error}"))


@dataclass(frozen=True)
class WithProbe:
    """For `brinell.evaluate(..., also=[WithProbe()])`: probes of an attack of the plan, in the verdict (`probe_run`).

    >>> WithProbe(stage="apgd-ce").n
    64
    """

    stage: str | None = None
    n: int = SAMPLES
    neighbours: int = NEIGHBOURS
    queries: int = QUERIES
    progress: bool | None = False

    def __call__(self, run: Run, classifier: Classifier, problem: Problem, threat: Threat, plan: Plan) -> Run:
        """The Run with its probes, or with a check that says why there are none."""
        options: Any = {"stage": self.stage, "n": self.n, "neighbours": self.neighbours, "queries": self.queries}
        try:
            return probe_run(run, classifier, problem, threat, plan, progress=self.progress, **options)
        except UNSUITED as error:
            return _with_check(run, Finding(PROBE, "info", f"{NOT_MADE}{error}"))


# For pytest, which takes every function with such a name for a test.
setattr(test_run, "__test__", False)  # noqa: B010


def as_check(test: BinarizationTest) -> Finding:
    """The outcome as a check: a failed test warns, a passed one is fine, one that cannot tell is for information."""
    return Finding(NAME, LEVELS.get(test.verdict, "info"), str(test))
