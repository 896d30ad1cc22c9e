"""The binarization test of a Run's own plan, stored in the Run as a check that its verdict reads."""

import os
from typing import Any

from brinell.core.threat import Threat
from brinell.errors import RunError
from brinell.evaluate import inputs
from brinell.evaluate.door import Check
from brinell.reliability.active import test_attack
from brinell.reliability.outcome import FAILED, PASSED, ActiveTest
from brinell.results import Run, Writer

NAME = "active test"
# What a verdict makes of the test; one that says nothing changes nothing.
LEVELS = {PASSED: "ok", FAILED: "warn"}
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
    >>> data, threat = brinell.data.load("demo", 8), brinell.Linf(0.1)
    >>> run = brinell.evaluate("demo", data, threat, "pgd20", progress=False)
    >>> run = brinell.reliability.test_run(run, "demo", data, threat, "pgd20", inner=99, progress=False)
    >>> run.checks[-1]["name"], run.checks[-1]["level"]
    ('active test', 'ok')
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = inputs.as_classifier(classifier), inputs.as_problem(problem)
    chosen = inputs.as_plan(plan)
    identity = opened.manifest["identity"]
    same = {
        "model": (identity["model"]["fingerprint"], model.fingerprint),
        "plan": (identity["plan"]["name"], chosen.name),
        "threat": (str(inputs.threat_of(opened)), str(inputs.as_threat(threat))),
    }
    for what, (stored, given) in same.items():
        if stored != given:
            raise RunError(
                expected=f"the {what} of the Run, {stored}", got=given, remedy="Test what the Run was made with."
            )
    seed = identity["seed"]
    test = test_attack(model, data[:n], threat, chosen, inner=inner, layer=layer, seed=seed, progress=progress)
    checks = [c for c in opened.checks if c["name"] != NAME]
    with Writer.resume(opened.path, opened.manifest) as writer:
        writer.update(checks=[*checks, as_check(test).to_json()])
    return Run.open(opened.path)


# For pytest, which takes every function with such a name for a test.
setattr(test_run, "__test__", False)  # noqa: B010


def as_check(test: ActiveTest) -> Check:
    """The outcome as a check: a failed test warns, a passed one is fine, one that cannot tell is for information."""
    return Check(NAME, LEVELS.get(test.verdict, "info"), str(test))
