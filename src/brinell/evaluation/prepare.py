"""Check and fit everything before an evaluation begins; nothing is written here."""

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from brinell.checks import model as model_checks
from brinell.checks.detector import fit_to_detector, run_detector_checks
from brinell.checks.differences import check_differences
from brinell.checks.gradients import run_gradient_checks
from brinell.core.criterion import Evades, Misclassified
from brinell.core.dataset import Chunk, Problem
from brinell.core.execution import Execution
from brinell.core.model import Classifier, Output
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.precision import choose_precision
from brinell.engine import precision as precisions
from brinell.engine.accelerate import accelerated, resolve_execution
from brinell.engine.cuda.autotune import micro_batches_for
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Listener, Note, silent
from brinell.engine.exact_sizes import exact_sizes
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError
from brinell.evaluation.adaptive import adapt_to_masking
from brinell.evaluation.context import PreparedEvaluation, StageContext, chunk_size
from brinell.evaluation.plan import adapt, require_suitable
from brinell.evaluation.rows import clean
from brinell.finding import Finding
from brinell.results import Proportion, wilson
from brinell.results.format.manifest import MANIFEST, decode

# Default number of blocks in the slots: enough to amortise the engine's own work.
BLOCKS = {"cpu": 4}
# With fewer queries per sample, calls with fewer rows save less than it costs to find them.
WORTHWHILE = 10
# The expected clean accuracy must lie in this confidence interval of the measured one.
EXPECTED_CONFIDENCE = 0.999


def stored_precision(precision: str, folder: Path | None) -> str:
    """Return `precision`; if it is "auto" and `folder` has a Run to resume, the precision of this Run."""
    if precision != precisions.AUTO or folder is None or not (folder / MANIFEST).exists():
        return precision
    return decode(folder).identity.precision or precisions.FLOAT32


def prepare(
    classifier: Classifier, problem: Problem, threat: Threat, plan: Plan, execution: Execution,
    listener: Listener = silent,
    *, early_exit: bool = True, expected: float | None = None, individual: bool = False,
    device: torch.device | None = None, adaptive: bool = False, checked: bool = False,
) -> PreparedEvaluation:  # fmt: skip
    """Check the model and the data, fit the plan to them, and return the evaluation, ready to run.

    `device` is the device that runs the attacks (default: the device of the model). With `adaptive` the plan also gets
    what the model needs (`brinell.evaluation.adaptive`). `checked` says that the same model and plan have passed the
    checks already, which are then left out.
    """
    device, precision = classifier.device if device is None else device, execution.precision
    mode = _execution_mode(classifier, device, execution)
    threat.check(problem.shape(), len(problem))
    train_mode = model_checks.check_train_mode(classifier)
    first_precision = precisions.FLOAT32 if precision == precisions.AUTO else precision
    oracle = accelerated(Oracle(classifier, default_block(device), listener, precision=first_precision), device)
    first, answer, pace = _first_output(oracle, problem)
    more = adapt_to_masking(oracle, plan, threat, first, answer.logits) if adaptive else None
    fitted, adapted = _fitted(plan if more is None else more.plan, threat, problem, first, answer.logits.shape[1])
    fitted, left_out = fit_to_detector(fitted, threat, classifier, answer)
    oracle.sizes = _exact_sizes(oracle, fitted, threat, first, device)
    checks = [train_mode]
    if not checked:
        checks += _run_checks(oracle, fitted, threat, first, answer.logits, adapted)
        checks += run_detector_checks(oracle, fitted, threat, first, answer)
    checks += [more.finding] if more is not None else []
    notes = [*problem.notes, *model_checks.single_logit(answer.logits), *adapted, *left_out]
    for note in notes:
        listener(Note(note))
    # Compile only now: the few queries of the checks would take longer to compile than to run.
    oracle = accelerated(oracle, device, fuse=mode == "compile")
    capturable = _capturable(mode, device, checks, fitted)
    # Workers on other devices capture and measure for themselves.
    graph_cache = GraphCache(listener) if capturable and classifier.device.type == "cuda" else None
    fingerprint = classifier.fingerprint if graph_cache is not None and execution.slots is None else None
    context = StageContext(
        oracle,
        threat,
        execution.seed,
        _slots(execution.slots, oracle, device, problem.shape(), fingerprint),
        oracle.precision,
        # Without a radius an attack never ends early.
        early_exit and not threat.unlimited,
        criterion=Misclassified() if answer.reject is None else Evades(),
        listener=listener,
        draws=fitted.draws,
        graph_cache=graph_cache,
        capturable=capturable,
        shape=problem.shape() if execution.slots is None else None,
    )
    alone = individual or threat.unlimited
    prepared = PreparedEvaluation(
        context, fitted, problem, first, answer, checks, notes, device, alone, pace, fingerprint=fingerprint
    )
    _check_expected(prepared, expected)
    return _with_best_precision(prepared) if precision == precisions.AUTO else prepared


def _execution_mode(classifier: Classifier, device: torch.device, execution: Execution) -> str:
    """Return the execution mode; refuse an unknown precision, and "auto" if model and workers differ in device type."""
    precisions.check(execution.precision)
    mode = resolve_execution(execution.mode, device)
    if execution.precision == precisions.AUTO and device.type != classifier.device.type:
        raise InputError(
            expected="a fixed precision for the workers",
            got=f"auto, which cannot be measured for {device.type} while the model is on {classifier.device}",
            remedy=f'Pass precision="float32" (or "tf32", "bfloat16"), or move the model: net.to("{device.type}").',
        )
    return mode


def _first_output(oracle: Oracle, problem: Problem) -> tuple[Chunk, Output, float]:
    """Return the first chunk, the model's output for it, and the seconds per row of this forward pass."""
    first = next(problem.chunks(chunk_size(problem)))
    begun = time.perf_counter()
    answer = model_checks.first_forward(oracle, first)
    pace = (time.perf_counter() - begun) / -(-len(first) // oracle.block) / oracle.block
    if not problem.streamed:  # then every label can be checked now
        model_checks.require_known_labels(Chunk(problem.ids, problem.x, problem.y), answer.logits.shape[1])
    return first, answer, pace


def _exact_sizes(oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, device: torch.device) -> tuple[int, ...]:
    """Return the `sizes` of the oracle: none on accelerators, for models that read sample ids, or for short plans."""
    queries = sum(s.attack.queries * len(s.attempts()) for s in plan.stages_for(threat))
    randomised = plan.draws > 1 or oracle.classifier.per_sample
    if device.type != "cpu" or randomised or queries < WORTHWHILE:
        return ()
    rows, gradients = slice(0, oracle.block), plan.needs_gradients and oracle.classifier.differentiable
    try:
        return exact_sizes(oracle, first.x[rows].to(device), first.y[rows].to(device), gradients)
    except RuntimeError:
        return ()  # the checks that follow say what is wrong with the model


def _fitted(plan: Plan, threat: Threat, problem: Problem, first: Chunk, classes: int) -> tuple[Plan, list[str]]:
    """Return the plan adapted to the model, the inputs and the threat, and a note for every change."""
    fitted, notes = adapt(plan, threat, classes=classes, image=first.x.ndim == 4)
    require_suitable(fitted, threat)
    for s in fitted.stages_for(threat):
        s.ranking.threat(threat).check(problem.shape(), len(problem))
    return fitted, notes


def _run_checks(
    oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, logits: Tensor, notes: list[str]
) -> list[Finding]:
    model_checks.require_known_labels(first, logits.shape[1])
    if plan.needs_gradients:
        model_checks.require_gradients(oracle.classifier)
    n = min(len(first), oracle.block)
    margins = model_checks.check_equal_margins(first.x, first.y, logits.cpu())
    x, y, logits = first.x[:n].to(logits.device), first.y[:n].to(logits.device), logits[:n]
    checks = [*model_checks.run_model_checks(oracle, x, logits), margins]
    steady = plan.draws == 1 and all(c.level == "ok" for c in checks if c.name == "randomised")
    if plan.draws > 1:
        # The plan is made for randomised models.
        checks = [_expected_noise(c) if c.name == "randomised" else c for c in checks]
    gradients = run_gradient_checks(oracle, plan, threat, x, y, logits, notes)
    differences = check_differences(oracle, threat, x, y) if steady and plan.needs_gradients else []
    return [
        *checks,
        *gradients,
        *differences,
        *model_checks.describe_access(oracle.classifier),
        *model_checks.check_input_size(oracle.classifier, x),
    ]


def _capturable(execution: str, device: torch.device, checks: list[Finding], plan: Plan) -> bool:
    """Return whether CUDA graphs can capture iterations: not with randomised models, whose noise may need the host."""
    steady = plan.draws == 1 and all(c.level == "ok" for c in checks if c.name == "randomised")
    return execution != "eager" and device.type == "cuda" and steady


def _slots(
    slots: int | None, oracle: Oracle, device: torch.device, shape: tuple[int, ...], fingerprint: str | None
) -> int:
    """Return `slots`; if None, a number measured for this model, or the default if `fingerprint` is None."""
    if slots is None:
        lanes = BLOCKS.get(device.type, 1) if fingerprint is None else micro_batches_for(oracle, shape, fingerprint)
        return oracle.block * lanes
    return slots


def _expected_noise(check: Finding) -> Finding:
    """Return the check `randomised` for a plan for randomised models: "ok" if the model is randomised, else "info"."""
    if check.level == "ok":
        return replace(check, level="info", message=f"{check.message}: the plan is for randomised models only")
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
    choice = choose_precision(s.context, s.stages, s.first_clean())
    s.context.listener(Note(str(choice)))
    context = replace(s.context, oracle=replace(s.oracle, precision=choice.precision), precision=choice.precision)
    return replace(s, context=context, notes=[*s.notes, str(choice)], precision_choice=choice.to_json())
