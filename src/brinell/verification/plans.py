"""Read the plan of a Run from its stored stages, and compare it with the built-in plans; a name proves nothing."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from brinell.attacks.catalogue import EARLIER, PLANS
from brinell.checks.detector import fit_to_detector
from brinell.core.attack import AnyAttack, Attack
from brinell.core.dataset import Problem
from brinell.core.plan import Plan, Stage
from brinell.core.ranking import MaltRanking
from brinell.core.start_pool import ActivationSearch
from brinell.core.surrogate import Surrogate
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import BrinellError, PlanError, error_text
from brinell.evaluation.plan import adapt, audited
from brinell.finding import Finding
from brinell.results import Run, row_queries
from brinell.results.format.manifest import PlanRecord
from brinell.verification.result import note, objection

# More forward passes per sample than any built-in plan needs would only cost the verifier time.
PASSES = 2_000_000
# More submodules than the surrogate of any plan has.
MODULES = 1000
# What may differ between two stages that attack alike: the share of an audit, and the natural inputs to imitate.
FREE = ("hash", "share")
REFERENCES = "references"


def stored_plan(run: Run) -> Plan:
    """Return the plan of a Run, rebuilt from the stored type and parameters of every attack.

    Raise a PlanError if an attack is of an unknown type, if the parameters do not give the stored hash, or if a sample
    would cost more than two million passes.

    >>> from brinell.results.run import Run
    >>> stored_plan(Run.open("tests/results/golden_run_v1"))
    Traceback (most recent call last):
    brinell.errors.PlanError: expected a stage with parameters ..., got apgd-ce with no value of 'type'...
    """
    stored = run.identity.plan
    stages = tuple(_stage(stage.raw, stage.name) for stage in stored.stages)
    try:
        plan = Plan(stored.name, stages, strength=stored.strength or "weak", draws=stored.draws)
        passes = sum(budget(stage) for stage in stages) * plan.draws
    except (TypeError, ValueError, OverflowError) as error:
        raise _unknown(stored.name, error_text(error)) from error
    if passes > PASSES:
        raise _unknown(stored.name, f"{passes:,} passes per sample")
    return plan


def budget(stage: Stage) -> int:
    """Return the largest number of forward passes that a stage makes for one sample, verification not counted."""
    return stage.ranking_passes[0] + stage.queries


def overspent(run: Run, plan: Plan) -> Iterator[Finding]:
    """Yield a finding for every attack whose rows state more forward passes than the attack can make.

    In lower precision and for unbounded threats some attacks are repeated: these rows are not compared.
    """
    if run.identity.precision != "float32" or run.identity.threat.eps is None:
        return
    table = run.numbers()
    for stage in plan.stages if isinstance(plan.stages, tuple) else ():
        rows = table.filter(row_queries.is_attack(table, stage.name))
        most = max(rows["forwards"].to_pylist(), default=0)
        if most > budget(stage):
            message = f"Rows of {stage.name} state {most:,} forward passes, but it makes at most {budget(stage):,}."
            yield objection("budget", message)


def _stage(stored: Mapping[str, Any], name: str) -> Stage:
    try:
        attack = _attack(stored["attack"])
        ranked_by, radius = _ranking(stored.get("ranked_by"))
        stage = Stage(
            attack,
            tuple(stored["ranks"]),
            stored["restarts"],
            "" if attack.name == name else name,
            stored["eot"],
            stored["copy"],
            ranked_by,
            radius,
            stored.get("noise", ""),
            stored.get("share"),
            near=stored.get("near"),
            via=_surrogate(stored.get("via")),
            search=None if stored.get("search") is None else ActivationSearch(**stored["search"]),
        )
        same = stage.to_json()["hash"] == stored.get("hash")
    except KeyError as error:
        raise _unknown(name, f"no value of {error}") from error
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise _unknown(name, error_text(error)) from error
    if not same:
        raise _unknown(name, "another hash than that of these parameters")
    return stage


def _surrogate(stored: Any) -> Surrogate | None:
    if stored is None:
        return None
    names = {key: value for key, value in stored.items() if key not in ("columns", "secants")}
    for value in names.values():
        if not isinstance(value, list) or len(value) > MODULES or not all(isinstance(name, str) for name in value):
            raise ValueError(f"a surrogate with other values than lists of at most {MODULES} names of submodules")
    columns = stored.get("columns", 1)
    if type(columns) is not int or not 1 <= columns <= MODULES:
        raise ValueError(f"a surrogate with {str(columns)[:40]} columns")
    secants = tuple((name, width) for name, width in stored.get("secants", [])[:MODULES])
    if not all(isinstance(name, str) and type(width) is float and 0 < width < math.inf for name, width in secants):
        raise ValueError("a surrogate with other secants than pairs of a submodule and a positive width")
    return Surrogate(**{key: tuple(value) for key, value in names.items()}, columns=columns, secants=secants)


def _ranking(stored: Any) -> tuple[AnyAttack | MaltRanking | None, float | None]:
    """Return the ranking of the target classes and its radius."""
    if stored is None:
        return None, None
    if "attack" in stored:
        return _attack(stored["attack"]), stored["radius"]
    return MaltRanking(stored["candidates"]), None


def _attack(stored: Any) -> AnyAttack:
    kinds = {kind.stored_type if isinstance(kind.stored_type, str) else kind.__name__: kind for kind in _kinds(Attack)}
    kind = kinds.get(stored["type"]) if isinstance(stored, dict) else None
    if kind is None:
        raise ValueError(f"an attack of the unknown type {str(stored)[:40]}")
    values = {key: _attack(v) if isinstance(v, dict) else v for key, v in stored.items() if key != "type"}
    if set(values) != {field.name for field in fields(kind)}:
        raise ValueError(f"other parameters than those of {stored['type']}")
    return kind(**values)


def _kinds(base: type[Attack[Any]]) -> Iterator[type[Any]]:
    """Yield every class of attacks that is defined here or was imported."""
    for kind in base.__subclasses__():
        if is_dataclass(kind):
            yield kind
        yield from _kinds(kind)


def _unknown(name: str, got: str) -> PlanError:
    return PlanError(
        expected="a stage with parameters from which Brinell can build the attack again",
        got=f"{name} with {got}",
        remedy="Import the module that defines the attack first, or pass the plan: brinell.verify(…, plan=mine).",
    )


def fitted(plan: Plan, threat: Threat, oracle: Oracle, data: Problem) -> Plan:
    """Return the plan as an evaluation fits it to the norm, the model and the inputs."""
    first = next(data.chunks(1))
    answer = oracle.output(first.x.to(oracle.classifier.device))
    chosen, _ = adapt(plan, threat, classes=answer.logits.shape[1], image=first.x.ndim == 4)
    return fit_to_detector(chosen, threat, oracle.classifier, answer)[0]


def plan_to_repeat(run: Run, threat: Threat, oracle: Oracle, data: Problem, given: Plan | None = None) -> Plan:
    """Return the plan of a Run, or raise a PlanError; a built-in plan is recognised by its stages.

    `given` is the plan of the Run if it has attacks that cannot be built from what the Run stores.
    """
    if given is not None:
        if not _is(run.identity.plan, given, threat, oracle, data):
            raise _unknown(run.identity.plan.name, "other stages than the given plan")
        return fitted(given, threat, oracle, data)
    try:
        return stored_plan(run)
    except PlanError:
        known = recognised(run.identity.plan, threat, oracle, data)
        if known is None:
            raise
    return fitted(known, threat, oracle, data)


def recognised(stored: PlanRecord, threat: Threat, oracle: Oracle, data: Problem) -> Plan | None:
    """Return the built-in plan that has the stages of a stored plan, or None; the stored name is tried first."""
    plans = sorted((*PLANS.values(), *EARLIER), key=lambda plan: plan.name != stored.name)
    return next((plan for plan in plans if _is(stored, plan, threat, oracle, data)), None)


def _is(stored: PlanRecord, plan: Plan, threat: Threat, oracle: Oracle, data: Problem) -> bool:
    if plan.has_audit and not any(stage.is_audit for stage in stored.stages):
        plan = audited(plan, 0)
    try:
        stages = fitted(plan, threat, oracle, data).stages_for(threat)
    except BrinellError:
        return False
    return _bodies([stage.raw for stage in stored.stages]) == _bodies([stage.to_json() for stage in stages])


def _bodies(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the stages without shares and hashes, and without the inputs that an attack imitates."""
    bodies = [{key: value for key, value in stage.items() if key not in FREE} for stage in stages]
    for body in bodies:
        if isinstance(body.get("attack"), dict):
            body["attack"] = {key: value for key, value in body["attack"].items() if key != REFERENCES}
    return bodies


def other_plan(run: Run, threat: Threat, oracle: Oracle, data: Problem) -> Iterator[Finding]:
    """Yield what is wrong with the plan of a Run: a built-in name with other stages, or another strength or draws."""
    stored = run.identity.plan
    known = recognised(stored, threat, oracle, data)
    if stored.name in PLANS and (known is None or known.name != stored.name):
        yield objection("plan", f"The Run's plan has other parameters than the built-in plan {stored.name}.")
    if known is None:
        message = f"The plan {stored.name} is not built into Brinell: its name and its strength are the author's."
        yield note("plan", message)
        return
    claims = {"strength": (stored.strength, known.strength), "draws": (stored.draws, known.draws)}
    for key, (claimed, truth) in claims.items():
        if key in stored.raw and claimed != truth:
            message = f"The Run's plan has other parameters than the built-in plan {known.name}: "
            yield objection(key, f"{message}{key} {claimed!r}, not {truth!r}.")
    if known.name != stored.name and stored.name not in PLANS:
        yield note("plan", f"The plan {stored.name} has the stages of the built-in plan {known.name}.")


def with_audit_of(plan: Plan, threat: Threat, names: Collection[str]) -> Plan:
    """Return the plan with only the stages of its audit in `names`, which attack every survivor.

    Outcomes are those of a smaller audit.
    """
    stages = plan.stages_for(threat)
    kept = (replace(s, share=1.0) if s.is_audit else s for s in stages if not s.is_audit or s.name in names)
    return replace(plan, stages=tuple(kept))
