"""HopSkipJump: a minimum-norm attack that reads decisions only, with one query per step."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks._common import MinimumNormAttack, PointState, misclassified, unit
from brinell.attacks._parameters import check_whole
from brinell.core.attack import Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.norms import L2, LINF, Norm
from brinell.ops.rowwise import flat, number_where, rows, where
from brinell.ops.types import Labels, Mask, Points, Scalars

SEARCH, BISECT, ESTIMATE, WALK = range(4)
"""The phases of a row: search for a first adversarial point, bisect to the boundary, estimate its normal, walk."""

# Chen et al. 2020, alg. 2 and sec. IV: the most points for one estimate, and their distance in the first round.
MOST, FIRST_RADIUS = 10_000, 0.1
# Bisections: to a precision of this power of the number of coordinates, at least ten, and at most as many as float32
# can distinguish.
PRECISION = {L2.name: 1.5, LINF.name: 2.0}
LEAST_HALVINGS, MOST_HALVINGS = 10, 24
# After so many halvings without success the step is given up and the normal is estimated again.
MOST_STEP_HALVINGS = 20


@dataclass(frozen=True)
class HopSkipJumpState(PointState):
    """State, per row: phase, queries in this phase, boundary point, bisection limits, sums for the normal, step."""

    phase: Labels
    count: Labels
    round: Labels
    near: Points
    far: Points
    low: Scalars
    high: Scalars
    radius: Scalars
    offsets: Points
    signed_offsets: Points
    sign_sum: Scalars
    way: Points
    length: Scalars


@dataclass(frozen=True)
class HopSkipJump(MinimumNormAttack[HopSkipJumpState]):
    """An attack that walks along the decision boundary towards the clean point, using decisions only.

    Method: draw random points in the box (or take the explicit start) until one is adversarial. Then repeat rounds of
    three phases. (1) Bisect between the adversarial and the clean point to find a boundary point. (2) Estimate the
    boundary's normal from the decisions at `first`·√round random points (at most 10,000) around the boundary point, at
    radius distance / n, where distance is from the clean point and n the number of coordinates. (3) Step by
    distance / √round along the normal (in Linf along its sign); halve the step until the new point is adversarial.
    Each row has its own phase. Unlike the paper: a bisection has 10 to 24 steps; directions are Gaussian in Linf too.
    Cost per step: one forward pass; one more for the start.
    Reference: Chen, Jordan & Wainwright 2020, HopSkipJumpAttack: a query-efficient decision-based attack.
    Limits: needs thousands of queries, and the result depends on the first adversarial point. Randomised decisions
    mislead the bisection.

    >>> HopSkipJump(steps=1000).queries
    1001
    """

    steps: int = 5000
    first: int = 100
    method = "hop-skip-jump"
    loss = "margin"
    requires = Requires.LOGITS
    norms = (LINF, L2)

    def __post_init__(self) -> None:
        check_whole(steps=self.steps, first=self.first)

    def init(self, p: Batch, ball: Ball) -> HopSkipJumpState:
        start = _random_point(p, ball, torch.zeros_like(p.y)) if p.start is None else p.start.clamp(*ball.bounds(p.x))
        zero, none, blank = torch.zeros_like(p.y), torch.zeros_like(ball.eps), torch.zeros_like(p.x)
        return HopSkipJumpState(
            t=zero, x=start, phase=zero + SEARCH, count=zero, round=zero, near=start, far=start, low=none,
            high=none + 1, radius=none + FIRST_RADIUS, offsets=blank, signed_offsets=blank, sign_sum=none,
            way=blank, length=none,
        )  # fmt: skip

    def step(self, s: HopSkipJumpState, a: Response, p: Batch, ball: Ball) -> HopSkipJumpState:
        """Return the next state: record the decision, start the next phase in rows whose phase is over, and move on."""
        hit = misclassified(a, p)
        phase, count = s.phase, s.count + 1
        succeeded = hit & ((phase == SEARCH) | (phase == WALK))
        s = self._record(s, hit, succeeded)
        at_edge = (phase == BISECT) & (count >= halvings(flat(p.x).shape[1], ball.norm))
        given_up = (phase == WALK) & ~hit & (count >= MOST_STEP_HALVINGS)
        estimated = (phase == ESTIMATE) & (count >= self._points(s.round))
        s = self._begin_phase(s, p, ball, at_edge | given_up, estimated)
        phase = torch.where(
            succeeded, BISECT, torch.where(at_edge | given_up, ESTIMATE, torch.where(estimated, WALK, phase))
        )
        s = replace(s, t=s.t + 1, phase=phase, count=torch.where(succeeded | at_edge | given_up | estimated, 0, count))
        return replace(s, x=self._next_point(s, p, ball))

    def _points(self, round_: Labels) -> Labels:
        # In float64, so that the result does not depend on the position in the tensor.
        return (self.first * round_.double().sqrt()).floor().long().clamp(max=MOST)

    def _record(self, s: HopSkipJumpState, hit: Mask, succeeded: Mask) -> HopSkipJumpState:
        bisecting, estimating = s.phase == BISECT, s.phase == ESTIMATE
        middle = (s.low + s.high) / 2
        sign = number_where(hit, 1.0, -1.0)
        offset = where(estimating, (s.x - s.near) / rows(s.radius, s.x), torch.zeros_like(s.x))
        return replace(
            s,
            far=where(succeeded, s.x, s.far),
            near=where(succeeded | (bisecting & hit), s.x, s.near),
            low=torch.where(succeeded, 0.0, torch.where(bisecting & ~hit, middle, s.low)),
            high=torch.where(succeeded, 1.0, torch.where(bisecting & hit, middle, s.high)),
            offsets=s.offsets + offset,
            signed_offsets=s.signed_offsets + rows(sign, offset) * offset,
            sign_sum=s.sign_sum + torch.where(estimating, sign, 0.0),
            length=torch.where((s.phase == WALK) & ~hit, s.length / 2, s.length),
        )

    def _begin_phase(self, s: HopSkipJumpState, p: Batch, ball: Ball, estimates: Mask, walks: Mask) -> HopSkipJumpState:
        distance = ball.norm.size(s.near - p.x)
        round_ = s.round + estimates.long()
        again = torch.where(round_ <= 1, FIRST_RADIUS, distance / flat(p.x).shape[1])
        blank = torch.zeros_like(s.x)
        # The signs are centred, which lowers the variance where most of them agree (sec. III-C).
        mean = s.sign_sum / self._points(s.round).clamp(min=1)
        mean = torch.where(mean.abs() < 1, mean, 0.0)
        slope = s.signed_offsets - rows(mean, s.offsets) * s.offsets
        return replace(
            s,
            round=round_,
            radius=torch.where(estimates, again.clamp(min=1e-6), s.radius),
            offsets=where(estimates, blank, s.offsets),
            signed_offsets=where(estimates, blank, s.signed_offsets),
            sign_sum=torch.where(estimates, 0.0, s.sign_sum),
            way=where(walks, ball.steepest(slope), s.way),
            length=torch.where(walks, distance / s.round.clamp(min=1).double().sqrt().float(), s.length),
        )

    def _next_point(self, s: HopSkipJumpState, p: Batch, ball: Ball) -> Points:
        lo, hi = ball.bounds(p.x)
        between = _between(s, p, ball)
        around = (s.near + rows(s.radius, s.x) * _direction(s, p, ball)).clamp(lo, hi)
        onwards = (s.near + rows(s.length, s.x) * s.way).clamp(lo, hi)
        x = where(s.phase == SEARCH, _random_point(p, ball, s.t), onwards)
        return where(s.phase == BISECT, between, where(s.phase == ESTIMATE, around, x))


def halvings(n: int, norm: Norm = L2) -> int:
    """Return the number of bisection steps for n coordinates: precision n^−3/2 in L2 and n^−2 in Linf (sec. IV).

    >>> halvings(24), halvings(3072), halvings(10**6), halvings(784, LINF)
    (10, 18, 24, 20)
    """
    return min(max(math.ceil(PRECISION[norm.name] * math.log2(n)), LEAST_HALVINGS), MOST_HALVINGS)


def _random_point(p: Batch, ball: Ball, t: Labels) -> Points:
    """Draw a uniform random point of the box; coordinates outside the mask keep their clean values."""
    lo, hi = ball.bounds(p.x)
    drawn: Tensor = lo + (hi - lo) * rng.uniform(rng.fold(rng.fold(p.key, 1), t), tuple(p.x.shape[1:]))
    return drawn.clamp(lo, hi)


def _direction(s: HopSkipJumpState, p: Batch, ball: Ball) -> Points:
    noise = rng.normal(rng.fold(rng.fold(p.key, 2), s.t), tuple(p.x.shape[1:]))
    return unit(ball.masked(noise))


def _between(s: HopSkipJumpState, p: Batch, ball: Ball) -> Points:
    """Return the adversarial point `s.far`, retracted to the middle distance of the bisection."""
    middle = (s.low + s.high) / 2 * ball.norm.size(s.far - p.x)
    return replace(ball, eps=middle).retract(p.x, s.far)
