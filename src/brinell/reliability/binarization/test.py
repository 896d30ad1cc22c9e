"""Run the binarization test: check whether an attack finds adversarial examples that are known to exist."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.attacks import APGD, PGD, Alternating, Joint, SelectivePGD, Square
from brinell.checks.detector import fit_to_detector, run_detector_checks
from brinell.core.criterion import Triggers
from brinell.core.dataset import Chunk, Problem
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.model import Classifier
from brinell.core.plan import Plan, Stage
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, ThreatError, one_of
from brinell.evaluation import coerce
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.plan import adapt
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.evaluation.rows import clean
from brinell.evaluation.run_stage import run_stage
from brinell.models.detector import Inverted, inverted
from brinell.models.wrap import TorchClassifier
from brinell.ops import rng
from brinell.reliability.binarization.binary_models import BinaryTasks, build_tasks
from brinell.reliability.binarization.features import Layer, find_features
from brinell.reliability.binarization.planting import Design, Planted, Search, accepting, plant, score_ascent
from brinell.reliability.binarization.readouts import as_readout
from brinell.reliability.binarization.result import DECIDES, INVERTED, PLAIN, REGULAR, BinarizationTest, worse_of
from brinell.reliability.binarization.trials import (
    Fitted,
    TestSpecification,
    choose_trial,
    empty_level,
    imitates,
    run_levels,
)
from brinell.results import ROWS

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["test_attack"]

# Closeness of the decision boundary, from hardest to easiest; 0.5 is the middle of the margin.
KAPPAS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1)
REFERENCE = "apgd"
# The reference attacks for a model with a detector, and for a detector without gradients.
EVADING = Plan(
    "evading",
    (
        Stage(APGD(loss="margin")),
        Stage(Alternating(100), label="alternating"),
        Stage(Joint(APGD(loss="margin")), label="joint-apgd"),
        Stage(SelectivePGD(100), label="selective-pgd"),
    ),
)
SEARCHING = Plan("searching", (Stage(APGD(loss="margin")), Stage(Joint(Square(steps=1000)), label="joint-square")))
BOTH = "both"
KINDS = (REGULAR, INVERTED, BOTH)
NOT_SEPARATED, NOT_HELD = "its two classes cannot be separated", "its two classes are not separated in float32"
NOT_PLANTED = "no point at distance eps was found that the detector "
# Samples used to find the readout layer.
READOUT_SAMPLES = 8


def test_attack(
    classifier: ModelLike, problem: DataLike, threat: Threat, attack: PlanLike = "apgd",
    *, kind: str | None = None, inner: int = 999, boundary: int = 1, corners: bool | None = None,
    gap: float = 0.05, kappa: float | None = None, curve: bool = False, readout: Any = "linear",
    layer: Layer = None, reference: PlanLike | None = None, random_queries: int | None = None,
    progress: bool | None = None, **options: "Unpack[ComputeOptions]",
) -> BinarizationTest:  # fmt: skip
    """Test an attack or plan on classifiers with a known adversarial example, one classifier per sample.

    Method: around every sample x, draw `inner` points within (1 − gap)·eps and `boundary` points at distance eps (Linf:
    corners unless `corners=False`). Replace the network's last layer by a two-class `readout` that separates the two
    sets exactly. Move its decision boundary to the fraction κ of the way from the nearest inner point to the farthest
    boundary point, and rescale its logits to the range of the original logits. The attack starts at x. The score is the
    share of samples that the attack breaks. R-ASR is the share that random points break: as many points as the attack
    may query, up to 400 (or `random_queries`). Without `kappa` the test starts at the hardest κ, 0.9999, and lowers κ
    until the attack or the `reference` attack breaks almost all samples; `curve=True` measures all κ. `layer` names the
    last layer; "outputs" takes the logits as features, as for a network that does not end in a linear layer. The
    detector of a model stays as it is, and `kind` chooses the test: in the "regular" test the detector must accept the
    boundary points and the attack's points, in the "inverted" test it must reject them; "both", the default, returns
    the worse test with the better test as its `other`. `options` are `seed`, `slots` and `device`. Cost: inner +
    boundary + 1 forwards per sample, with a detector up to 64 more per boundary point; the tested plan, the reference
    and the random points once per κ. Reference: Zimmermann et al. 2022, Increasing confidence in adversarial robustness
    evaluations.

    >>> import brinell
    >>> data = brinell.data.load("demo", 8)
    >>> test = brinell.test_attack("demo", data, brinell.Linf(0.1), "pgd20", inner=99, kappa=0.9, progress=False)
    >>> test.n + test.skipped, test.score > test.rasr
    (8, True)
    """
    (test,) = run_tests(
        classifier, problem, threat, (attack,), kind=kind, inner=inner, boundary=boundary, corners=corners, gap=gap,
        levels=KAPPAS if kappa is None else (kappa,), curve=curve, readout=readout, layer=layer, reference=reference,
        random_queries=random_queries, progress=progress, **options,
    )  # fmt: skip
    return test


def run_tests(
    classifier: ModelLike, problem: DataLike, threat: Threat, attacks: Iterable[PlanLike],
    *, kind: str | None = None, inner: int = 999, boundary: int = 1, corners: bool | None = None,
    gap: float = 0.05, levels: Sequence[int | float] = KAPPAS, curve: bool = False, readout: Any = "linear",
    layer: Layer = None, reference: PlanLike | None = None, random_queries: int | None = None, checked: bool = False,
    progress: bool | None = None, **options: "Unpack[ComputeOptions]",
) -> list[BinarizationTest]:  # fmt: skip
    """Return the test of every attack as `test_attack` returns it, at the closenesses κ in `levels`, hardest first.

    Attacks that are tested on the same points share the fitted readouts, the reference attack and the random points.
    `checked` leaves out the checks of model and plan, which an evaluation has made already.
    """
    execution = Execution.from_options(options, ComputeOptions)
    model, data = coerce.as_classifier(classifier, execution.device), coerce.as_problem(problem)
    bound, fitting = coerce.as_threat(threat), as_readout(readout)
    plans = [coerce.as_plan(attack) for attack in attacks]
    _bounded(bound)
    design = Design(inner, boundary, _corners(bound, corners), gap)
    _require_kappas(levels)
    if random_queries is not None and random_queries < 1:
        raise InputError(
            expected="at least 1 random point per sample",
            got=f"random_queries={random_queries}",
            remedy="Omit `random_queries` for as many points as the attack may query.",
        )
    fits: dict[tuple[Any, ...], Fitted] = {}
    tests = []
    with precisions.exact(model.device), show_progress(progress) as listener:
        for chosen in plans:
            if len(plans) > 1:
                listener(Note(f"Plan {chosen.name}"))
            # The model and the plan pass the same checks as in an evaluation.
            prepared = prepare(model, data, bound, _without_audit(chosen), execution, listener, checked=checked)
            kinds = _kinds(kind, model, prepared)
            other = _reference(prepared, kinds) if reference is None else coerce.as_plan(reference)
            chunk = _all(data)
            pair, notes = _fitted(prepared, model, chunk, (chosen, other))
            seen = find_features(model, chunk.x[:READOUT_SAMPLES].to(model.device), layer)
            # Attacks that match the features of another class need reference points of the second class.
            beyond = int(any(imitates(s) for p in pair for s in p.stages_for(bound)))
            q = TestSpecification(
                model, prepared, chunk, bound, pair, seen, fitting, replace(design, beyond=beyond), levels, curve,
                random_queries, tuple(notes),
            )  # fmt: skip
            tests.append(worse_of([_test(q, k, fits, listener) for k in kinds]))
    return tests


# Keep pytest from collecting this function as a test.
setattr(test_attack, "__test__", False)  # noqa: B010


def _kinds(kind: str | None, model: Classifier, prepared: PreparedEvaluation) -> tuple[str, ...]:
    wanted = None if kind is None else one_of("a kind of test", kind, KINDS)
    if prepared.first_output.reject is None:
        if wanted is not None:
            raise ModelError(
                expected=f"a model with a detector, for kind={wanted!r}",
                got="a model without a detector",
                remedy="Omit `kind`, or add a detector: brinell.wrap(net, detector=…).",
            )
        return (PLAIN,)
    if isinstance(model, Inverted):
        raise ModelError(
            expected="the original model",
            got="a model with an inverted detector",
            remedy='Pass the original model and kind="inverted".',
        )
    return (REGULAR, INVERTED) if wanted in (None, BOTH) else (str(wanted),)


def _reference(s: PreparedEvaluation, kinds: tuple[str, ...]) -> Plan:
    """Return the default reference attack: the strong plan whose success decides how hard the test may be."""
    if kinds == (PLAIN,):
        return coerce.as_plan(REFERENCE)
    try:
        run_detector_checks(s.oracle, EVADING, s.context.threat, s.first, s.first_output)
    except ModelError:
        return SEARCHING
    return EVADING


def _fit(q: TestSpecification, kind: str, listener: Listener) -> Fitted:
    """Draw the points of this kind of test, fit the readouts to them, and return both."""
    started, design, context = time.perf_counter(), q.design, q.prepared.context
    seen = replace(q.features, kind=kind)
    oracle = Oracle(seen, default_block(q.model.device), listener)
    points = design.inner + 1 + design.boundary + design.beyond
    what = "" if kind == PLAIN else f" ({kind} test)"
    listener(Note(f"Fitting readouts for {len(q.chunk)} samples, {points} points each{what}."))
    planted = _planted(q, kind)
    tasks = build_tasks(oracle, seen, q.readout, design, q.chunk, q.threat, context.seed, planted)
    return Fitted(planted, tasks, time.perf_counter() - started)


def _test(q: TestSpecification, kind: str, fits: dict[tuple[Any, ...], Fitted], listener: Listener) -> BinarizationTest:
    started, design = time.perf_counter(), q.design
    # What the drawn points depend on; the search for rejected points uses gradients if the plan does.
    key = (kind, design, q.prepared.context.draws, q.plans[0].needs_gradients)
    fitted = fits.get(key) or fits.setdefault(key, _fit(q, kind, listener))
    planted, tasks = fitted.planted, fitted.tasks
    trials = run_levels(q, fitted, listener)
    chosen = choose_trial(trials)
    held = None if chosen is None else chosen.held
    detector = q.model.detector if isinstance(q.model, TorchClassifier) else None
    return BinarizationTest(
        attack=q.plans[0].name,
        reference=q.plans[1].name,
        model=q.model.name,
        threat=str(q.threat),
        readout=q.readout.name,
        layer=q.features.source,
        inner=design.inner,
        boundary=design.boundary,
        surface="corners" if design.corners else "surface",
        level=empty_level(q.levels[0], design) if chosen is None else chosen.level,
        curve=tuple(t.level for t in trials),
        ids=torch.zeros(0, dtype=torch.long, device="cpu") if tasks is None or held is None else tasks.ids[held].cpu(),
        found=torch.zeros(0, dtype=torch.bool, device="cpu") if chosen is None else chosen.found.cpu(),
        witnesses=q.chunk.x[:0] if tasks is None or held is None else tasks.statistics.witness[held].cpu(),
        rows=ROWS.empty_table() if chosen is None else chosen.rows,
        reasons=_reasons(q.chunk, planted, tasks, held, kind),
        warnings=tuple(f"Check {c.name}: {c.message}" for c in q.prepared.checks if c.level in ("warn", "fail")),
        notes=(*q.prepared.notes, *q.notes),
        cost={"fit_seconds": fitted.seconds, "seconds": time.perf_counter() - started},
        kind=kind,
        detector="" if detector is None or kind == PLAIN else detector.describe(),
        drawn=planted.drawn,
    )


def _planted(q: TestSpecification, kind: str) -> Planted:
    """Draw the points of the second class; the detector must accept them or, in the inverted test, reject them."""
    context, device = q.prepared.context, q.model.device
    if kind == PLAIN:
        return plant(q.design, q.chunk, q.threat, context.seed, device)
    filter_model = q.model if kind == REGULAR else inverted(q.model)
    accepts = accepting(replace(context.oracle, classifier=filter_model), context.draws)
    search = _rejected_points(q) if kind == INVERTED else None
    return plant(q.design, q.chunk, q.threat, context.seed, device, accepts, search)


def _rejected_points(q: TestSpecification) -> Search | None:
    """Return a function that searches for points that the detector rejects, or None if there are no gradients.

    It is for samples with too few random points that the detector rejects. It alternates between adversarials of the
    classifier and ascent on the detector's score, with new noise for every attempt.
    """
    context, x = replace(q.prepared.context, criterion=Triggers()), q.chunk.x.to(q.model.device)
    statistics = clean(q.chunk, [context.oracle.output(x)])
    detector_gradients, attack_gradients = _reference(q.prepared, (INVERTED,)) is EVADING, q.plans[0].needs_gradients
    if not detector_gradients and not attack_gradients:
        return None

    def search(at: Tensor, attempt: int) -> Tensor:
        if detector_gradients and attempt % 2:
            key = rng.keys(context.seed, q.chunk.ids[at].to(x.device))
            return score_ascent(
                context.oracle, q.threat.ball(at + q.chunk.offset, x.device), x[at], rng.fold(key, attempt)
            )
        found = q.chunk.x.clone()
        for broken, rows in run_stage(
            context, Stage(PGD(loss="margin"), noise=f"planted {attempt}"), statistics, at.to(x.device)
        ):
            found[broken.cpu()] = torch.as_tensor(rows.x, device="cpu")
        return found[at].to(x.device)

    return search


def _bounded(threat: Threat) -> None:
    if threat.unlimited or threat.norm.counts:
        raise ThreatError(
            expected="a threat in Linf, L2 or L1 with a finite radius",
            got=f"{threat}",
            remedy="Pass the threat of your evaluation, e.g. brinell.Linf('8/255').",
        )


def _corners(threat: Threat, wanted: bool | None) -> bool:
    if wanted and not threat.norm.corners:
        raise ThreatError(
            expected="a norm whose ball has corners (Linf), for corners=True",
            got=threat.norm.name,
            remedy="Omit `corners` to draw points from the whole surface.",
        )
    return threat.norm.corners if wanted is None else wanted


def _require_kappas(levels: Sequence[int | float]) -> None:
    for kappa in levels:
        if not 0 < kappa < 1:
            raise InputError(
                expected="a closeness kappa above 0 and below 1",
                got=f"{kappa}",
                remedy="Omit `kappa` to let the test choose, or pass e.g. 0.999 (hard) or 0.5 (middle of the margin).",
            )


def _without_audit(p: Plan) -> Plan:
    """Return the plan without its audit, which attacks only a share of the samples."""
    return p.with_stages(lambda stages: tuple(s for s in stages if not s.is_audit))


def _all(problem: Problem) -> Chunk:
    """Return all samples of the problem as one chunk: the test is meant for hundreds of samples."""
    return next(problem.chunks(len(problem)))


def _fitted(
    prepared: PreparedEvaluation, model: Classifier, chunk: Chunk, plans: Sequence[Plan]
) -> tuple[tuple[Plan, Plan], list[str]]:
    """Return the two plans, adapted to two classes and to the detector, and notes on changes to the tested plan."""
    threat, image = prepared.context.threat, chunk.x.ndim == 4
    (tested, notes), (reference, _) = (adapt(_without_audit(p), threat, classes=2, image=image) for p in plans)
    if any(s.is_audit for s in plans[0].stages_for(threat)):
        notes = [f"{plans[0].name}: tested without its audit.", *notes]
    return (_for_detector(tested, prepared, model), _for_detector(reference, prepared, model)), notes


def _for_detector(p: Plan, prepared: PreparedEvaluation, model: Classifier) -> Plan:
    return fit_to_detector(p, prepared.context.threat, model, prepared.first_output)[0]


def _reasons(
    chunk: Chunk, planted: Planted, tasks: BinaryTasks | None, held: Tensor | None, kind: str
) -> dict[int, str]:
    reasons = {
        i: NOT_SEPARATED if enough else NOT_PLANTED + DECIDES[kind]
        for i, enough in zip(chunk.ids.tolist(), planted.enough.tolist(), strict=True)
    }
    if tasks is None:
        return reasons
    for i in tasks.ids.tolist():
        reasons[i] = NOT_HELD
    for i in [] if held is None else tasks.ids[held].tolist():
        del reasons[i]
    return reasons
