"""The fast adaptive boundary attack."""

from dataclasses import dataclass

import torch

from brinell.attacks._common import FLAT, MinimumNormAttack, PointState
from brinell.attacks._parameters import check_numbers, check_positive, check_whole
from brinell.core.attack import Batch, Requires, Response
from brinell.core.threat import Ball
from brinell.errors import one_of
from brinell.ops.losses import margin
from brinell.ops.norms import Norm
from brinell.ops.rowwise import flat, may_branch, rows, where
from brinell.ops.types import Labels, Mask, Points, Scalars

# The reference divides by no smaller distance from the hyperplane.
NEAR = 1e-8
# Values per array that a processor's cache holds beside the other arrays of a projection.
CACHED = 2**15


@dataclass(frozen=True)
class FABState(PointState):
    """State of FAB: the point to query. After an even number of responses a step starts there, else it ended there.

    `explores` marks rows whose point is not a candidate adversarial.
    """

    explores: Mask

    @property
    def exploring(self) -> Mask:
        return self.explores


@dataclass(frozen=True)
class FAB(MinimumNormAttack[FABState]):
    """An attack that walks along the decision boundary towards the clean point.

    Method: the boundary is linearised at x to a hyperplane. Both x and the clean point x0 are projected on it within
    the box and overshoot it by `eta`; the next point is a mean of the two, with weight at most `alpha_max` for x0's. A
    misclassified result moves back to x0 + `beta` (x − x0) before the next step. Targeted FAB uses the boundary to the
    row's target class, untargeted FAB the boundary to the class whose hyperplane is nearest. The first restart starts
    at x0, later restarts at distance eps / 2. Misclassified means any class but the true one, targeted or not.
    Cost per step: one forward and one backward pass (untargeted: K backward passes) at its origin, one forward pass at
    its result, as in AutoAttack's code.
    Reference: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive boundary attack",
    without the final search, as in AutoAttack. `quirks="autoattack"` also ignores the points after moving back, as
    AutoAttack does, although the nearest adversarial is often among them (distances up to 4 % larger on average).
    Limits: untargeted, it costs a backward pass per class, too much for many classes. Flat or saturated logits make the
    linearised boundary meaningless.

    >>> FAB().name, FAB(targeted=True).name, FAB(steps=50).queries
    ('fab', 'fab-t', 100)
    """

    steps: int = 100
    targeted: bool = False
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    quirks: str | None = None
    method = "fab"
    # Rounded logits lie on the boundary or jump over it, and the linearised boundary moves with them.
    needs_float32 = True

    def __post_init__(self) -> None:
        one_of("quirks", self.quirks, (None, "autoattack"))
        check_whole(steps=self.steps)
        check_positive(alpha_max=self.alpha_max, eta=self.eta, beta=self.beta)
        check_numbers(self.alpha_max <= 1, "alpha_max of at most 1", alpha_max=self.alpha_max)
        check_numbers(self.beta <= 1, "beta of at most 1", beta=self.beta)

    @property
    def loss(self) -> str:
        """The loss whose gradient is the normal of the target's hyperplane; untargeted FAB only records it."""
        return "minimum-margin" if self.targeted else "margin"

    @property
    def requires(self) -> Requires:
        return Requires.GRAD if self.targeted else Requires.JACOBIAN

    @property
    def query_pattern(self) -> tuple[Requires, Requires]:
        """What successive queries require: gradients at the origin of a step, only logits at its result."""
        return self.requires, Requires.LOGITS

    @property
    def queries(self) -> int:
        return 2 * self.steps

    def init(self, p: Batch, ball: Ball) -> FABState:
        """Return the state at the clean point, at a random point (later restarts), or at the explicit start."""
        lo, hi = ball.bounds(p.x)
        x = _first(p, ball) if p.start is None else p.start
        zero = torch.zeros_like(p.y)
        return FABState(zero, x.clamp(lo, hi), torch.zeros_like(zero, dtype=torch.bool))

    def step(self, s: FABState, a: Response, p: Batch, ball: Ball) -> FABState:
        """Return the state after a step if the response has gradients; else move misclassified results back."""
        if a.backwards:
            return FABState(s.t + 1, self._step(s.x, a, p, ball), torch.zeros_like(s.explores))
        back = margin(a.logits, p.y) > (0.0 if a.tolerance is None else -a.tolerance)
        drawn = p.x + self.beta * (s.x - p.x)
        return FABState(s.t + 1, where(back, drawn, s.x), back if self.quirks else torch.zeros_like(back))

    def _step(self, x: Points, a: Response, p: Batch, ball: Ball) -> Points:
        """Return a weighted mean of the overshot projections of x and x0 on the linearised boundary."""
        f, w = self._boundary(a, p, ball)
        # The plane is {u : f + w·(u − x) = 0}. The gap of the clean point follows from the same f and w.
        gaps = torch.cat([-f, flat(w.double() * (x - p.x)).sum(1) - f])
        lo, hi = ball.bounds(p.x)
        d = _to_hyperplane(
            ball.norm, torch.cat([w, w]), gaps, torch.cat([lo - x, lo - p.x]), torch.cat([hi - x, hi - p.x])
        )
        size = ball.norm.size(d).clamp(min=NEAR)
        (here, clean), (from_here, from_clean) = d.chunk(2), size.chunk(2)
        share = rows((from_here / (from_here + from_clean)).clamp(max=self.alpha_max), x)
        return ((1 - share) * (x + self.eta * here) + share * (p.x + self.eta * clean)).clamp(lo, hi)

    def _boundary(self, a: Response, p: Batch, ball: Ball) -> tuple[Scalars, Points]:
        """Return, per row, the chosen class's logit minus the true class's, and the gradient of this difference."""
        f, w = (a.loss, ball.masked(a.gradient)) if self.targeted else nearest_boundary(a, p.y, ball)
        # A row whose logits are not finite has no hyperplane: with a gap of zero it does not move.
        return torch.where(f.isfinite(), f, 0.0).double(), w


def _to_hyperplane(norm: Norm, w: Points, gap: Scalars, lo: Points, hi: Points) -> Points:
    """Return `norm.to_hyperplane`; on a CPU for some rows at a time, whose values fit into the cache: the same bits."""
    # An even number of rows, as w has: a single row would round differently, since its sums are split over threads.
    count = max(CACHED // flat(w).shape[1], 2) // 2 * 2
    if not may_branch(w) or norm.sparse or len(w) <= count:
        return norm.to_hyperplane(w, gap, lo, hi)
    return torch.cat(
        [norm.to_hyperplane(*some) for some in zip(*(v.split(count) for v in (w, gap, lo, hi)), strict=True)]
    )


def _first(p: Batch, ball: Ball) -> Points:
    if p.restart is None:
        return p.x
    radius = ball.within_box(p.x).eps if bool(ball.eps.isinf().any()) else ball.eps
    t = ball.norm.start(p.key, tuple(p.x.shape[1:]), radius)
    away = p.x + rows(radius / 2 / ball.norm.size(t).clamp(min=FLAT), t) * t
    return where(p.restart > 0, away, p.x)


def nearest_boundary(a: Response, y: Labels, ball: Ball) -> tuple[Scalars, Points]:
    """Return z_j − z_y for the class j whose hyperplane is nearest, and the gradient of this difference, per row."""
    assert a.jacobian is not None, "this attack does not require the gradients of all logits"
    row = torch.arange(len(y), device=y.device)
    f = a.logits - a.logits[row, y][:, None]
    w = ball.masked(a.jacobian - a.jacobian[row, y][:, None])
    distance = f.abs() / (ball.norm.dual_size(w.flatten(0, 1)).view_as(f) + FLAT)
    true = torch.zeros_like(f, dtype=torch.bool).scatter(1, y[:, None], True)
    chosen = torch.where(true | ~distance.isfinite(), torch.inf, distance).argmin(1)
    return f[row, chosen], w[row, chosen]
