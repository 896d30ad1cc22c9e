"""Check and fit everything before an evaluation begins; nothing is written here."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from brinell.checks import model as model_checks
from brinell.checks.detector import fit_to_detector, run_detector_checks
from brinell.checks.differences import check_differences
from brinell.checks.gradients import run_gradient_checks
from brinell.core.criterion import Evades, Misclassified
from brinell.core.dataset import Chunk, Problem, numbered
from brinell.core.execution import Blocks, Execution
from brinell.core.model import Classifier, Output
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.model_cost import ModelCost, model_cost
from brinell.cost.precision import PrecisionChoice, try_precisions
from brinell.cost.settings import (
    MICRO_BATCHES,
    TF32,
    Device,
    GpuSettings,
    Workload,
    choose_blocks,
    choose_settings,
    kernels_of,
)
from brinell.engine import precision as precisions
from brinell.engine.accelerate import accelerated, resolve_execution
from brinell.engine.cuda.compile import known_kernels
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Listener, Note, Phase, silent
from brinell.engine.exact_sizes import exact_sizes
from brinell.engine.oracle import Oracle, default_block, default_blocks
from brinell.errors import InputError, ModelError
from brinell.evaluation.adaptive import adapt_to_masking, find_batch_dependence, one_row_at_a_time
from brinell.evaluation.context import PreparedEvaluation, StageContext, chunk_size
from brinell.evaluation.plan import adapt, require_suitable
from brinell.evaluation.rows import clean
from brinell.finding import Finding
from brinell.results import Proportion, wilson
from brinell.results.format.manifest import MANIFEST, Environment, Identity, decode

# Default number of blocks in the slots: enough to amortise the engine's own work, and for several calls at a time.
BLOCKS = {"cpu": 4, "cuda": MICRO_BATCHES}
# Shorter attacks are not captured: a capture takes some twenty iterations for each of several micro-batches.
LEAST_ITERATIONS = 50
AUTO_MODE = "auto"
# With fewer queries per sample, calls with fewer rows save less than it costs to find them.
WORTHWHILE = 10
# The expected clean accuracy must lie in this confidence interval of the measured one.
EXPECTED_CONFIDENCE = 0.999


def stored_settings(how: Execution, folder: Path | None) -> Execution:
    """Return the options; what they leave open is taken from the Run to resume in `folder`, if there is one."""
    if folder is None or not (folder / MANIFEST).exists():
        return how
    stored = decode(folder)
    return with_settings(how, stored.identity, stored.environment)


def with_settings(how: Execution, identity: Identity, environment: Environment) -> Execution:
    """Return the options; what they leave open is taken from a stored Run."""
    if how.precision == precisions.AUTO:
        how = replace(how, precision=identity.precision or precisions.FLOAT32)
    settings = GpuSettings.read(identity.raw)
    if settings is None or not environment.raw.get("cuda"):
        return how
    mode = {True: "compile", False: "graph"}[settings.compiled] if how.mode == AUTO_MODE else how.mode
    return replace(how, mode=mode, blocks=how.blocks or settings.blocks)


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
    device = classifier.device if device is None else device
    mode = _execution_mode(device, execution)
    threat.check(problem.shape(), len(problem))
    train_mode = model_checks.check_train_mode(classifier)
    dependent = find_batch_dependence(classifier, problem, threat) if adaptive else None
    execution = execution if dependent is None else one_row_at_a_time(execution)
    cost, blocks = _blocks(classifier, problem, device, execution)
    settled = _settled(execution, device, blocks)
    first_precision = precisions.FLOAT32 if settled is None else settled.precision
    usual = default_block(device) if blocks is None else blocks.usual
    oracle = accelerated(Oracle(classifier, usual, listener, precision=first_precision, blocks=blocks), device)
    listener(Phase("checking the model"))
    first, answer, pace = _first_output(oracle, problem)
    more = adapt_to_masking(oracle, plan, threat, first, answer.logits) if adaptive else None
    fitted, adapted = _fitted(plan if more is None else more.plan, threat, problem, first, answer.logits.shape[1])
    fitted, left_out = fit_to_detector(fitted, threat, classifier, answer)
    oracle.sizes = () if dependent is not None else _exact_sizes(oracle, fitted, threat, first, device)
    checks = [train_mode]
    if not checked:
        checks += _run_checks(oracle, fitted, threat, first, answer.logits, adapted)
        checks += run_detector_checks(oracle, fitted, threat, first, answer)
    checks = [c if dependent is None or c.name != dependent.name else dependent for c in checks]
    checks += [more.finding] if more is not None else []
    notes = [*problem.notes, *model_checks.single_logit(answer.logits), *adapted, *left_out]
    for note in notes:
        listener(Note(note))
    # Workers on other devices capture for themselves.
    capturable = _capturable(mode, device, checks, fitted)
    here = capturable and classifier.device.type == "cuda"
    context = StageContext(
        oracle,
        threat,
        execution.seed,
        oracle.block * BLOCKS.get(device.type, 1) if execution.slots is None else execution.slots,
        oracle.precision,
        # Without a radius an attack never ends early.
        early_exit and not threat.unlimited,
        criterion=Misclassified() if answer.reject is None else Evades(),
        listener=listener,
        draws=fitted.draws,
        graph_cache=GraphCache(listener, least=LEAST_ITERATIONS) if here else None,
        capturable=capturable,
        shape=problem.shape() if execution.slots is None else None,
    )
    alone = individual or threat.unlimited
    prepared = PreparedEvaluation(
        context, fitted, problem, first, answer, checks, notes, device, alone, pace,
        fingerprint=classifier.fingerprint if here else None, open_settings=_open_settings(execution, device),
    )  # fmt: skip
    _check_expected(prepared, expected)
    if settled is None:
        settled = _chosen(prepared, execution, cost, oracle.blocks or default_blocks(device))
    listener(Phase(""))
    if cost.operations is not None:
        seconds = _workload(prepared, cost).seconds(settled.precision, settled.compiled)
        prepared = replace(prepared, expected_seconds=seconds)
    return with_chosen(prepared, settled)


def _blocks(
    classifier: Classifier, problem: Problem, device: torch.device, execution: Execution
) -> tuple[ModelCost, Blocks | None]:
    """Return the cost of the model on a GPU, and the rows per call; None: the usual ones."""
    on_gpu = device.type == "cuda" == classifier.device.type
    cost = model_cost(classifier, problem.shape()) if on_gpu else ModelCost()
    if execution.blocks is not None or not on_gpu:
        return cost, execution.blocks
    return cost, choose_blocks(len(problem), cost, Device.of(device).memory)


def _settled(execution: Execution, device: torch.device, blocks: Blocks | None) -> GpuSettings | None:
    """Return the settings where nothing is left to choose: always on a CPU, whose "auto" is float32 and uncompiled."""
    if device.type == "cuda" and AUTO_MODE in (execution.mode, execution.precision):
        return None
    precision = precisions.FLOAT32 if execution.precision == precisions.AUTO else execution.precision
    return GpuSettings(precision, execution.mode == "compile", blocks or default_blocks(device))


def _open_settings(execution: Execution, device: torch.device) -> tuple[str, ...]:
    """Return the fields of the identity that the options leave open."""
    if device.type != "cuda":
        return ()
    opened = {"precision": execution.precision, "execution": execution.mode}
    fields = tuple(name for name, value in opened.items() if value == AUTO_MODE)
    return (*fields, "block", "other_blocks") if execution.blocks is None else fields


def _chosen(s: PreparedEvaluation, execution: Execution, cost: ModelCost, blocks: Blocks) -> GpuSettings:
    """Return the settings that end soonest on a GPU. Workers on other devices use TF32, uncompiled."""
    c = s.oracle.classifier
    if c.device.type != "cuda":
        precision = TF32 if execution.precision == precisions.AUTO else execution.precision
        return GpuSettings(precision, execution.mode == "compile", blocks)
    # A randomised model is compiled only on request.
    mode = execution.mode if s.context.capturable or execution.mode != AUTO_MODE else "eager"
    return choose_settings(_workload(s, cost), blocks, execution.precision, mode, partial(_try, s))


def _workload(s: PreparedEvaluation, cost: ModelCost) -> Workload:
    c, n = s.oracle.classifier, len(s.problem)
    kernels = kernels_of(c, s.problem.shape())
    return Workload(n, s.stages, s.context.threat, cost, Device.of(c.device), kernels, known_kernels())


def _try(s: PreparedEvaluation, seconds: float) -> PrecisionChoice:
    s.context.listener(Phase("trying lower precision"))
    return try_precisions(s.context, s.stages, s.first_clean(), seconds)


def with_chosen(s: PreparedEvaluation, settings: GpuSettings) -> PreparedEvaluation:
    """Return the evaluation with these settings. It is compiled only now: the few queries of the checks were not."""
    was = s.oracle
    oracle = replace(was, precision=settings.precision)
    if s.device.type == "cuda":
        blocks = settings.blocks
        block = was.block if was.shrunk else blocks.usual
        oracle = replace(oracle, blocks=blocks, block=block)
    oracle = accelerated(oracle, s.device, fuse=settings.compiled)
    measured = s.context.shape is not None
    slots = oracle.block * BLOCKS.get(s.device.type, 1) if measured else s.context.slots
    context = replace(s.context, oracle=oracle, precision=settings.precision, slots=slots)
    notes = [*s.notes, settings.why] if settings.why else s.notes
    if settings.why:
        s.context.listener(Note(settings.why))
    choice = None if settings.trial is None else settings.trial.to_json()
    return replace(s, context=context, notes=notes, precision_choice=choice)


def _execution_mode(device: torch.device, execution: Execution) -> str:
    """Return the execution mode; refuse an unknown precision or mode."""
    precisions.check(execution.precision)
    return resolve_execution(execution.mode, device)


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
        x, y = first.x[rows].to(device), first.y[rows].to(device)
        attempts = max(len(s.attempts()) for s in plan.stages_for(threat))
        return exact_sizes(oracle, x, y, gradients, oracle.padded(len(first) * attempts))
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
    n = min(len(first), oracle.checked)
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
            remedy="Check normalisation, channel order, resizing and label order before attacking." + _labels(s),
        )


def _labels(s: PreparedEvaluation) -> str:
    classes = s.problem.classes
    return "" if classes is None else f" The labels are {numbered(classes)}."
