"""Everything that is looked at and settled before an evaluation begins; nothing is written here."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from brinell.checks import model as model_checks
from brinell.checks.detector import fit_to_detector, run_detector_checks
from brinell.checks.gradients import run_gradient_checks
from brinell.core.criterion import Evades, Misclassified
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier, Output
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.precision import choose_precision
from brinell.engine import precision as precisions
from brinell.engine.accelerate import accelerated
from brinell.engine.cuda.autotune import micro_batches_for
from brinell.engine.cuda.execution import resolve_execution
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, PlanError
from brinell.evaluation import coerce
from brinell.evaluation.context import PreparedEvaluation, chunk_size
from brinell.evaluation.plan import adapt, audited, require_suitable
from brinell.evaluation.rows import clean
from brinell.evaluation.run_stage import StageContext
from brinell.finding import Finding
from brinell.results import Proportion, wilson

# Blocks of rows in flight unless told otherwise: enough to spread the engine's own work.
BLOCKS = {"cpu": 4}
# The clean accuracy a user expects must lie in this confidence interval of the measured one.
EXPECTED_CONFIDENCE = 0.999


def chosen_plan(plan: Any, audit: float | int | None, escalate: bool) -> Plan:
    """The plan with the audit asked for; refuses to escalate from none."""
    chosen = coerce.as_plan(plan)
    if audit is not None:
        chosen = audited(chosen, audit)
    if escalate and not chosen.has_audit:
        raise PlanError(
            expected="a plan with an audit to escalate from",
            got=f"{chosen.name}, without one",
            remedy="Use the plan fast with its audit, or autoattack.",
        )
    return chosen


def prepare(
    classifier: Classifier,
    problem: Problem,
    threat: Threat,
    plan: Plan,
    *,
    seed: int,
    slots: int | None,
    precision: str,
    listener: Listener,
    early_exit: bool = True,
    expected: float | None = None,
    individual: bool = False,
    execution: str = "auto",
    device: torch.device | None = None,
) -> PreparedEvaluation:
    """Look at everything before anything is written; `device` is what the work is done on, if not here."""
    device = classifier.device if device is None else device
    mode = _execution_mode(classifier, device, precision, execution)
    _check_seed(seed)
    threat.check(problem.shape(), len(problem))
    check_train_mode = model_checks.check_train_mode(classifier)
    steering = precisions.FLOAT32 if precision == precisions.AUTO else precision
    oracle = accelerated(Oracle(classifier, default_block(device), listener, precision=steering), device)
    first, answer, pace = _asked(oracle, problem)
    fitted, adapted = _fitted(plan, threat, problem, first, answer.logits.shape[1])
    fitted, left_out = fit_to_detector(fitted, threat, classifier, answer)
    model_findings = _run_checks(oracle, fitted, threat, first, answer.logits, adapted)
    checks = [check_train_mode, *model_findings, *run_detector_checks(oracle, fitted, threat, first, answer)]
    notes = [*model_checks.single_logit(answer.logits), *adapted, *left_out]
    for note in notes:
        listener(Note(note))
    # Compile only now: the few queries of the checks would take longer to compile than to run.
    oracle = accelerated(oracle, device, fuse=mode == "compile")
    capturable = _capturable(mode, device, checks, fitted)
    # Workers elsewhere record and measure for themselves.
    graph_cache = GraphCache(listener) if capturable and classifier.device.type == "cuda" else None
    fingerprint = classifier.fingerprint if graph_cache is not None and slots is None else None
    context = StageContext(
        oracle,
        threat,
        seed,
        _slots(slots, oracle, device, problem.shape(), fingerprint),
        oracle.precision,
        # Without a radius no success is near enough to stop at.
        early_exit and not threat.unlimited,
        criterion=Misclassified() if answer.reject is None else Evades(),
        listener=listener,
        draws=fitted.draws,
        graph_cache=graph_cache,
        capturable=capturable,
        shape=problem.shape() if slots is None else None,
    )
    alone = individual or threat.unlimited
    prepared = PreparedEvaluation(
        context, fitted, problem, first, answer, checks, notes, device, alone, pace, fingerprint=fingerprint
    )
    _check_expected(prepared, expected)
    return _with_best_precision(prepared) if precision == precisions.AUTO else prepared


def _execution_mode(classifier: Classifier, device: torch.device, precision: str, execution: str) -> str:
    """How the model's passes are executed on the device; refuses a precision that cannot be had there."""
    precisions.check(precision)
    mode = resolve_execution(execution, device)
    if precision == precisions.AUTO and device.type != classifier.device.type:
        raise InputError(
            expected="a precision to use on the workers",
            got=f"auto, with the model on {classifier.device} where nothing about {device.type} can be measured",
            remedy="Choose float32, tf32 or bfloat16, or put the model on the workers' kind of device.",
        )
    return mode


def _check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise InputError(expected="a whole number of 64 bits as seed", got=repr(seed), remedy="Use seed=0.")


def _asked(oracle: Oracle, problem: Problem) -> tuple[Chunk, Output, float]:
    """The first chunk, the model's answer about it, and the seconds that took per row."""
    first = next(problem.chunks(chunk_size(problem)))
    begun = time.perf_counter()
    answer = model_checks.first_forward(oracle, first)
    pace = (time.perf_counter() - begun) / -(-len(first) // oracle.block) / oracle.block
    if not problem.streamed:  # then every label can be looked at now
        model_checks.require_known_labels(Chunk(problem.ids, problem.x, problem.y), answer.logits.shape[1])
    return first, answer, pace


def _fitted(plan: Plan, threat: Threat, problem: Problem, first: Chunk, classes: int) -> tuple[Plan, list[str]]:
    """The plan adapted to the model, the inputs and the threat, and a sentence for everything that had to change."""
    fitted, notes = adapt(plan, threat, classes=classes, image=first.x.ndim == 4)
    require_suitable(fitted, threat)
    for s in fitted.stages_for(threat):
        s.ranking.threat(threat).check(problem.shape(), len(problem))
    return fitted, notes


def _run_checks(
    oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, logits: Tensor, notes: list[str]
) -> list[Finding]:
    """What one block of samples tells about the model before the first attack step."""
    model_checks.require_known_labels(first, logits.shape[1])
    if plan.needs_gradients:
        model_checks.require_gradients(oracle.classifier)
    n = min(len(first), oracle.block)
    x, y, logits = first.x[:n].to(logits.device), first.y[:n].to(logits.device), logits[:n]
    checks = model_checks.run_model_checks(oracle, x, logits)
    if plan.draws > 1:
        # The plan is made for randomised models.
        checks = [_expected_noise(c) if c.name == "randomised" else c for c in checks]
    return [*checks, *run_gradient_checks(oracle, plan, threat, x, y, logits, notes)]


def _capturable(execution: str, device: torch.device, checks: list[Finding], plan: Plan) -> bool:
    """Where iterations can be recorded: not of a randomised model, whose noise may come from the host."""
    steady = plan.draws == 1 and all(c.level == "ok" for c in checks if c.name == "randomised")
    return execution != "eager" and device.type == "cuda" and steady


def _slots(
    slots: int | None, oracle: Oracle, device: torch.device, shape: tuple[int, ...], fingerprint: str | None
) -> int:
    """As many as asked for, else as is usual, or as pays for the model of this fingerprint where calls are recorded."""
    if slots is None:
        lanes = BLOCKS.get(device.type, 1) if fingerprint is None else micro_batches_for(oracle, shape, fingerprint)
        return oracle.block * lanes
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise InputError(
            expected="slots of at least 1, a whole number", got=f"{slots}", remedy="Leave it out for the default."
        )
    return slots


def _expected_noise(check: Finding) -> Finding:
    """Noise is what the plan is for; without any the verdict must not make allowances for it."""
    if check.level == "ok":
        return replace(check, level="info", message=f"{check.message}: the plan is for randomised models, this is none")
    return replace(check, level="ok")


def _check_expected(s: PreparedEvaluation, expected: float | None) -> None:
    if expected is None:
        return
    if not (isinstance(expected, int | float) and 0 <= expected <= 1):
        raise InputError(
            expected="expected_clean_accuracy between 0 and 1", got=f"{expected}", remedy="Write 0.85 for 85 %."
        )
    good, n = int(clean(s.first, [s.first_output]).correct.sum()), len(s.first)
    low, high = wilson(good, n, EXPECTED_CONFIDENCE)
    if not low <= expected <= high:
        raise ModelError(
            expected=f"a clean accuracy of {100 * expected:.1f} %",
            got=f"{Proportion(good, n)}",
            remedy="Check normalisation, channel order, resizing and label order before attacking.",
        )


def _with_best_precision(s: PreparedEvaluation) -> PreparedEvaluation:
    """The evaluation with the precision that a probe finds best, and a note that says why."""
    choice = choose_precision(s.context, s.plan.stages_for(s.context.threat), s.facts())
    s.context.listener(Note(str(choice)))
    context = replace(s.context, oracle=replace(s.oracle, precision=choice.precision), precision=choice.precision)
    return replace(s, context=context, notes=[*s.notes, str(choice)], choice=choice)
