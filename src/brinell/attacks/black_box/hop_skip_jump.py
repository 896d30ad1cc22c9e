"""HopSkipJump: the smallest distance from decisions alone, one question to the model per step."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks.minimum_norm._common import fooled, unit
from brinell.core.attack import Attack, AttackState, Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import PlanError
from brinell.ops import rng
from brinell.ops.norms import L2, LINF, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Labels, Mask, Points, Scalars

SEARCH, BISECT, ESTIMATE, WALK = range(4)
"""What a row is doing: looking for a first adversarial point, going back to the boundary, feeling its slope, moving."""

# Chen et al. 2020, alg. 2 and sec. IV: at most so many points for one gradient; the first ones lie so far out.
MOST, FIRST_RADIUS = 10_000, 0.1
# Bisections: the power of the number of coordinates to which they go, at least so many, and not more than float32 can
# tell apart.
PRECISION = {L2.name: 1.5, LINF.name: 2.0}
LEAST_HALVINGS, MOST_HALVINGS = 10, 24
# A step so often halved and still not adversarial leads nowhere: the slope is felt again.
SHORTEST = 20


@dataclass(frozen=True)
class State(AttackState):
    """The phase and how long it lasts; the boundary point, the bisection, the sums of the estimate, the step."""

    t: Labels
    x: Points
    phase: Labels
    count: Labels
    round: Labels
    near: Points
    far: Points
    low: Scalars
    high: Scalars
    radius: Scalars
    moves: Points
    pushes: Points
    pushed: Scalars
    way: Points
    length: Scalars


@dataclass(frozen=True)
class HopSkipJump(Attack[State]):
    """Walks along the decision boundary towards the clean point, looking at decisions only.

    Method: random points in the box until one is adversarial (or the start that is given); then rounds of (1) bisection
    between it and the clean point, in balls of smaller radius; (2) an estimate of the boundary's normal
    from `first`·√round random points around, at most 10,000, each at the radius distance / n; (3) a step of length
    distance / √round along it (its sign in Linf), halved until the point is adversarial. All of it one question per
    step, for every row in its own phase. Different from the published method: the bisection has at least ten steps and
    at most 24, and directions are normal in Linf too.
    Cost per step: one forward; one more for the start.
    Reference: Chen, Jordan & Wainwright 2020, HopSkipJumpAttack: a query-efficient decision-based attack.
    Limits: needs thousands of queries, estimates a gradient from signs alone, and depends on its first adversarial;
    randomised decisions mislead its bisection.

    >>> HopSkipJump(steps=1000).queries
    1001
    """

    steps: int = 5000
    first: int = 100
    name = "hop-skip-jump"
    loss = "margin"
    minimum_norm = True
    requires = Requires.LOGITS
    norms = (LINF, L2)

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps, first=self.first)
        if not isinstance(self.first, int):
            raise PlanError(expected="first, a whole number", got=f"first = {self.first}", remedy="Leave it out.")

    def init(self, p: Batch, ball: Ball) -> State:
        """A random point, or where told."""
        start = _anywhere(p, ball, torch.zeros_like(p.y)) if p.start is None else p.start.clamp(*ball.bounds(p.x))
        zero, none, blank = torch.zeros_like(p.y), torch.zeros_like(ball.eps), torch.zeros_like(p.x)
        return State(
            t=zero, x=start, phase=zero + SEARCH, count=zero, round=zero, near=start, far=start, low=none,
            high=none + 1, radius=none + FIRST_RADIUS, moves=blank, pushes=blank, pushed=none, way=blank, length=none,
        )  # fmt: skip

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Every row learns from its answer what its phase is about, goes on to the next if that is over, and asks."""
        hit = fooled(a, p)
        phase, count = s.phase, s.count + 1
        found = hit & ((phase == SEARCH) | (phase == WALK))
        s = self._heard(s, hit, found)
        at_edge = (phase == BISECT) & (count >= halvings(flat(p.x).shape[1], ball.norm))
        lost = (phase == WALK) & ~hit & (count >= SHORTEST)
        felt = (phase == ESTIMATE) & (count >= self._points(s.round))
        s = self._begun(s, p, ball, at_edge | lost, felt)
        phase = torch.where(found, BISECT, torch.where(at_edge | lost, ESTIMATE, torch.where(felt, WALK, phase)))
        s = replace(s, t=s.t + 1, phase=phase, count=torch.where(found | at_edge | lost | felt, 0, count))
        return replace(s, x=self._question(s, p, ball))

    def _points(self, round_: Labels) -> Labels:
        # In float64: whole numbers up to 10,000 are the same wherever in a tensor they stand.
        return (self.first * round_.double().sqrt()).floor().long().clamp(max=MOST)

    def _heard(self, s: State, hit: Mask, found: Mask) -> State:
        """What the answer says about the point asked, by phase."""
        bisecting, feeling = s.phase == BISECT, s.phase == ESTIMATE
        middle = (s.low + s.high) / 2
        push = torch.where(hit, 1.0, -1.0)
        move = where(feeling, (s.x - s.near) / rows(s.radius, s.x), torch.zeros_like(s.x))
        return replace(
            s,
            far=where(found, s.x, s.far),
            near=where(found | (bisecting & hit), s.x, s.near),
            low=torch.where(found, 0.0, torch.where(bisecting & ~hit, middle, s.low)),
            high=torch.where(found, 1.0, torch.where(bisecting & hit, middle, s.high)),
            moves=s.moves + move,
            pushes=s.pushes + rows(push, move) * move,
            pushed=s.pushed + torch.where(feeling, push, 0.0),
            length=torch.where((s.phase == WALK) & ~hit, s.length / 2, s.length),
        )

    def _begun(self, s: State, p: Batch, ball: Ball, feel: Mask, walk: Mask) -> State:
        """What rows need that begin to feel their way, or to walk."""
        distance = ball.norm.size(s.near - p.x)
        round_ = s.round + feel.long()
        again = torch.where(round_ <= 1, FIRST_RADIUS, distance / flat(p.x).shape[1])
        blank = torch.zeros_like(s.x)
        # Pushes are measured from their mean, which lowers the variance where most of them agree (sec. III-C).
        mean = s.pushed / self._points(s.round).clamp(min=1)
        mean = torch.where(mean.abs() < 1, mean, 0.0)
        slope = s.pushes - rows(mean, s.moves) * s.moves
        return replace(
            s,
            round=round_,
            radius=torch.where(feel, again.clamp(min=1e-6), s.radius),
            moves=where(feel, blank, s.moves),
            pushes=where(feel, blank, s.pushes),
            pushed=torch.where(feel, 0.0, s.pushed),
            way=where(walk, ball.steepest(slope), s.way),
            length=torch.where(walk, distance / s.round.clamp(min=1).double().sqrt().float(), s.length),
        )

    def _question(self, s: State, p: Batch, ball: Ball) -> Points:
        """The next point of every row, by phase."""
        lo, hi = ball.bounds(p.x)
        between = _towards(s, p, ball)
        around = (s.near + rows(s.radius, s.x) * _direction(s, p, ball)).clamp(lo, hi)
        onwards = (s.near + rows(s.length, s.x) * s.way).clamp(lo, hi)
        x = where(s.phase == SEARCH, _anywhere(p, ball, s.t), onwards)
        return where(s.phase == BISECT, between, where(s.phase == ESTIMATE, around, x))


def halvings(n: int, norm: Norm = L2) -> int:
    """Steps of one bisection among n coordinates: to within n^−3/2 of the way in L2 and n^−2 in Linf (sec. IV).

    >>> halvings(24), halvings(3072), halvings(10**6), halvings(784, LINF)
    (10, 18, 24, 20)
    """
    return min(max(math.ceil(PRECISION[norm.name] * math.log2(n)), LEAST_HALVINGS), MOST_HALVINGS)


def _anywhere(p: Batch, ball: Ball, t: Labels) -> Points:
    """A uniform random point of what may change."""
    lo, hi = ball.bounds(p.x)
    drawn: Tensor = lo + (hi - lo) * rng.uniform(rng.fold(rng.fold(p.key, 1), t), tuple(p.x.shape[1:]))
    return drawn.clamp(lo, hi)


def _direction(s: State, p: Batch, ball: Ball) -> Points:
    """A random direction of Euclidean length 1."""
    noise = rng.normal(rng.fold(rng.fold(p.key, 2), s.t), tuple(p.x.shape[1:]))
    return unit(noise if ball.mask is None else noise * ball.mask)


def _towards(s: State, p: Batch, ball: Ball) -> Points:
    """The far point brought into the ball of the middle radius: along the line in L2, clipped in Linf."""
    middle = (s.low + s.high) / 2 * ball.norm.size(s.far - p.x)
    return replace(ball, eps=middle).retract(p.x, s.far)
