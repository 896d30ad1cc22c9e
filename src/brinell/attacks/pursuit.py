"""Many short Auto-PGD runs per sample: each lasts only as long as its own trajectory says that it may arrive."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks.gradient.apgd import APGD
from brinell.attacks.gradient.apgd_l1 import SHARE
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.losses import likeliest_wrong
from brinell.ops.rowwise import flat, put, take, where_rows
from brinell.ops.types import Labels, Logits, Mask, Points, Scalars

# Where these numbers come from: docs/design/fast.md. A gap is what is missing to success in units of reach, and reach
# is what the run's first gradient promises within the ball, eps times its dual norm.
LOOKS = (0, 1, 3, 6, 12, 25)  # a run is looked at after these answers
FAR_AT_FIRST, FAR = 2.5, 1.5  # gaps beyond which a run ends: at its first look, and at later ones
NEAR = 0.03  # below this gap a run goes on whatever its progress
# Else the gap may be so many times what the run gained since the last look; asked for from the third look on.
PATIENCE = {3: 6.0, 6: 8.0, 12: 8.0, 25: 8.0}
# From its third target on, a sample's runs go past the second look only if the gap is at most so many times what one
# of its earlier runs gained after that look: where the model is nearly linear, one step shows all there is.
LATER_GAIN, LEARNT = 4.0, 3
FEW = 3  # after so many targets a sample is given up if none of its runs began within FAR_AT_FIRST
AGAIN = 0.08  # below this gap two more runs, to the closest target and to any, and two more for each half of it
UNTARGETED = 10  # steps of the first run, which goes to any class
USUAL = 50  # answers that a survivor takes, as a rule
# Sparse norms: no coordinate can move by more than 1, so eps of them can use the budget up; twice as many may share it.
CROWD = 2.0


@table
def _timetable(steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every answer of a run: whether it is looked at, and with how much patience."""
    ages = range(steps + 1)
    patience = [PATIENCE.get(a, torch.inf) for a in ages]
    return torch.tensor([a in LOOKS for a in ages], device=device), torch.tensor(patience, device=device)


def _may_look(v: Tensor) -> bool:
    """Whether looking at the data to save work costs less than the work: on a CPU, unless compiled."""
    return v.device.type == "cpu" and not torch.compiler.is_compiling()


def _near(closest: Scalars, extra: Labels) -> Mask:
    """Whether a sample came close enough for a repetition, counted from 1."""
    return closest < AGAIN * 0.5 ** ((extra - 1) // 2).to(closest.dtype)


def _repeated(towards: Labels, extra: Labels) -> Labels:
    """Where a repetition goes: to the closest target, to any, in turn."""
    return torch.where(extra % 2 == 1, towards, -1)


@dataclass(frozen=True)
class State(AttackState):
    """The Auto-PGD run in progress, and what is known about the sample from its earlier runs.

    `attempt` counts the runs: 0 goes to any class, 1 … `targets` to the `ranked` classes, then come the repetitions;
    `until` is the last one. `reach`, `gap` (at the last look) and `early` (at the second look) belong to the run;
    `later` (the most any run gained after its second look), `begun` (the smallest first gap), `closest` and `towards`
    to the sample. Repetitions change nothing of what is known: each depends on the runs before all of them alone.
    """

    t: Labels
    run: Any
    attempt: Labels
    until: Labels
    target: Labels
    ranked: Tensor
    reach: Scalars
    gap: Scalars
    early: Scalars
    later: Scalars
    begun: Scalars
    closest: Scalars
    towards: Labels

    @property
    def x(self) -> Points:
        """The next point of the run in progress."""
        point: Points = self.run.x
        return point

    @property
    def aim(self) -> Labels:
        """What the run in progress aims at."""
        return self.target


@dataclass(frozen=True)
class Seed:
    """What the repetitions know of the runs before them; see `State`."""

    later: Scalars
    closest: Scalars
    towards: Labels


@dataclass(frozen=True)
class Pursuit(Attack[State]):
    """Auto-PGD on the margin, first to any class, then to the likeliest ones in turn, each run only while in reach.

    Method: a run's gap is its best margin's distance from zero, in units of the gain that its first gradient promises
    within the ball: both scale with the logits, so the gap does not. A run ends when its gap is too wide for its age,
    or too wide for the progress since the last look. The first run starts at the clean point and ranks the targets;
    the others start at random. A sample whose runs all begin out of reach is given up after a few; one that came close
    is tried again, in sparse norms from larger radii. Cost: one forward and one backward per answer, one to four
    answers for a target out of reach; the number of classes does not matter. Reference: this project, after Gao et al.
    2022 (one margin per target, likeliest first) and Croce & Hein 2020, 2021 (Auto-PGD).
    Limits: drops rows whose trajectory looks out of reach: a model with masked gradients looks like that everywhere,
    which is why `fast` audits what it dropped.

    >>> Pursuit(steps=50, targets=9, again=8).queries
    894
    """

    steps: int = 50
    targets: int = 9
    again: int = 8
    loss = "margin-towards"
    name = "pursuit"
    abandons_early = True

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps, targets=self.targets)

    @property
    def queries(self) -> int:
        """The most a sample can cost: every run to its end."""
        first = min(self.steps, UNTARGETED) + 1
        return first + self._plain.queries * self.targets + self._shrinking.queries * self.again

    @property
    def usual_queries(self) -> int:
        """What a sample that does not break takes as a rule (docs/design/fast.md: 21 to 67)."""
        return min(USUAL, self.queries)

    @property
    def _plain(self) -> APGD:
        return APGD(self.steps, self.loss)

    @property
    def _shrinking(self) -> APGD:
        """In sparse norms the repetitions come from larger radii (Croce & Hein 2021)."""
        return APGD(self.steps, self.loss, larger_eps=True)

    def init(self, p: Batch, ball: Ball) -> State:
        """The untargeted run, at the clean point or where told."""
        zero, far = torch.zeros_like(p.y), torch.full_like(ball.eps, torch.inf)
        return State(
            t=zero,
            run=self._thin(self._plain.init(replace(p, start=p.x if p.start is None else p.start), ball), p, ball),
            attempt=zero,
            until=zero + self.targets + self.again,
            target=zero - 1,
            ranked=(zero - 1)[:, None].repeat(1, self.targets),
            reach=torch.zeros_like(far),
            gap=far,
            early=far,
            later=torch.zeros_like(far),
            begun=far,
            closest=far,
            towards=zero - 1,
        )

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """Take note, let the run go on where it may arrive, begin another one elsewhere."""
        shrinking = (s.attempt > self.targets) & ball.norm.sparse
        last = torch.where(shrinking, self._shrinking.queries - 1, self.steps)
        last = torch.where(s.attempt == 0, min(self.steps, UNTARGETED), last)
        # Samples that are done are still stepped until they are replaced; their last run stands at its end.
        age = torch.minimum(s.run.t, last)
        run = self._advance(replace(s.run, t=age), shrinking, a, p, ball)
        s = self._note(replace(s, t=s.t + 1, run=run), a, p, ball, age == 0)
        gap = torch.where(s.reach > 0, -s.run.f_best / s.reach, torch.inf)
        s, on = self._look(s, gap, age)
        closer = (gap < s.closest) & (s.attempt <= self.targets)
        s = replace(
            s,
            begun=torch.where(age == 0, torch.minimum(s.begun, gap), s.begun),
            closest=torch.where(closer, gap, s.closest),
            towards=torch.where(closer & (s.target >= 0), s.target, s.towards),
        )
        return self._next(s, (age >= last) | ~(on | shrinking), p, ball)

    def _advance(self, run: Any, shrinking: Mask, a: Response, p: Batch, ball: Ball) -> Any:
        if not ball.norm.sparse:
            return self._plain.step(run, a, p, ball)
        plain = self._plain.step(replace(run, t=run.t.clamp(max=self.steps)), a, p, ball)
        if _may_look(shrinking) and not bool(shrinking.any()):
            return plain
        return where_rows(shrinking, self._shrinking.step(run, a, p, ball), plain)

    def _note(self, s: State, a: Response, p: Batch, ball: Ball, first: Mask) -> State:
        """What the first answer of a run tells: its reach; and of a sample, the order of its targets."""
        ranked = torch.where((first & (s.attempt == 0))[:, None], self._rank(a.logits, p.y), s.ranked)
        return replace(
            s,
            ranked=ranked,
            # What an untargeted run comes closest to is not known; the likeliest class stands in.
            towards=torch.where(s.towards < 0, ranked[:, 0], s.towards),
            reach=torch.where(first, ball.reach(a.gradient), s.reach),
        )

    def _rank(self, logits: Logits, y: Labels) -> Tensor:
        """The likeliest wrong classes, −1 where the model has no more."""
        order = likeliest_wrong(logits, y, self.targets)
        return torch.nn.functional.pad(order, (0, self.targets - order.shape[1]), value=-1)

    def _look(self, s: State, gap: Scalars, age: Labels) -> tuple[State, Mask]:
        """Which runs go on: near enough for their age, and getting nearer fast enough."""
        due, patience = (table[age.clamp(max=self.steps)] for table in _timetable(self.steps, age.device))
        second = age == LOOKS[1]
        in_range = gap <= torch.where(age == 0, FAR_AT_FIRST, FAR)
        promising = ~second | (s.attempt < LEARNT) | (gap <= LATER_GAIN * s.later)
        # Infinite patience asks for nothing; 0 · inf would be no number.
        moving = (patience == torch.inf) | (gap <= patience * (s.gap - gap))
        on = ~due | (in_range & ((gap <= NEAR) | (promising & moving)))
        s = replace(s, gap=torch.where(due, gap, s.gap), early=torch.where(second, gap, s.early))
        gained = torch.where((age >= LOOKS[2]) & (s.attempt <= self.targets), s.early - gap, 0.0)
        return replace(s, later=torch.maximum(s.later, gained)), on

    def _next(self, s: State, over: Mask, p: Batch, ball: Ball) -> State:
        """Where a run is over: the next target, a repetition, or the end of the sample."""
        attempt = (s.attempt + over).clamp(max=self.targets + self.again + 1)
        target = s.ranked.gather(1, (attempt - 1).clamp(0, self.targets - 1)[:, None])[:, 0]
        hopeless = (attempt > FEW) & (s.begun > FAR_AT_FIRST)
        # Targets the model does not have, or that are not worth trying, are passed over at once.
        skip = over & (attempt >= 1) & (attempt <= self.targets) & ((target < 0) | hopeless)
        attempt = torch.where(skip, self.targets + 1, attempt)
        extra = attempt - self.targets
        done = over & (extra >= 1) & ((attempt > s.until) | ~_near(s.closest, extra))
        target = torch.where(extra >= 1, _repeated(s.towards, extra), target)
        s = replace(
            s,
            t=torch.where(done, self.queries, s.t),
            attempt=attempt,
            target=torch.where(over, target, s.target),
            gap=torch.where(over, torch.inf, s.gap),
        )
        return replace(s, run=self._begin(s, over & ~done, p, ball))

    def alone(self, s: State) -> State:
        """The same samples, to end before their repetitions."""
        return replace(s, until=torch.full_like(s.until, self.targets))

    def seed(self, s: State) -> Seed:
        """What repetitions have to know."""
        return Seed(s.later, s.closest, s.towards)

    def unseeded(self, y: Labels) -> Seed:
        """Of samples of which nothing is known."""
        far = torch.full(y.shape, torch.inf, device=y.device)
        return Seed(torch.zeros_like(far), far, torch.full_like(y, -1))

    def branches(self, seed: Seed) -> Labels:
        """How many repetitions samples want that have ended `alone`."""
        near = [_near(seed.closest, torch.full_like(seed.towards, k)) for k in range(1, self.again + 1)]
        return torch.stack([torch.zeros_like(seed.towards), *near]).sum(0)

    def branch(self, seed: Seed, which: Labels, p: Batch, ball: Ball) -> State:
        """One repetition of each sample by itself, counted from 0."""
        attempt = self.targets + 1 + which
        far, none = torch.full_like(seed.closest, torch.inf), torch.full_like(which, -1)
        return State(
            t=torch.zeros_like(which),
            run=self._start(attempt, p, ball),
            attempt=attempt,
            until=attempt,
            target=_repeated(seed.towards, which + 1),
            ranked=none[:, None].repeat(1, self.targets),
            reach=torch.zeros_like(far),
            gap=far,
            early=far,
            later=seed.later,
            begun=far,
            closest=seed.closest,
            towards=seed.towards,
        )

    def _begin(self, s: State, new: Mask, p: Batch, ball: Ball) -> Any:
        """Fresh runs at random starts where `new`; on a CPU only those are made, elsewhere without looking."""
        if not _may_look(new):
            return where_rows(new, self._start(s.attempt, p, ball), s.run)
        index = new.nonzero()[:, 0]
        if not len(index):
            return s.run
        # At least two: reductions over a lone long row are split over threads and round differently.
        both = index if len(index) > 1 else index.repeat(2)
        fresh = self._start(s.attempt[both], take(p, both), ball.subset(both))
        return put(s.run, index, take(fresh, torch.arange(len(index))))

    def _start(self, attempt: Labels, p: Batch, ball: Ball) -> Any:
        p = replace(p, key=rng.fold(p.key, attempt), start=None)
        run = self._thin(self._plain.init(p, ball), p, ball)
        return where_rows(attempt > self.targets, self._shrinking.init(p, ball), run) if ball.norm.sparse else run

    def _thin(self, run: Any, p: Batch, ball: Ball) -> Any:
        """In sparse norms the first steps move about as many coordinates as the budget can move at all."""
        if not ball.norm.sparse:
            return run
        return replace(run, density=(CROWD * ball.eps / flat(p.x).shape[1]).clamp(max=SHARE))
