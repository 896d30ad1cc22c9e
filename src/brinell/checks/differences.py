"""Compare gradients with finite differences, and the answers with and without recording gradients."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.checks.model import SAME, relative_difference
from brinell.core.attack import Requires
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.engine.precision import FLOAT32
from brinell.finding import Finding, Level
from brinell.models.bpda import has_bpda
from brinell.ops import rng
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat, rows

# Samples that are checked, and random directions per sample and point.
SAMPLES, DIRECTIONS = 16, 3
# The length of a step as a share of eps, and the most that it changes one coordinate.
SHARE, LARGEST = 0.1, 0.01
LEVELS = 255
# A step changes the margin of a sample noticeably if it does so by this share of the spread of the logits.
NOTICEABLE = 1e-5
# The median disagreement from which gradients count as wrong: 0 is perfect, 1 is unrelated, 2 is reversed.
DISAGREEMENT = 0.3
# Samples with a disagreement above this have a reversed gradient. So many may, or this share: in small adversarially
# trained networks 3 in 100 have.
REVERSED, FEW_REVERSED, REVERSED_SHARE = 1.1, 2, 0.15
# Fewer samples with a noticeable change say nothing.
FEW = 4
REMEDY = "Repair the gradient (brinell.models.bpda), attack the model without the part that changes it, or use a plan "
REMEDY += "without gradients (blackbox)."


def check_differences(oracle: Oracle, threat: Threat, x: Tensor, y: Tensor) -> list[Finding]:
    """Check that the margin changes as its gradient predicts, and that recording gradients changes no answer.

    Method: central differences of the margin, without recording gradients, over steps of a tenth of eps, in the
    direction that an attack takes and in random directions. They are compared with the gradient at the clean point,
    which for images lies on the 8-bit grid, and at a random point of the ball, which does not. The disagreement of a
    sample is |a − p|² / (|a|² + |p|²) for actual changes a and predicted changes p. The median over samples counts, and
    the number of samples with a reversed gradient: it may be wrong for some classes only.
    """
    oracle, n = oracle.in_precision(FLOAT32), min(len(x), SAMPLES)
    x, y = x[:n], y[:n]
    ball = _local(threat, x)
    around = ball.inside(x, rng.fold(rng.keys(0, torch.arange(n, device=x.device)), 1))
    places = {"at clean points": x, "at points between the levels of 8 bits": around}
    mode, found = 0.0, list[Disagreement]()
    for where, at in places.items():
        response = oracle.query(at, y, torch.full_like(y, -1), "margin", Requires.GRAD)
        answer = oracle.output(at).logits
        mode = max(mode, relative_difference(answer, response.logits))
        for how, step in _steps(ball, at, response.gradient).items():
            found.append(disagreement(oracle, at, y, response.gradient, step, f"{how}, {where}"))
    return [_grad_mode(mode), _differences(found, has_bpda(oracle.classifier.torch_module))]


@dataclass(frozen=True)
class Disagreement:
    """How much gradients and changes disagree at some points: the median, and how many gradients are reversed."""

    median: float
    reversed: int
    n: int
    where: str

    @property
    def many_reversed(self) -> bool:
        return self.reversed > max(FEW_REVERSED, REVERSED_SHARE * self.n)

    @property
    def wrong(self) -> bool:
        return self.median > DISAGREEMENT or self.many_reversed


def _local(threat: Threat, x: Tensor) -> Ball:
    """Return the balls of the threat, or small ones if the radius is unlimited or counts coordinates."""
    ball = threat.ball(torch.arange(len(x), device="cpu"), x.device)
    if not threat.unlimited and not threat.norm.counts:
        return ball
    size = threat.norm.diameter(flat(x).shape[1]) / LEVELS
    return replace(ball, eps=torch.full_like(ball.eps, size))


def _steps(ball: Ball, x: Tensor, gradient: Tensor) -> dict[str, list[Tensor]]:
    """Return the steps from x, in the direction of an attack and in random directions."""
    key = rng.keys(2, torch.arange(len(x), device=x.device))
    random = [ball.masked(rng.normal(rng.fold(key, k), tuple(x.shape[1:]))) for k in range(DIRECTIONS)]
    return {
        "in the direction of an attack": [in_the_direction_of_an_attack(ball, gradient)],
        "in random directions": [_short(ball, d) for d in random],
    }


def in_the_direction_of_an_attack(ball: Ball, gradient: Tensor) -> Tensor:
    """Return a short step in the direction that an attack takes."""
    return _short(ball, ball.steepest(gradient))


def _short(ball: Ball, d: Tensor) -> Tensor:
    """Return the direction scaled to the length of a step."""
    size = SHARE * ball.eps / ball.norm.size(d).clamp(min=1e-30)
    largest = LARGEST / flat(d).abs().amax(1).clamp(min=1e-30)
    return rows(torch.minimum(size, largest), d) * d


def disagreement(
    oracle: Oracle, x: Tensor, y: Tensor, gradient: Tensor, steps: list[Tensor], name: str
) -> Disagreement:
    """Return how much the actual changes over these steps disagree with those that the gradient predicts."""
    predicted, actual, noticeable = [], [], []
    for step in steps:
        ends = [(x + step).clamp(0, 1), (x - step).clamp(0, 1)]
        above, below = (oracle.output(end).logits for end in ends)
        predicted.append(flat(gradient.double() * (ends[0] - ends[1])).sum(1))
        actual.append(margin(above.double(), y) - margin(below.double(), y))
        noticeable.append(NOTICEABLE * (above.amax(1) - above.amin(1)))
    p, a, least = torch.stack(predicted), torch.stack(actual), torch.stack(noticeable).amax(0)
    size = p.square().sum(0) + a.square().sum(0)
    counts = (size > least.square()) & size.isfinite()
    if int(counts.sum()) < FEW:
        return Disagreement(0.0, 0, int(counts.sum()), name)
    each = ((a - p).square().sum(0) / size)[counts]
    return Disagreement(float(each.median()), int((each > REVERSED).sum()), len(each), name)


def _grad_mode(worst: float) -> Finding:
    if worst <= SAME:
        return Finding("grad mode", "ok", "answers are the same with and without recording gradients", value=worst)
    return Finding(
        "grad mode",
        "warn",
        f"the answers change by {worst:.2g} of the logits' spread while gradients are recorded: attacks follow another "
        "function than the one that is judged",
        "Remove everything that depends on torch.is_grad_enabled() or requires_grad from forward.",
        value=worst,
        threshold=SAME,
    )


def _differences(found: list[Disagreement], replaced: bool) -> Finding:
    """Return the finding; where the user replaced gradients with `bpda`, a disagreement is intended."""
    worst = max(found, key=lambda d: (d.wrong, d.median))
    level: Level = "ok" if not worst.wrong else "info" if replaced else "warn"
    verb = "agree with" if level == "ok" else "contradict"
    part = f", reversed for {worst.reversed}" if worst.many_reversed else ""
    of = f"{worst.median:.2f} of {worst.n} samples{part} (0 is perfect, 1 unrelated, 2 reversed)"
    message = f"changes of the margin {verb} its gradient {worst.where}: median disagreement {of}"
    return Finding("finite differences", level, message, REMEDY, value=worst.median, threshold=DISAGREEMENT)
