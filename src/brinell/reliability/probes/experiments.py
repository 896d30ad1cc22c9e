"""Experiments with the probed attack whose outcome is known in advance if the attack works."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks import Joint, Square
from brinell.core.attack import AnyAttack, Requires, Response
from brinell.core.criterion import Misclassified
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Slots
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import run_stage
from brinell.finding import Finding
from brinell.ops import rng
from brinell.ops.rowwise import rows
from brinell.reliability.probes import indicators
from brinell.reliability.probes.indicators import FEW, few
from brinell.reliability.probes.result import Surface, graded

# Forward passes per surviving sample of the black-box attack, and of random sampling.
QUERIES, DRAWS = 500, 100
# The share of samples that may break by chance.
LUCK = 0.02
# Points per axis of the grid, which spans -1 to 1 radius in both directions, and samples it averages over.
GRID, SHOWN = 9, 16
# The share of samples for which the margin may grow more in a random direction than along the gradient.
MISLED = 0.25


@dataclass
class PassCount:
    """A counter of forward and backward passes; a pass of a batch counts once per row."""

    forwards: int = 0
    backwards: int = 0

    def add(self, forwards: int, backwards: int = 0) -> None:
        self.forwards += forwards
        self.backwards += backwards


@dataclass(frozen=True)
class ProbedAttack:
    """An attack to probe (`stage`), its evaluation, positions `at` of correctly classified samples, and passes made."""

    prepared: PreparedEvaluation
    stage: Stage
    clean: Clean
    at: Tensor
    passes: PassCount

    @property
    def oracle(self) -> Oracle:
        return self.prepared.oracle

    @property
    def x(self) -> Tensor:
        return self.clean.chunk.x[self.at.cpu()].to(self.clean.logits.device)

    @property
    def y(self) -> Tensor:
        return self.clean.chunk.y[self.at.cpu()].to(self.clean.logits.device)

    def run(
        self, stage: Stage, who: Tensor,
        *, threat: Threat | None = None, observe: "Callable[[Slots, Response], None] | None" = None,
    ) -> "tuple[Tensor, Tensor]":  # fmt: skip
        """Attack the samples in the mask `who`; return a mask of the broken samples, and one point per sample.

        The point is the adversarial of a broken sample, the clean point of an unbroken sample.
        """
        context = replace(self.prepared.context, early_exit=observe is None, observe=observe)
        context = context if threat is None else replace(context, threat=threat)
        index = self.at[who.to(self.at.device)]
        broken = torch.zeros(len(self.clean.chunk), dtype=torch.bool, device="cpu")
        points = self.clean.chunk.x.clone()
        for at, batch in run_stage(context, stage, self.clean, index):
            broken[at.cpu()] = True
            points[at.cpu()] = torch.as_tensor(batch.x, device="cpu")
            self.passes.add(sum(batch.table["forwards"].to_pylist()), sum(batch.table["backwards"].to_pylist()))
        return broken[self.at.cpu()], points[self.at.cpu()]


def _radii(b: ProbedAttack) -> list[Threat]:
    """Return the threat, then threats with the radius doubled again and again, up to the whole box."""
    threat = b.prepared.context.threat
    size = int(torch.Size(b.x.shape[1:]).numel())
    limit = 0.999 * threat.norm.diameter(size)
    threats = [threat]
    # Compare in float64: rounded to float32 the last radius may never reach the limit.
    while float(torch.as_tensor(threats[-1].eps, dtype=torch.float64, device="cpu").min()) < limit:
        eps = threats[-1].eps
        more = (2 * eps).clamp(max=limit) if isinstance(eps, Tensor) else min(2 * eps, limit)
        threats.append(replace(threat, eps=more, text="grown"))
    return threats


def curve(b: ProbedAttack, broken: Tensor) -> list[tuple[float, float]]:
    """Return pairs of radius and robust accuracy, from the radius of the threat up to the whole box.

    A sample that breaks at one radius counts as broken at all larger radii, since balls are nested.
    """
    threats = _radii(b)
    curve = [(_radius(threats[0]), int((~broken).sum()) / len(broken))]
    for threat in threats[1:]:
        if bool((~broken).any()):
            broken = broken | b.run(b.stage, ~broken, threat=threat)[0]
        curve.append((_radius(threat), int((~broken).sum()) / len(broken)))
    return curve


def _radius(threat: Threat) -> float:
    return float(threat.eps.mean()) if isinstance(threat.eps, Tensor) else float(threat.eps)


def unconstrained(b: ProbedAttack, curve: list[tuple[float, float]]) -> Finding:
    """Check that every sample breaks when the radius covers the whole box."""
    if b.prepared.context.threat.mask is not None:
        return Finding("unconstrained failure", "ok", "not measured: the threat has a mask", threshold=FEW)
    return indicators.unconstrained_failure(curve[0][1], curve[-1][1], len(b.at))


def _without_gradients(b: ProbedAttack, queries: int) -> AnyAttack:
    square = Square(steps=queries)
    image = b.x.ndim == 4
    plain: AnyAttack = square if image else square.without_images()
    return plain if b.prepared.first_output.reject is None else Joint(plain)


def black_box(b: ProbedAttack, broken: Tensor, queries: int) -> Finding:
    """Check that a black-box attack breaks no sample that the probed attack missed."""
    name = "black box"
    if b.stage.attack.requires is Requires.LOGITS:
        return Finding(name, "ok", "not measured: the attack itself uses no gradients", threshold=LUCK)
    found, _ = b.run(Stage(_without_gradients(b, queries), label="black box"), ~broken)
    share = int((found & ~broken).sum()) / len(broken)
    text = (
        f"{int((found & ~broken).sum())} of {int((~broken).sum())} survivors break under a black-box attack "
        f"({queries} queries)"
    )
    remedy = "Gradients are masked: follow the remedies of the indicators, or evaluate with the plan blackbox."
    return graded(name, share, few(len(broken), LUCK), text, remedy)


def more_steps(b: ProbedAttack, broken: Tensor) -> Finding:
    """Check that the attack with twice the steps breaks every sample that the original attack broke."""
    name = "more steps"
    steps = b.stage.attack.step_count
    if steps is None:
        return Finding(name, "ok", "not measured: the attack has no number of steps", threshold=FEW)
    longer = replace(b.stage, attack=b.stage.attack.with_steps(2 * steps), label=b.stage.name)
    again, _ = b.run(longer, torch.ones_like(broken))
    lost, won = int((broken & ~again).sum()), int((again & ~broken).sum())
    text = f"with twice the steps the attack breaks {won} more samples and no longer breaks {lost}"
    remedy = "The attack is unstable: use smaller or adaptive steps, or restarts."
    return graded(name, lost / len(broken), few(len(broken)), text, remedy)


def noise(b: ProbedAttack, broken: Tensor) -> Finding:
    """Check that random points within the threat break no sample that the attack missed."""
    name, who = "random noise", (~broken).nonzero()[:, 0].to(b.at.device)
    found = 0
    if len(who):
        x, y = b.x[who], b.y[who]
        ball = b.prepared.context.threat.ball(b.at[who].cpu() + b.clean.chunk.offset, x.device)
        ids = b.clean.chunk.ids.to(x.device)[b.at[who]]
        key = rng.fold(rng.keys(b.prepared.context.seed, ids), rng.digest("noise"))
        reached = torch.zeros_like(y, dtype=torch.bool)
        for i in range(DRAWS):
            draw = (ball.inside, ball.start)[i % 2](x, rng.fold(key, i))
            inside = ball.contains(x, draw)
            reached |= b.prepared.context.criterion.reached(b.oracle.output(draw), y, torch.full_like(y, -1)) & inside
        b.passes.add(DRAWS * len(who))
        found = int(reached.sum())
    text = f"{found} of {len(who)} survivors break under {DRAWS} random points within the threat"
    remedy = "The attack is worse than random sampling: fix its gradients or its steps."
    return graded(name, found / len(broken), LUCK, text, remedy)


def surface(b: ProbedAttack) -> tuple[Surface | None, float | None]:
    """Return mean margins on a grid around a few samples, and the share of these samples that the gradient misleads.

    The gradient misleads if the margin grows more in a random direction. Without gradients both results are None.
    """
    if not b.oracle.classifier.differentiable:
        return None, None
    x, y = b.x[:SHOWN], b.y[:SHOWN]
    none = torch.full_like(y, -1)
    try:
        g = b.oracle.query(x, y, none, "margin", Requires.GRAD).gradient
    except RuntimeError:  # no gradient at all: the indicator of unavailable gradients reports it
        return None, None
    ball = b.prepared.context.threat.ball(b.at[:SHOWN].cpu() + b.clean.chunk.offset, x.device)
    key = rng.fold(rng.keys(b.prepared.context.seed, torch.arange(len(x), device=x.device)), rng.digest("surface"))
    towards = rows(ball.eps, x) * ball.steepest(g)
    across = rows(ball.eps, x) * ball.steepest(rng.normal(key, tuple(x.shape[1:])))
    steps = torch.linspace(-1, 1, GRID, dtype=torch.float32, device="cpu").tolist()

    def margin(v: Tensor) -> Tensor:
        # The margin of the classifier alone, without its detector: the gradient is that of the classifier.
        return Misclassified().margin(b.oracle.output(v.clamp(0, 1)), y, none)

    grid = [[margin(x + u * towards + v * across) for v in steps] for u in steps]
    b.passes.add((GRID * GRID + 1) * len(x), len(x))
    middle = GRID // 2
    by_chance = torch.maximum(grid[middle][0], grid[middle][-1])
    misled = float((grid[-1][middle] < by_chance).float().mean())
    means = tuple(tuple(float(v.mean()) for v in line) for line in grid)
    return Surface(tuple(steps), tuple(steps), means, len(x)), misled


def along_the_gradient(misled: float | None) -> Finding:
    """Check that the margin grows more along the gradient than in a random direction.

    `misled` is the share of samples for which it does not, None if unknown.
    """
    name = "loss surface"
    if misled is None:
        return Finding(name, "ok", "not measured: the model has no gradients", threshold=MISLED)
    text = f"the margin grows more in a random direction than along the gradient for {100 * misled:.0f} % of samples"
    remedy = "The gradient does not increase the margin: remove noise, quantisation and saturation from the model."
    return graded(name, misled, MISLED, text, remedy)
