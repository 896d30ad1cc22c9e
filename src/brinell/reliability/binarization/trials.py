"""Run the binarization test at several values of κ, the closeness of the decision boundary to the known adversarial."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import torch
from torch import Tensor

from brinell.attacks.black_box.random_sampling import RandomSampling
from brinell.core.dataset import Chunk
from brinell.core.model import Classifier
from brinell.core.plan import Plan, Stage, Stages
from brinell.core.references import References
from brinell.core.threat import Threat
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle
from brinell.evaluation.context import PreparedEvaluation, StageContext
from brinell.evaluation.rows import clean
from brinell.evaluation.run_stage import run_stage
from brinell.evaluation.verify_points import verify_points
from brinell.ops.losses import LOSSES
from brinell.reliability.binarization.binary_models import BinaryTasks
from brinell.reliability.binarization.features import Features
from brinell.reliability.binarization.planting import Design, Planted
from brinell.reliability.binarization.readouts import Readout
from brinell.reliability.binarization.result import KappaLevel
from brinell.results import ROWS, Proportion

# The score of the reference attack that counts as almost perfect.
ALMOST_PERFECT = 0.99
# Zimmermann et al. 2022, appendix: 200 random points from inside the ball and 200 from its corners.
POINTS = 400


@dataclass(frozen=True)
class TestSpecification:
    """The prepared arguments of a binarization test, except its kind; `plans` are the tested and the reference plan."""

    model: Classifier
    prepared: PreparedEvaluation
    chunk: Chunk
    threat: Threat
    plans: tuple[Plan, Plan]
    features: Features
    readout: Readout
    design: Design
    levels: Sequence[int | float]
    curve: bool
    queries: int | None
    notes: tuple[str, ...]


@dataclass(eq=False)
class Fitted:
    """The fitted readouts of one kind of test, with stored outcomes of plans and random points on these readouts."""

    planted: Planted
    tasks: BinaryTasks | None
    seconds: float
    plans: list[tuple[float, Plan, tuple[Tensor, pa.Table]]] = field(default_factory=list)
    random: dict[tuple[float, int], dict[str, Proportion]] = field(default_factory=dict)

    def attacked(self, kappa: float, plan: Plan, context: StageContext, chunk: Chunk) -> tuple[Tensor, pa.Table]:
        """Return a mask of the samples that the plan breaks at this κ, and the plan's rows."""
        for at, known, result in self.plans:
            if at == kappa and known == plan:
                return result
        self.plans.append((kappa, plan, _attacked(context, plan, chunk)))
        return self.plans[-1][2]

    def random_points(self, kappa: float, queries: int, context: StageContext, chunk: Chunk) -> dict[str, Proportion]:
        """Return R-ASR at this κ with `queries` random points per sample, by the place of the points."""
        if (kappa, queries) not in self.random:
            self.random[kappa, queries] = _random(context, chunk, queries)
        return self.random[kappa, queries]


@dataclass(frozen=True)
class KappaTrial:
    """The outcome at one κ (`level`): `held` are positions of the tested samples, `found` marks those that broke."""

    level: KappaLevel
    held: Tensor
    found: Tensor
    rows: pa.Table


def imitates(s: Stage) -> bool:
    """Return whether the attack of the stage matches the features of an input of another class."""
    return LOSSES[s.attack.loss].matches


def _imitating(p: Plan, threat: Threat, found: References | None) -> Plan:
    """Return the plan with `found`, points beyond eps, as the inputs whose features its imitating attacks match."""
    if found is None:
        return p
    stages = (replace(s, attack=s.attack.with_references(found)) if imitates(s) else s for s in p.stages_for(threat))
    return replace(p, stages=tuple(stages))


def _beyond(tasks: BinaryTasks, held: Tensor, oracle: Oracle) -> References | None:
    points = tasks.statistics.beyond[held]
    if not points.shape[1]:
        return None
    ids = tasks.ids[held].repeat_interleave(points.shape[1])
    out = oracle.output(points.flatten(0, 1), ids)
    return References(torch.ones_like(ids), out.logits, out.features, ids)


def _matched(stages: Stages, rows: pa.Table) -> int:
    """Return the number of random points per sample: the plan's query budget up to 400, or the queries made if more.

    The queries made alone would be too few: after a fast attack on an easy problem, random sampling would get only a
    few points, and the problem would not look easy.
    """
    allowed = sum(s.attack.queries * len(s.attempts()) * s.eot for s in stages)
    total = rows.group_by("sample_id").aggregate([("forwards", "sum")])
    return max(min(allowed, POINTS), *total["forwards_sum"].to_pylist())


def run_levels(q: TestSpecification, fitted: Fitted, listener: Listener) -> list[KappaTrial]:
    """Return trials at successive κ, hardest first, until an attack breaks almost all samples (with `curve`: all κ)."""
    trials: list[KappaTrial] = []
    if fitted.tasks is None:
        return trials
    for kappa in q.levels:
        listener(Note(f"kappa = {kappa:g}"))
        trials.append(_trial(q, fitted, fitted.tasks, kappa))
        if _almost_perfect(trials[-1].level) and not q.curve:
            break
    return trials


def _almost_perfect(level: KappaLevel) -> bool:
    reached = [p.value for p in (level.score, level.reference) if p is not None and p.n]
    return max(reached, default=0.0) >= ALMOST_PERFECT


def choose_trial(trials: list[KappaTrial]) -> KappaTrial | None:
    """Return the trial at the hardest κ where an attack breaks almost all samples, or else the one that breaks most."""
    if not trials:
        return None
    solved = [t for t in trials if _almost_perfect(t.level)]
    if solved:
        return solved[0]
    return max(trials, key=lambda t: max(t.level.score.k, t.level.reference.k if t.level.reference else 0))


def _trial(q: TestSpecification, fitted: Fitted, tasks: BinaryTasks, kappa: float) -> KappaTrial:
    """Verify the known adversarial of every sample at this κ, run the attacks, and return the outcome."""
    (plan, reference), context = q.plans, q.prepared.context
    context = replace(context, oracle=replace(context.oracle, classifier=tasks.classifier(kappa)))
    held = _held(q, tasks, context)
    if not len(held):
        return KappaTrial(
            empty_level(kappa, q.design), held, torch.zeros(0, dtype=torch.bool, device="cpu"), ROWS.empty_table()
        )
    at = tasks.at[held.cpu()]
    # Positions in the chunk and in per-sample radii count only the verified samples.
    chunk = Chunk(q.chunk.ids[at], q.chunk.x[at], torch.zeros(len(at), dtype=torch.long, device="cpu"))
    context = replace(context, threat=q.threat.subset(at))
    imitated = _beyond(tasks, held, context.oracle)
    found, rows = fitted.attacked(kappa, _imitating(plan, q.threat, imitated), context, chunk)
    other = None
    if len(q.levels) > 1 or float(found.float().mean()) < ALMOST_PERFECT:
        other, _ = fitted.attacked(kappa, _imitating(reference, q.threat, imitated), context, chunk)
    queries = _matched(plan.stages_for(q.threat), rows) if q.queries is None else q.queries
    random = fitted.random_points(kappa, queries, context, chunk)
    level = KappaLevel(kappa, Proportion.of(found), None if other is None else Proportion.of(other), random, queries)
    return KappaTrial(level, held, found, rows)


def empty_level(kappa: float, design: Design) -> KappaLevel:
    """Return the level of a test without usable samples."""
    none = Proportion(0, 0)
    return KappaLevel(kappa, none, None, {"corners" if design.corners else "surface": none})


def _held(q: TestSpecification, t: BinaryTasks, context: StageContext) -> Tensor:
    """Return the positions of samples whose clean point has class 0 and whose known adversarial passes verification."""
    x, zero = q.chunk.x[t.at].to(t.ids.device), torch.zeros_like(t.ids)
    ball = q.threat.ball(t.at, t.ids.device)
    v = verify_points(
        context.oracle, context.criterion, x, t.statistics.witness, zero, zero - 1, ball, context.draws, t.ids
    )
    votes = [context.oracle.output(x, t.ids).logits for _ in range(context.draws)]
    right = 2 * torch.stack([z.argmax(1) == 0 for z in votes], 1).sum(1) > context.draws
    return (v.ok & right).nonzero()[:, 0]


def _attacked(context: StageContext, plan: Plan, chunk: Chunk) -> tuple[Tensor, pa.Table]:
    """Return a mask of the samples the plan breaks, and the plan's rows; a stage attacks only the survivors."""
    x, ids = chunk.x.to(context.oracle.classifier.device), chunk.ids.to(context.oracle.classifier.device)
    c = clean(chunk, [context.oracle.output(x, ids) for _ in range(context.draws)])
    standing = torch.ones(len(chunk), dtype=torch.bool, device=x.device)
    tables = []
    for stage in plan.stages_for(context.threat):
        for broken, rows in run_stage(context, stage, c, standing.nonzero()[:, 0]):
            tables.append(rows.table)
            standing[broken] = False
    return ~standing, pa.concat_tables(tables) if tables else ROWS.empty_table()


def _random(context: StageContext, chunk: Chunk, queries: int) -> dict[str, Proportion]:
    """Return R-ASR by place, "surface" and in Linf "corners": half of the points lie at the place, half in the ball."""
    half = max(queries // 2, 1)
    near, _ = _attacked(context, _lone(RandomSampling(half, "inside")), chunk)
    rest = (~near).nonzero()[:, 0].cpu()
    out = {}
    for where in ("corners", "surface") if context.threat.norm.corners else ("surface",):
        found = near.clone()
        if len(rest):
            part = Chunk(chunk.ids[rest], chunk.x[rest], chunk.y[rest])
            plan = _lone(RandomSampling(max(queries - half, 1), where))
            there = replace(context, threat=context.threat.subset(rest))
            found[rest.to(found.device)] = _attacked(there, plan, part)[0]
        out[where] = Proportion.of(found)
    return out


def _lone(attack: RandomSampling) -> Plan:
    return Plan(attack.name, (Stage(attack),))
