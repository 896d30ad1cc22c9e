"""Is the model robust, or did the attack fail? Indicators, and experiments that must turn out one way."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import Joint, Pursuit, Square
from brinell.core.attack import Answer, AnyAttack, Needs
from brinell.core.classifier import Classifier, Output
from brinell.core.goal import Misclassify
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.loop import Slots
from brinell.engine.oracle import Oracle
from brinell.errors import InputError, PlanError
from brinell.evaluate import inputs
from brinell.evaluate.plan import Plan, Stage
from brinell.evaluate.prepare import prepare
from brinell.evaluate.progress import listening
from brinell.evaluate.session import Session
from brinell.evaluate.stages import run_stage
from brinell.evaluate.tables import Clean
from brinell.ops import rng
from brinell.ops.rows import rows
from brinell.reliability import indicators
from brinell.reliability.indicators import FEW, NEIGHBOURS, few
from brinell.reliability.items import Item, Probes, Surface, judged
from brinell.reliability.trajectory import Trajectories, Witness

SAMPLES = 64
# Passes of the black-box attack and of pure noise on every sample that stands.
QUERIES, DRAWS = 500, 100
# One sample in fifty may fall to luck alone.
LUCK = 0.02
# The grid around the samples: from −1 to 1 radius in both directions, for so many samples.
GRID, SHOWN = 9, 16
# Along a random direction a margin may grow more than along the gradient for this share of the samples.
MISLED = 0.25


@dataclass
class Spent:
    """Passes so far, rows times passes."""

    forwards: int = 0
    backwards: int = 0

    def add(self, forwards: int, backwards: int = 0) -> None:
        """So many more."""
        self.forwards += forwards
        self.backwards += backwards


@dataclass(frozen=True)
class Bench:
    """The attack on the table: its session, the samples that are right at first, and a count of what is spent."""

    session: Session
    stage: Stage
    clean: Clean
    at: Tensor
    spent: Spent

    @property
    def oracle(self) -> Oracle:
        """The attacked model."""
        return self.session.oracle

    @property
    def x(self) -> Tensor:
        """The samples that are right at first."""
        return self.clean.chunk.x[self.at.cpu()].to(self.clean.logits.device)

    @property
    def y(self) -> Tensor:
        """Their labels."""
        return self.clean.chunk.y[self.at.cpu()].to(self.clean.logits.device)

    def run(
        self,
        stage: Stage,
        who: Tensor,
        *,
        threat: Threat | None = None,
        observe: "Callable[[Slots, Answer], None] | None" = None,
    ) -> "tuple[Tensor, Tensor]":
        """Which of the samples `who` (a mask over `at`) fall to a stage, and the adversarials of all who fall."""
        setup = replace(self.session.setup, early_exit=observe is None, observe=observe)
        setup = setup if threat is None else replace(setup, threat=threat)
        index = self.at[who.to(self.at.device)]
        fell = torch.zeros(len(self.clean.chunk), dtype=torch.bool)
        points = self.clean.chunk.x.clone()
        for part in run_stage(setup, stage, self.clean, index):
            won = part.at[part.counted].cpu()
            fell[won] = True
            points[won] = part.x
            table = part.table
            self.spent.add(sum(table["forwards"].to_pylist()), sum(table["backwards"].to_pylist()))
        return fell[self.at.cpu()], points[self.at.cpu()]


def probe(
    classifier: Any,
    problem: Any,
    threat: Threat,
    attack: Any = "apgd-ce",
    *,
    surrogate: Any = None,
    stage: str | None = None,
    samples: int = SAMPLES,
    neighbours: int = NEIGHBOURS,
    queries: int = QUERIES,
    seed: int = 0,
    slots: int | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = False,
) -> Probes:
    """Look for signs that an attack fails for reasons other than the model's robustness.

    Method: the attack (of a plan its first stage, or the one called `stage`) runs to the end of its budget on the first
    `samples` samples; the six indicators of Pintor et al. 2022 are computed from what it did, and experiments are
    made that must turn out one way: accuracy falls to zero as the threat grows to the whole box, an attack without
    gradients (`queries` passes) and pure noise find nothing that it missed, twice the steps lose nothing, and margins
    grow more along the gradient than at random. With a `surrogate` the attack runs on that, and what it finds is shown
    to the classifier. Cost: counted in the result; about five times that of the attack. Reference: Pintor et al. 2022,
    Indicators of attack failure; Carlini et al. 2019, On evaluating adversarial robustness.

    >>> import brinell
    >>> found = probe("demo", brinell.data.load("demo", 12), brinell.Linf(0.1), brinell.attacks.APGD(20), neighbours=4)
    >>> found.level, len(found.items)
    ('ok', 10)
    """
    evaluated = inputs.as_classifier(classifier, device)
    model = evaluated if surrogate is None else inputs.as_classifier(surrogate, device)
    if samples < 1:
        raise InputError(expected="at least 1 sample", got=f"{samples}", remedy=f"Leave it out for {SAMPLES}.")
    data = inputs.as_problem(problem)[:samples]
    with precisions.exact(model.device), listening(progress) as listener:
        bench = _bench(
            model, data, inputs.as_threat(threat), _only(inputs.as_plan(attack), stage), seed, slots, listener
        )
        return _probe(bench, evaluated, surrogate is None, neighbours, queries)


def _only(plan: Plan, name: str | None) -> Plan:
    """The plan cut down to one stage."""

    def cut(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(s for s in stages if name in (None, s.name))[:1]

    if not cut(plan.stages):
        raise PlanError(
            expected=f"a stage among {', '.join(s.name for s in plan.stages)}", got=repr(name), remedy="See the plan."
        )
    sparse = None if plan.sparse_stages is None else cut(plan.sparse_stages)
    return replace(plan, stages=cut(plan.stages), sparse_stages=sparse or None)


def _bench(
    model: Classifier, data: Any, threat: Threat, plan: Plan, seed: int, slots: int | None, listener: Listener
) -> Bench:
    if len(plan.stages) != 1 or plan.draws > 1:
        raise PlanError(
            expected="an attack on a model that is not randomised", got=plan.name, remedy="Probe one of its attacks."
        )
    session = prepare(model, data, threat, plan, seed=seed, slots=slots, precision="float32", listener=listener)
    clean = session.clean(next(session.chunks()))
    spent = Spent()
    spent.add(len(clean.chunk))
    at = clean.correct.nonzero()[:, 0]
    if not len(at):
        raise InputError(
            expected="samples that the model gets right", got="none", remedy="Check labels and normalisation."
        )
    listener(Note(f"probing {session.plan.stages[0].name} on {len(at)} samples"))
    return Bench(session, session.plan.stages[0], clean, at, spent)


def _probe(b: Bench, evaluated: Classifier, same: bool, neighbours: int, queries: int) -> Probes:
    everyone = torch.ones(len(b.at), dtype=torch.bool)
    goal, stage = b.session.setup.goal, b.stage
    witness = Witness(b.session.setup, goal, len(stage.legs()), stage.attack.queries, len(b.at))
    fell, points = b.run(stage, everyone, observe=witness)
    t = witness.trajectories()
    curve = _curve(b, fell)
    surface, misled = _surface(b)
    items = [
        *_indicators(b, t, neighbours),
        indicators.transfer_failure(*_labels(b, evaluated, fell, points), same),
        _unconstrained(b, curve),
        _black_box(b, fell, queries),
        _more_steps(b, fell),
        _noise(b, fell),
        _along_the_gradient(misled),
    ]
    return Probes(
        stage.name, len(b.at), tuple(i for i in items if i is not None), b.spent.forwards, b.spent.backwards,
        tuple(curve), surface, int(fell.sum()), tuple(b.session.notes),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- indicators


def _indicators(b: Bench, t: Trajectories, neighbours: int) -> list[Item]:
    attack, goal = b.stage.attack, b.session.setup.goal
    near = indicators.stability(b.oracle, goal, b.x, b.y, b.session.setup.seed, neighbours)
    b.spent.add(near.forwards * len(b.at))
    keeps_best = attack.minimises or attack.needs is Needs.LOGITS or isinstance(attack, Pursuit)
    return [
        indicators.unavailable_gradients(t),
        indicators.unstable_predictions(near),
        indicators.silent_success(t, keeps_best),
        indicators.incomplete_optimisation(t),
    ]


def _labels(b: Bench, evaluated: Classifier, fell: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """What both models say about the adversarials found: the class, or −1 where the input is rejected."""
    if not bool(fell.any()):
        return torch.zeros(0), torch.zeros(0)
    x = points[fell].to(b.clean.logits.device)
    b.spent.add(2 * len(x))
    both = b.oracle.output(x), Oracle(evaluated, b.oracle.block).output(x)
    return _label(both[0]), _label(both[1])


def _label(out: Output) -> Tensor:
    label = out.logits.argmax(1)
    return label if out.reject is None else torch.where(out.reject <= 0, label, -1)


# --------------------------------------------------------------------------------------------------------- experiments


def _radii(b: Bench) -> list[Threat]:
    """The threat, twice as large again and again, and at last the whole box."""
    threat = b.session.setup.threat
    size = int(torch.Size(b.x.shape[1:]).numel())
    whole = 0.999 * threat.norm.diameter(size)
    grown = [threat]
    # In float64, as both are: rounded to float32 the last radius may never arrive.
    while float(torch.as_tensor(grown[-1].eps, dtype=torch.float64).min()) < whole:
        eps = grown[-1].eps
        more = (2 * eps).clamp(max=whole) if isinstance(eps, Tensor) else min(2 * eps, whole)
        grown.append(replace(threat, eps=more, text="grown"))
    return grown


def _curve(b: Bench, fell: Tensor) -> list[tuple[float, float]]:
    """Radius and accuracy left, from the threat to the whole box; what fell once stays fallen, as balls are nested."""
    grown = _radii(b)
    curve = [(_radius(grown[0]), int((~fell).sum()) / len(fell))]
    for threat in grown[1:]:
        if bool((~fell).any()):
            fell = fell | b.run(b.stage, ~fell, threat=threat)[0]
        curve.append((_radius(threat), int((~fell).sum()) / len(fell)))
    return curve


def _radius(threat: Threat) -> float:
    return float(threat.eps.mean()) if isinstance(threat.eps, Tensor) else float(threat.eps)


def _unconstrained(b: Bench, curve: list[tuple[float, float]]) -> Item:
    if b.session.setup.threat.mask is not None:
        return Item("unconstrained failure", "ok", None, FEW, "not looked at: the threat has a mask")
    return indicators.unconstrained_failure(curve[0][1], curve[-1][1], len(b.at))


def _without_gradients(b: Bench, queries: int) -> AnyAttack:
    square = Square(steps=queries)
    image = b.x.ndim == 4
    plain: AnyAttack = square if image else square.without_images()
    return plain if b.session.first_output.reject is None else Joint(plain)


def _black_box(b: Bench, fell: Tensor, queries: int) -> Item:
    name = "black box"
    if b.stage.attack.needs is Needs.LOGITS:
        return Item(name, "ok", None, LUCK, "the attack itself follows no gradients")
    found, _ = b.run(Stage(_without_gradients(b, queries), label="black box"), ~fell)
    share = int((found & ~fell).sum()) / len(fell)
    text = f"{int((found & ~fell).sum())} of {int((~fell).sum())} survivors fall to {queries} queries without gradients"
    return judged(
        name, share, few(len(fell), LUCK), text, "gradients are masked: see the indicators, or trust the black box more"
    )


def _longer(attack: Any) -> Any:
    """The attack with twice the steps, or None where it has no such number."""
    inner = getattr(attack, "inner", None)
    if inner is not None:
        more = _longer(inner)
        return None if more is None else replace(attack, inner=more)
    return replace(attack, steps=2 * attack.steps) if hasattr(attack, "steps") else None


def _more_steps(b: Bench, fell: Tensor) -> Item:
    name = "more steps"
    attack = _longer(b.stage.attack)
    if attack is None:
        return Item(name, "ok", None, FEW, "the attack has no number of steps")
    again, _ = b.run(replace(b.stage, attack=attack, label=b.stage.name), torch.ones_like(fell))
    lost, won = int((fell & ~again).sum()), int((again & ~fell).sum())
    text = f"twice the steps break {won} more samples and lose {lost}"
    advice = "the attack is not stable: use smaller or adaptive steps, or restarts"
    return judged(name, lost / len(fell), few(len(fell)), text, advice)


def _noise(b: Bench, fell: Tensor) -> Item:
    name, who = "random noise", (~fell).nonzero()[:, 0].to(b.at.device)
    found = 0
    if len(who):
        x, y = b.x[who], b.y[who]
        ball = b.session.setup.threat.ball(b.at[who].cpu() + b.clean.chunk.offset, x.device)
        ids = b.clean.chunk.ids.to(x.device)[b.at[who]]
        key = rng.fold(rng.keys(b.session.setup.seed, ids), rng.digest("noise"))
        reached = torch.zeros_like(y, dtype=torch.bool)
        for i in range(DRAWS):
            draw = (ball.inside, ball.start)[i % 2](x, rng.fold(key, i))
            inside = ball.contains(x, draw)
            reached |= b.session.setup.goal.reached(b.oracle.output(draw), y, torch.full_like(y, -1)) & inside
        b.spent.add(DRAWS * len(who))
        found = int(reached.sum())
    text = f"{found} of {len(who)} survivors fall to {DRAWS} random points of the threat"
    return judged(
        name, found / len(fell), LUCK, text, "the attack does worse than chance: fix its gradients or its steps"
    )


def _surface(b: Bench) -> tuple[Surface | None, float | None]:
    """Margins around the first samples, along the gradient and a random direction; and how often the latter wins."""
    if not b.oracle.classifier.differentiable:
        return None, None
    x, y = b.x[:SHOWN], b.y[:SHOWN]
    none = torch.full_like(y, -1)
    try:
        g = b.oracle.ask(x, y, none, "margin", Needs.GRAD).gradient
    except RuntimeError:  # no gradient at all, which has an indicator of its own
        return None, None
    ball = b.session.setup.threat.ball(b.at[:SHOWN].cpu() + b.clean.chunk.offset, x.device)
    key = rng.fold(rng.keys(b.session.setup.seed, torch.arange(len(x), device=x.device)), rng.digest("surface"))
    towards = rows(ball.eps, x) * ball.steepest(g)
    aside = rows(ball.eps, x) * ball.steepest(rng.normal(key, tuple(x.shape[1:])))
    steps = torch.linspace(-1, 1, GRID).tolist()

    def margin(v: Tensor) -> Tensor:
        # The classifier's own: its gradient is what is looked at, and a detector on the way says nothing about it.
        return Misclassify().margin(b.oracle.output(v.clamp(0, 1)), y, none)

    grid = [[margin(x + u * towards + v * aside) for v in steps] for u in steps]
    b.spent.add((GRID * GRID + 1) * len(x), len(x))
    middle = GRID // 2
    by_chance = torch.maximum(grid[middle][0], grid[middle][-1])
    misled = float((grid[-1][middle] < by_chance).float().mean())
    means = tuple(tuple(float(v.mean()) for v in line) for line in grid)
    return Surface(tuple(steps), tuple(steps), means, len(x)), misled


def _along_the_gradient(misled: float | None) -> Item:
    name = "loss surface"
    if misled is None:
        return Item(name, "ok", None, MISLED, "not looked at: the model has no gradients")
    text = f"along a random direction the margin grows more than along the gradient for {100 * misled:.0f} % of samples"
    return judged(name, misled, MISLED, text, "the gradient does not lead uphill: remove what masks or shatters it")
