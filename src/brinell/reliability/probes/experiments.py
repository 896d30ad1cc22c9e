"""Experiments with an attack that must turn out one way unless it fails for reasons other than robustness."""

from dataclasses import replace

import torch
from torch import Tensor

from brinell.attacks import Joint, Square
from brinell.core.attack import AnyAttack, Requires
from brinell.core.criterion import Misclassified
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.finding import Finding
from brinell.ops import rng
from brinell.ops.rowwise import rows
from brinell.reliability.probes import indicators
from brinell.reliability.probes.indicators import FEW, few
from brinell.reliability.probes.probed_attack import ProbedAttack
from brinell.reliability.probes.result import Surface, graded

# Passes of the black-box attack and of pure noise on every sample that stands.
QUERIES, DRAWS = 500, 100
# One sample in fifty may fall to luck alone.
LUCK = 0.02
# The grid around the samples: from −1 to 1 radius in both directions, for so many samples.
GRID, SHOWN = 9, 16
# Along a random direction a margin may grow more than along the gradient for this share of the samples.
MISLED = 0.25


def _radii(b: ProbedAttack) -> list[Threat]:
    """The threat, twice as large again and again, and at last the whole box."""
    threat = b.prepared.context.threat
    size = int(torch.Size(b.x.shape[1:]).numel())
    whole = 0.999 * threat.norm.diameter(size)
    grown = [threat]
    # In float64, as both are: rounded to float32 the last radius may never arrive.
    while float(torch.as_tensor(grown[-1].eps, dtype=torch.float64).min()) < whole:
        eps = grown[-1].eps
        more = (2 * eps).clamp(max=whole) if isinstance(eps, Tensor) else min(2 * eps, whole)
        grown.append(replace(threat, eps=more, text="grown"))
    return grown


def curve(b: ProbedAttack, fell: Tensor) -> list[tuple[float, float]]:
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


def unconstrained(b: ProbedAttack, curve: list[tuple[float, float]]) -> Finding:
    """In the whole box every sample must fall."""
    if b.prepared.context.threat.mask is not None:
        return Finding("unconstrained failure", "ok", "not looked at: the threat has a mask", threshold=FEW)
    return indicators.unconstrained_failure(curve[0][1], curve[-1][1], len(b.at))


def _without_gradients(b: ProbedAttack, queries: int) -> AnyAttack:
    square = Square(steps=queries)
    image = b.x.ndim == 4
    plain: AnyAttack = square if image else square.without_images()
    return plain if b.prepared.first_output.reject is None else Joint(plain)


def black_box(b: ProbedAttack, fell: Tensor, queries: int) -> Finding:
    """An attack without gradients must find nothing that the attack missed."""
    name = "black box"
    if b.stage.attack.requires is Requires.LOGITS:
        return Finding(name, "ok", "the attack itself follows no gradients", threshold=LUCK)
    found, _ = b.run(Stage(_without_gradients(b, queries), label="black box"), ~fell)
    share = int((found & ~fell).sum()) / len(fell)
    text = f"{int((found & ~fell).sum())} of {int((~fell).sum())} survivors fall to {queries} queries without gradients"
    return graded(
        name, share, few(len(fell), LUCK), text, "gradients are masked: see the indicators, or trust the black box more"
    )


def more_steps(b: ProbedAttack, fell: Tensor) -> Finding:
    """Twice the steps must not lose samples."""
    name = "more steps"
    steps = b.stage.attack.step_count
    if steps is None:
        return Finding(name, "ok", "the attack has no number of steps", threshold=FEW)
    longer = replace(b.stage, attack=b.stage.attack.with_steps(2 * steps), label=b.stage.name)
    again, _ = b.run(longer, torch.ones_like(fell))
    lost, won = int((fell & ~again).sum()), int((again & ~fell).sum())
    text = f"twice the steps break {won} more samples and lose {lost}"
    advice = "the attack is not stable: use smaller or adaptive steps, or restarts"
    return graded(name, lost / len(fell), few(len(fell)), text, advice)


def noise(b: ProbedAttack, fell: Tensor) -> Finding:
    """Random points of the threat must find nothing that the attack missed."""
    name, who = "random noise", (~fell).nonzero()[:, 0].to(b.at.device)
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
        b.spent.add(DRAWS * len(who))
        found = int(reached.sum())
    text = f"{found} of {len(who)} survivors fall to {DRAWS} random points of the threat"
    return graded(
        name, found / len(fell), LUCK, text, "the attack does worse than chance: fix its gradients or its steps"
    )


def surface(b: ProbedAttack) -> tuple[Surface | None, float | None]:
    """Margins around the first samples, along the gradient and a random direction; and how often the latter wins."""
    if not b.oracle.classifier.differentiable:
        return None, None
    x, y = b.x[:SHOWN], b.y[:SHOWN]
    none = torch.full_like(y, -1)
    try:
        g = b.oracle.query(x, y, none, "margin", Requires.GRAD).gradient
    except RuntimeError:  # no gradient at all, which has an indicator of its own
        return None, None
    ball = b.prepared.context.threat.ball(b.at[:SHOWN].cpu() + b.clean.chunk.offset, x.device)
    key = rng.fold(rng.keys(b.prepared.context.seed, torch.arange(len(x), device=x.device)), rng.digest("surface"))
    towards = rows(ball.eps, x) * ball.steepest(g)
    across = rows(ball.eps, x) * ball.steepest(rng.normal(key, tuple(x.shape[1:])))
    steps = torch.linspace(-1, 1, GRID).tolist()

    def margin(v: Tensor) -> Tensor:
        # The classifier's own: its gradient is what is looked at, and a detector on the way says nothing about it.
        return Misclassified().margin(b.oracle.output(v.clamp(0, 1)), y, none)

    grid = [[margin(x + u * towards + v * across) for v in steps] for u in steps]
    b.spent.add((GRID * GRID + 1) * len(x), len(x))
    middle = GRID // 2
    by_chance = torch.maximum(grid[middle][0], grid[middle][-1])
    misled = float((grid[-1][middle] < by_chance).float().mean())
    means = tuple(tuple(float(v.mean()) for v in line) for line in grid)
    return Surface(tuple(steps), tuple(steps), means, len(x)), misled


def along_the_gradient(misled: float | None) -> Finding:
    """The margin must grow more along the gradient than at random, but for a few samples."""
    name = "loss surface"
    if misled is None:
        return Finding(name, "ok", "not looked at: the model has no gradients", threshold=MISLED)
    text = f"along a random direction the margin grows more than along the gradient for {100 * misled:.0f} % of samples"
    return graded(name, misled, MISLED, text, "the gradient does not lead uphill: remove what masks or shatters it")
