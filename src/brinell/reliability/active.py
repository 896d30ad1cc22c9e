"""The binarization test: whether an attack finds an adversarial example where one is known to exist."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.problem import Chunk, Problem
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ThreatError
from brinell.evaluate import inputs
from brinell.evaluate.evaluate import prepare
from brinell.evaluate.plan import Plan, Stage, adapt
from brinell.evaluate.progress import listening
from brinell.evaluate.stages import Setup, run_stage
from brinell.evaluate.tables import clean
from brinell.evaluate.verify import check_points
from brinell.reliability.binary import Design, Tasks, build
from brinell.reliability.chance import Chance
from brinell.reliability.features import Layer, features
from brinell.reliability.outcome import ActiveTest, Level
from brinell.reliability.readouts import as_readout
from brinell.results import ROWS, Proportion

__all__ = ["test_attack"]

# Closeness of the boundary, from as hard as possible to easy; ½ is the middle of the margin.
KAPPAS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1)
# What counts as an almost perfect score of the reference attack.
NEAR = 0.99
REFERENCE = "apgd"
NOT_SEPARATED, NOT_HELD = "its two classes cannot be separated", "float32 does not hold its two classes apart"
# Rows of the network that are looked at to find the readout.
LOOK = 8


@dataclass(frozen=True)
class Bench:
    """Everything that stays the same from one closeness to the next."""

    tasks: Tasks
    chunk: Chunk
    threat: Threat
    setup: Setup
    plan: Plan
    reference: Plan
    queries: int | None
    design: Design


@dataclass(frozen=True)
class Trial:
    """One closeness: the level, and of the tested attack what a result keeps."""

    level: Level
    held: Tensor
    found: Tensor
    rows: pa.Table


def test_attack(
    classifier: Any,
    problem: Any,
    threat: Threat,
    attack: Any = "apgd",
    *,
    inner: int = 999,
    boundary: int = 1,
    corners: bool | None = None,
    gap: float = 0.05,
    kappa: float | None = None,
    curve: bool = False,
    readout: Any = "linear",
    layer: Layer = None,
    reference: Any = REFERENCE,
    random_queries: int | None = None,
    seed: int = 0,
    slots: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
) -> ActiveTest:
    """Test an attack or plan where an adversarial is known to exist, on as many classifiers as there are samples.

    Method: around every sample x draw `inner` points within (1 − gap)·eps and `boundary` points at distance eps (Linf:
    corners unless `corners=False`), and replace the network's last layer by a two-class `readout` that tells the two
    apart exactly. Its decision boundary is moved to κ of the way from the nearest inner point to the farthest boundary
    point, its logits are rescaled to the range of the original ones. The attack starts at x; the score is the share of
    samples it breaks. R-ASR is that share for as many random points as the attack used where it needed most (or
    `random_queries`). Without `kappa` the test begins as hard as possible and gets easier until the `reference` attack
    is almost perfect; `curve` looks at all levels. `layer` names the readout of a network that does not end in a linear
    layer. Cost: inner + boundary + 1 forwards per sample; the tested plan, the reference and the random points once per
    level.
    Reference: Zimmermann et al. 2022, Increasing confidence in adversarial robustness evaluations.

    >>> import brinell
    >>> data = brinell.data.load("demo", 8)
    >>> test = brinell.test_attack("demo", data, brinell.Linf(0.1), "pgd20", inner=99, kappa=0.9, progress=False)
    >>> test.n + test.skipped, test.score > test.rasr
    (8, True)
    """
    model, data = inputs.as_classifier(classifier, device), inputs.as_problem(problem)
    bound, chosen, other = inputs.as_threat(threat), inputs.as_plan(attack), inputs.as_plan(reference)
    kind = as_readout(readout)
    _bounded(bound)
    design = Design(inner, boundary, _corners(bound, corners), gap)
    levels = _levels(kappa)
    if random_queries is not None and random_queries < 1:
        raise InputError(
            expected="at least 1 query for the random points",
            got=f"{random_queries}",
            remedy="Leave it out for as many as the attack asks.",
        )
    begun = time.perf_counter()
    with precisions.exact(model.device), listening(progress) as listener:
        # The user's own model and plan pass the same door as in an evaluation.
        session = prepare(
            model, data, bound, _whole(chosen), seed=seed, slots=slots, precision="float32", listener=listener
        )
        chunk = _all(data)
        seen = features(model, chunk.x[:LOOK].to(model.device), layer)
        oracle = Oracle(seen, default_block(model.device), listener)
        listener(Note(f"Fitting readouts for {len(chunk)} samples, {inner + 1 + boundary} points each."))
        tasks = build(oracle, seen, kind, design, chunk, bound, seed)
        fitted = time.perf_counter()
        plans, notes = _fitted(session.setup.threat, chunk, (chosen, other), session.setup.draws)
        trials: list[Trial] = []
        if tasks is not None:
            bench = Bench(tasks, chunk, bound, session.setup, *plans, random_queries, design)
            trials = _climb_down(bench, levels, curve, listener)
    ended = time.perf_counter()
    chosen_trial = _chosen(trials)
    held = None if chosen_trial is None else chosen_trial.held
    return ActiveTest(
        attack=chosen.name,
        reference=other.name,
        model=model.name,
        threat=str(bound),
        readout=kind.name,
        layer=seen.source,
        inner=inner,
        boundary=boundary,
        surface="corners" if design.corners else "surface",
        level=_empty(levels[0], design) if chosen_trial is None else chosen_trial.level,
        curve=tuple(t.level for t in trials),
        ids=torch.zeros(0, dtype=torch.long) if tasks is None or held is None else tasks.ids[held].cpu(),
        found=torch.zeros(0, dtype=torch.bool) if chosen_trial is None else chosen_trial.found.cpu(),
        witnesses=chunk.x[:0] if tasks is None or held is None else tasks.facts.witness[held].cpu(),
        rows=ROWS.empty_table() if chosen_trial is None else chosen_trial.rows,
        reasons=_reasons(chunk, tasks, held),
        warnings=tuple(f"Check {c.name}: {c.message}" for c in session.checks if c.level in ("warn", "fail")),
        notes=(*session.notes, *notes),
        cost={"fit_seconds": fitted - begun, "seconds": ended - begun},
    )


# For pytest, which takes every function with such a name for a test.
setattr(test_attack, "__test__", False)  # noqa: B010


def _bounded(threat: Threat) -> None:
    if threat.unlimited or threat.norm.counts:
        raise ThreatError(
            expected="a ball of Linf, L2 or L1 with a radius, on whose surface the test's points lie",
            got=f"{threat}",
            remedy="Give the radius of the evaluation that is in question.",
        )


def _corners(threat: Threat, wanted: bool | None) -> bool:
    if wanted and not threat.norm.corners:
        raise ThreatError(
            expected="a norm whose ball has corners (Linf), for corners=True",
            got=threat.norm.name,
            remedy="Leave corners out: points are then drawn from the whole surface.",
        )
    return threat.norm.corners if wanted is None else wanted


def _levels(kappa: float | None) -> Sequence[float]:
    if kappa is None:
        return KAPPAS
    if not 0 < kappa < 1:
        raise InputError(
            expected="a closeness kappa above 0 and below 1",
            got=f"{kappa}",
            remedy="0.999 is hard, 0.5 the middle of the margin; leave it out to have it chosen.",
        )
    return (kappa,)


def _whole(p: Plan) -> Plan:
    """The plan without its audit, which attacks only a share of the samples."""

    def kept(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(s for s in stages if s.share is None)

    return replace(p, stages=kept(p.stages), sparse_stages=None if p.sparse_stages is None else kept(p.sparse_stages))


def _all(problem: Problem) -> Chunk:
    """Every sample in memory: the test is made for hundreds, not for a whole data set."""
    return next(problem.chunks(len(problem)))


def _fitted(threat: Threat, chunk: Chunk, plans: Sequence[Plan], draws: int) -> tuple[tuple[Plan, Plan], list[str]]:
    """The plans for two classes, and what changed in the tested one."""
    sparse, image = threat.norm.sparse, chunk.x.ndim == 4
    (tested, notes), (reference, _) = (adapt(_whole(p), classes=2, sparse=sparse, image=image) for p in plans)
    if len(tested.stages) < len(plans[0].stages) and any(s.share is not None for s in plans[0].stages):
        notes = [f"{plans[0].name}: tested without its audit.", *notes]
    return (tested, reference), notes


def _used(rows: pa.Table) -> int:
    """How many answers the attack asked for about the sample that cost it most, all stages together."""
    total = rows.group_by("sample_id").aggregate([("forwards", "sum")])
    return max(total["forwards_sum"].to_pylist(), default=1)


def _climb_down(b: Bench, levels: Sequence[float], everything: bool, listener: Listener) -> list[Trial]:
    """Level after level, the hardest first, until one is solved almost perfectly."""
    trials: list[Trial] = []
    for kappa in levels:
        listener(Note(f"kappa = {kappa:g}"))
        trials.append(_trial(b, kappa, always=len(levels) > 1))
        if _near(trials[-1].level) and not everything:
            break
    return trials


def _near(level: Level) -> bool:
    reached = [p.value for p in (level.score, level.reference) if p is not None and p.n]
    return max(reached, default=0.0) >= NEAR


def _chosen(trials: list[Trial]) -> Trial | None:
    """The hardest level that an attack solves almost perfectly; without one, that where one gets furthest."""
    if not trials:
        return None
    solved = [t for t in trials if _near(t.level)]
    if solved:
        return solved[0]
    return max(trials, key=lambda t: max(t.level.score.k, t.level.reference.k if t.level.reference else 0))


def _trial(b: Bench, kappa: float, always: bool) -> Trial:
    """Verify every sample's witness at this closeness, then let the attacks loose."""
    binary = b.tasks.classifier(kappa)
    setup = replace(b.setup, oracle=replace(b.setup.oracle, classifier=binary))
    held = _held(b, setup)
    if not len(held):
        return Trial(_empty(kappa, b.design), held, torch.zeros(0, dtype=torch.bool), ROWS.empty_table())
    at = b.tasks.at[held.cpu()]
    # Positions count from the first sample that is left, in the threat too, where every sample may have its own eps.
    chunk = Chunk(b.chunk.ids[at], b.chunk.x[at], torch.zeros(len(at), dtype=torch.long))
    eps = b.threat.eps
    setup = replace(setup, threat=replace(b.threat, eps=eps[at]) if isinstance(eps, Tensor) else b.threat)
    found, rows = _attacked(setup, b.plan, chunk)
    other = None
    if always or float(found.float().mean()) < NEAR:
        other = found if b.reference == b.plan else _attacked(setup, b.reference, chunk)[0]
    queries = _used(rows) if b.queries is None else b.queries
    random = _random(setup, chunk, queries)
    level = Level(kappa, _share(found), None if other is None else _share(other), random, queries)
    return Trial(level, held, found, rows)


def _share(found: Tensor) -> Proportion:
    return Proportion(int(found.sum()), len(found))


def _empty(kappa: float, design: Design) -> Level:
    none = Proportion(0, 0)
    return Level(kappa, none, None, {"corners" if design.corners else "surface": none})


def _held(b: Bench, setup: Setup) -> Tensor:
    """Samples whose clean point is of class 0 and whose witness is an adversarial within eps, by the model itself."""
    t = b.tasks
    x = b.chunk.x[t.at].to(t.ids.device)
    zero = torch.zeros_like(t.ids)
    ball = b.threat.ball(t.at, t.ids.device)
    v = check_points(setup.oracle, setup.goal, x, t.facts.witness, zero, zero - 1, ball, setup.draws, t.ids)
    votes = [setup.oracle.output(x, t.ids).logits for _ in range(setup.draws)]
    right = 2 * torch.stack([z.argmax(1) == 0 for z in votes], 1).sum(1) > setup.draws
    return (v.ok & right).nonzero()[:, 0]


def _attacked(setup: Setup, plan: Plan, chunk: Chunk) -> tuple[Tensor, pa.Table]:
    """Which samples the plan breaks, and its rows; samples broken by one stage are not attacked by the next."""
    x, ids = chunk.x.to(setup.oracle.classifier.device), chunk.ids.to(setup.oracle.classifier.device)
    c = clean(chunk, [setup.oracle.output(x, ids) for _ in range(setup.draws)])
    standing = torch.ones(len(chunk), dtype=torch.bool, device=x.device)
    tables = []
    for stage in plan.stages:
        for part in run_stage(setup, stage, c, standing.nonzero()[:, 0]):
            tables.append(part.table)
            standing[part.at[part.counted]] = False
    return ~standing, pa.concat_tables(tables) if tables else ROWS.empty_table()


def _random(setup: Setup, chunk: Chunk, queries: int) -> dict[str, Proportion]:
    """R-ASR: half of the points from inside the ball, half from its surface and, in Linf, from its corners."""
    half = max(queries // 2, 1)
    near, _ = _attacked(setup, _lone(Chance(half, "inside")), chunk)
    rest = (~near).nonzero()[:, 0].cpu()
    out = {}
    for where in ("corners", "surface") if setup.threat.norm.corners else ("surface",):
        found = near.clone()
        if len(rest):
            eps = setup.threat.eps
            threat = replace(setup.threat, eps=eps[rest]) if isinstance(eps, Tensor) else setup.threat
            part = Chunk(chunk.ids[rest], chunk.x[rest], chunk.y[rest])
            plan = _lone(Chance(max(queries - half, 1), where))
            found[rest.to(found.device)] = _attacked(replace(setup, threat=threat), plan, part)[0]
        out[where] = _share(found)
    return out


def _lone(attack: Chance) -> Plan:
    return Plan(attack.name, (Stage(attack),))


def _reasons(chunk: Chunk, tasks: Tasks | None, held: Tensor | None) -> dict[int, str]:
    reasons = dict.fromkeys(chunk.ids.tolist(), NOT_SEPARATED)
    if tasks is None:
        return reasons
    for i in tasks.ids.tolist():
        reasons[i] = NOT_HELD
    for i in [] if held is None else tasks.ids[held].tolist():
        del reasons[i]
    return reasons
