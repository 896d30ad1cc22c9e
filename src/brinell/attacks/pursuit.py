"""Many short Auto-PGD runs per sample: each lasts only as long as its own trajectory says that it may arrive."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import _check
from brinell.attacks.apgd import APGD
from brinell.attacks.apgd_sparse import SHARE
from brinell.core.attack import Answer, Needs, Rows
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.rows import flat, put, take, where_rows
from brinell.ops.types import Labels, Logits, Mask, Points, Scalars

# Fixed on the trajectories of the networks in benchmarks/fast_trajectories.py; docs/design/fast.md has the data.
# Gaps are in units of reach: what is missing to success, over eps times the dual norm of the run's first gradient.
LOOKS = (0, 1, 3, 6, 12, 25)  # a run is looked at after these answers
FAR_AT_FIRST, FAR = 2.5, 1.5  # gaps beyond which a run ends: at its first look, and at later ones
NEAR = 0.1  # below this gap a run goes on whatever its progress
PATIENCE = 8.0  # else the gap may be so many times what the run gained since the last look
FEW = 3  # after so many targets a sample is given up if no run of its began within FAR_AT_FIRST
AGAIN = 0.2  # below this gap the closest target is tried again; each further time takes half the gap
# Sparse norms: no coordinate can move by more than 1, so eps of them can use the budget up; twice as many may share it.
CROWD = 2.0
# Looks after which a run that still may arrive has in fact arrived, or will not: the untargeted run ends there.
UNTARGETED = 10


@lru_cache(maxsize=8)
def _looks(steps: int, device: torch.device) -> Tensor:
    return torch.tensor([a in LOOKS for a in range(steps + 1)], device=device)


@dataclass(frozen=True)
class State:
    """The Auto-PGD run in progress, and what is known about the sample from its earlier runs."""

    t: Labels
    run: Any
    leg: Labels
    target: Labels
    ranked: Tensor
    reach: Scalars
    gap: Scalars
    begun: Scalars
    closest: Scalars
    towards: Labels

    @property
    def x(self) -> Points:
        """The next point of the run in progress."""
        point: Points = self.run.x
        return point


@dataclass(frozen=True)
class Pursuit:
    """Auto-PGD on the margin, first to any class, then to the likeliest ones in turn, each run only while in reach.

    Method: a run's gap is its best margin's distance from zero, in units of the gain that its first gradient promises
    within the ball: both scale with the logits, so the gap does not. A run ends when its gap is too wide for its age,
    or too wide for the progress since the last look. The first run starts at the clean point and ranks the targets;
    the others start at random. A sample whose runs all begin out of reach is given up after a few; one that came close
    is tried again towards the closest target. Cost: one forward and one backward per answer, two or three answers for
    a target out of reach; the number of classes does not matter. Reference: this project, after Gao et al. 2022 (one
    margin per target, likeliest first) and Croce & Hein 2020 (Auto-PGD).

    >>> Pursuit(steps=50, targets=9, again=4).queries
    674
    """

    steps: int = 50
    targets: int = 9
    again: int = 4
    minimises = False
    needs = Needs.GRAD
    loss = "margin-towards"
    name = "pursuit"

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps, targets=self.targets)

    @property
    def queries(self) -> int:
        """The most a sample can cost: every run to its end."""
        return min(self.steps, UNTARGETED) + 1 + (self.steps + 1) * self.targets + self._shrinking.queries * self.again

    @property
    def _apgd(self) -> APGD:
        return APGD(self.steps, self.loss)

    @property
    def _shrinking(self) -> APGD:
        """In sparse norms the later tries come from larger radii (Croce & Hein 2021)."""
        return APGD(self.steps, self.loss, larger_eps=True)

    def init(self, p: Rows, ball: Ball) -> State:
        """The untargeted run, at the clean point or where told."""
        run = self._sparser(self._apgd.init(replace(p, start=p.x if p.start is None else p.start), ball), p, ball)
        zero, far = torch.zeros_like(p.y), torch.full_like(ball.eps, torch.inf)
        ranked = (zero - 1)[:, None].expand(-1, self.targets).contiguous()
        return State(zero, run, zero, zero - 1, ranked, torch.zeros_like(far), far, far, far, zero)

    def step(self, s: State, a: Answer, p: Rows, ball: Ball) -> State:
        """Take note, let the run go on where it may arrive, begin another one elsewhere."""
        # Samples that are done are still stepped until they are replaced; their last run stands at its end.
        again = (s.leg > self.targets) & ball.norm.sparse
        last = torch.where(again, self._shrinking.queries - 1, self.steps)
        age = torch.minimum(s.run.t, last)
        first = age == 0
        s = replace(
            s,
            t=s.t + 1,
            ranked=torch.where((first & (s.leg == 0))[:, None], self._rank(a.logits, p.y), s.ranked),
            reach=torch.where(first, ball.reach(a.gradient), s.reach),
            run=self._advance(replace(s.run, t=age), again, a, p, ball),
        )
        gap = torch.where(s.reach > 0, -s.run.f_best / s.reach, torch.inf)
        s = replace(s, begun=torch.where(first, torch.minimum(s.begun, gap), s.begun))
        s, on = self._look(s, gap, age)
        on = torch.where(again, age < last, on)
        # At a larger radius a gap says nothing.
        closer = (gap < s.closest) & ~again
        s = replace(
            s,
            closest=torch.where(closer, gap, s.closest),
            # What the untargeted run came closest to is not known; the likeliest class stands in.
            towards=torch.where(closer, torch.where(s.leg == 0, s.ranked[:, 0], s.target), s.towards),
        )
        return self._next(s, ~on, p, ball)

    def _advance(self, run: Any, again: Mask, a: Answer, p: Rows, ball: Ball) -> Any:
        plain = replace(run, t=run.t.clamp(max=self.steps)) if ball.norm.sparse else run
        moved = self._apgd.step(plain, a, p, ball)
        if not ball.norm.sparse or (again.device.type == "cpu" and not bool(again.any())):
            return moved
        return where_rows(again, self._shrinking.step(run, a, p, ball), moved)

    def _rank(self, logits: Logits, y: Labels) -> Tensor:
        """The likeliest wrong classes, −1 where the model has no more."""
        wrong = logits.scatter(1, y[:, None], -torch.inf)
        order = wrong.argsort(dim=1, descending=True, stable=True)[:, : min(self.targets, logits.shape[1] - 1)]
        missing = self.targets - order.shape[1]
        return torch.nn.functional.pad(order, (0, missing), value=-1)

    def _look(self, s: State, gap: Scalars, age: Labels) -> tuple[State, Mask]:
        """Which runs go on: near enough for their age, and getting nearer fast enough."""
        due = _looks(self.steps, age.device)[age.clamp(max=self.steps)]
        in_range = gap <= torch.where(age == 0, FAR_AT_FIRST, FAR)
        # Progress is asked for once there are two looks after the first.
        moving = (age <= 1) | (gap <= NEAR) | (gap <= PATIENCE * (s.gap - gap))
        last = torch.where(s.leg == 0, min(self.steps, UNTARGETED), self.steps)
        on = (age < last) & (~due | (in_range & moving))
        return replace(s, gap=torch.where(due, gap, s.gap)), on

    def _next(self, s: State, over: Mask, p: Rows, ball: Ball) -> State:
        """Where a run is over: the next target, the closest target again, or the end of the sample."""
        leg = s.leg + over
        listed = (leg >= 1) & (leg <= self.targets)
        index = (leg - 1).clamp(0, self.targets - 1)
        target = s.ranked.gather(1, index[:, None])[:, 0]
        hopeless = (leg > FEW) & (s.begun > FAR_AT_FIRST)
        # Targets the model does not have, or that are not worth trying, are passed over at once.
        leg = torch.where(over & listed & ((target < 0) | hopeless), self.targets + 1, leg)
        extra = leg - self.targets
        near = s.closest < AGAIN * 0.5 ** (extra - 1).to(s.closest.dtype)
        done = over & (extra >= 1) & ((extra > self.again) | ~near)
        target = torch.where(extra >= 1, s.towards, target)
        s = replace(
            s,
            t=torch.where(done, self.queries, s.t),
            leg=leg,
            target=torch.where(over, target, s.target),
            gap=torch.where(over, torch.inf, s.gap),
        )
        return replace(s, run=self._begin(s, over & ~done, p, ball))

    def _begin(self, s: State, new: Mask, p: Rows, ball: Ball) -> Any:
        """Fresh runs at random starts where `new`; on a CPU only those are made, elsewhere without looking."""
        if new.device.type != "cpu":
            return where_rows(new, self._start(s.leg, p, ball), s.run)
        index = new.nonzero()[:, 0]
        if not len(index):
            return s.run
        # At least two: reductions over a lone long row are split over threads and round differently.
        both = index if len(index) > 1 else index.repeat(2)
        fresh = self._start(s.leg[both], take(p, both), replace(ball, eps=ball.eps[both]))
        return put(s.run, index, take(fresh, torch.arange(len(index))))

    def _start(self, leg: Labels, p: Rows, ball: Ball) -> Any:
        p = replace(p, key=rng.fold(p.key, leg), start=None)
        run = self._sparser(self._apgd.init(p, ball), p, ball)
        return where_rows(leg > self.targets, self._shrinking.init(p, ball), run) if ball.norm.sparse else run

    def _sparser(self, run: Any, p: Rows, ball: Ball) -> Any:
        """In norms with sparse steps the first one moves about as many coordinates as the budget can move at all."""
        if not ball.norm.sparse:
            return run
        n = float(flat(p.x).shape[1])
        return replace(run, density=(CROWD * ball.eps / n).clamp(max=SHARE))
