"""Many short Auto-PGD runs per sample, each abandoned when its trajectory shows that it will not succeed."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks._common import RunState
from brinell.attacks._parameters import check_positive, check_whole
from brinell.attacks.gradient.apgd import APGD
from brinell.attacks.gradient.apgd_l1 import SHARE
from brinell.core.attack import Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.losses import likeliest_wrong
from brinell.ops.rowwise import flat, may_branch, number_where, put, take, where_rows
from brinell.ops.types import Labels, Logits, Mask, Scalars

# docs/design/fast.md explains these numbers. The reach of a run is the gain that its first gradient promises within the
# ball, eps times the dual norm. The gap is what the best margin lacks to success, in units of the reach.
CHECKPOINTS = (0, 1, 3, 6, 12, 25)  # responses after which a run is checked
FAR_AT_FIRST, FAR = 2.5, 1.5  # a run with a larger gap ends: at its first checkpoint, and at later ones
NEAR = 0.03  # a run with a smaller gap continues, whatever its progress
# From the third checkpoint on, the gap may be at most this many times the gain since the last checkpoint.
PATIENCE = {3: 6.0, 6: 8.0, 12: 8.0, 25: 8.0}
# From its LEARNT-th run on, a sample's runs pass the second checkpoint only if the gap is at most LATER_GAIN times what
# an earlier run gained after that checkpoint: if the model is nearly linear, one step shows all there is to gain.
LATER_GAIN, LEARNT = 4.0, 3
FEW = 3  # after so many targets a sample is given up if none of its runs began within FAR_AT_FIRST
AGAIN = 0.08  # below this gap two more runs, to the closest target and untargeted, and two more for each halving of it
UNTARGETED = 10  # steps of the first run, which is untargeted
USUAL = 50  # queries that a surviving sample usually takes
# Sparse norms: no coordinate moves by more than 1, so eps coordinates can use up the budget. Twice as many share it.
CROWD = 2.0


@table
def _timetable(steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for each response of a run, whether it is a checkpoint, and its value in `PATIENCE` (inf if none)."""
    ages = range(steps + 1)
    patience = [PATIENCE.get(a, torch.inf) for a in ages]
    due = torch.tensor([a in CHECKPOINTS for a in ages], dtype=torch.bool, device=device)
    return due, torch.tensor(patience, dtype=torch.float32, device=device)


def _near(closest: Scalars, extra: Labels) -> Mask:
    """Return the mask of samples whose smallest gap `closest` is small enough for repetition `extra` (1, 2, …)."""
    return closest < AGAIN * 0.5 ** ((extra - 1) // 2).to(closest.dtype)


def _repeated(towards: Labels, extra: Labels) -> Labels:
    """Return the target of repetition `extra`: the class `towards` if `extra` is odd, none (−1) if it is even."""
    return torch.where(extra % 2 == 1, towards, -1)


@dataclass(frozen=True)
class PursuitState(RunState):
    """State of `Pursuit`: the Auto-PGD run in progress, and what earlier runs say about the sample.

    `attempt` numbers the runs: 0 is untargeted, 1 … `targets` go to the `ranked` classes, then come the repetitions;
    `until` is the last run allowed. Of the current run: `reach` (the gain that its first gradient predicts), `gap` (at
    the last checkpoint; see `Pursuit`) and `early` (the gap at the second checkpoint). Of all runs of the sample:
    `later` (the largest decrease of the gap after a second checkpoint), `begun` (the smallest initial gap), `closest`
    (the smallest gap) and `towards` (the target of the run with this gap). Repetitions do not change `later`,
    `closest` and `towards`, so that no repetition depends on another.
    """

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
    def aim(self) -> Labels:
        return self.target


@dataclass(frozen=True)
class RepetitionSeed:
    """What repetitions need from the runs before them: three fields of `PursuitState`."""

    later: Scalars
    closest: Scalars
    towards: Labels


@dataclass(frozen=True)
class Pursuit(Attack[PursuitState]):
    """Auto-PGD on the margin, first untargeted, then towards the likeliest classes; unpromising runs end early.

    Method: the gap of a run is minus its best margin, divided by the gain that its first gradient predicts within the
    ball (eps times the dual norm). It does not depend on the scale of the logits. At a checkpoint a run ends if its gap
    is too large for the number of steps taken or for the progress since the last checkpoint. The first run starts at
    the clean point and ranks the targets; the others start at random. A sample whose runs all begin with a large gap is
    given up after a few runs; a sample with a small gap is attacked again, in sparse norms from larger radii. Cost: one
    forward and one backward pass per query, one to four queries for a target out of reach; the number of classes does
    not matter. Reference: this project, after Gao et al. 2022 (one margin per target, likeliest first) and Croce & Hein
    2020, 2021 (Auto-PGD).
    Limits: gives up samples whose gaps stay large. With masked gradients all gaps stay large, which is why the plan
    `fast` audits a share of the samples.

    >>> Pursuit(steps=50, targets=9, again=8).queries
    894
    """

    steps: int = 50
    targets: int = 9
    again: int = 8
    loss = "margin-towards"
    name = "pursuit"
    abandons_early = True
    parallel_restarts = True

    def __post_init__(self) -> None:
        check_whole(steps=self.steps)
        check_positive(targets=self.targets)

    @property
    def queries(self) -> int:
        first = min(self.steps, UNTARGETED) + 1
        return first + self._plain.queries * self.targets + self._shrinking.queries * self.again

    @property
    def usual_queries(self) -> int:
        """The number of queries that a surviving sample usually needs (docs/design/fast.md: 21 to 67)."""
        return min(USUAL, self.queries)

    @property
    def _plain(self) -> APGD:
        return APGD(self.steps, self.loss)

    @property
    def _shrinking(self) -> APGD:
        """Auto-PGD for repetitions in sparse norms: it starts with larger radii (Croce & Hein 2021)."""
        return APGD(self.steps, self.loss, larger_eps=True)

    def init(self, p: Batch, ball: Ball) -> PursuitState:
        """Return the state at the beginning of the untargeted run, at the clean point or at the explicit start."""
        run = self._thin(self._plain.init(replace(p, start=p.x if p.start is None else p.start), ball), p, ball)
        zero = torch.zeros_like(p.y)
        return self._first(run, zero, zero + self.targets + self.again, zero - 1, self.no_seed(p.y))

    def step(self, s: PursuitState, a: Response, p: Batch, ball: Ball) -> PursuitState:
        shrinking = (s.attempt > self.targets) & ball.norm.sparse
        last = torch.where(shrinking, self._shrinking.queries - 1, self.steps)
        last = torch.where(s.attempt == 0, min(self.steps, UNTARGETED), last)
        # Finished samples are still stepped until they are replaced; their last run stays at its end.
        age = torch.minimum(s.run.t, last)
        run = self._advance(replace(s.run, t=age), shrinking, a, p, ball)
        s = self._record(replace(s, t=s.t + 1, run=run), a, p, ball, age == 0)
        gap = torch.where(s.reach > 0, -s.run.f_best / s.reach, torch.inf)
        s, on = self._checkpoint(s, gap, age)
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
        if may_branch(shrinking) and not bool(shrinking.any()):
            return plain
        return where_rows(shrinking, self._shrinking.step(run, a, p, ball), plain)

    def _record(self, s: PursuitState, a: Response, p: Batch, ball: Ball, first: Mask) -> PursuitState:
        """Return the state. A run's first response sets `reach`; the sample's first response also ranks the targets."""
        ranked = torch.where((first & (s.attempt == 0))[:, None], self._rank(a.logits, p.y), s.ranked)
        return replace(
            s,
            ranked=ranked,
            # The class that an untargeted run comes closest to is not known; use the likeliest one.
            towards=torch.where(s.towards < 0, ranked[:, 0], s.towards),
            reach=torch.where(first, ball.reach(a.gradient), s.reach),
        )

    def _rank(self, logits: Logits, y: Labels) -> Tensor:
        """Return the `targets` likeliest wrong classes, padded with −1 if the model has fewer."""
        order = likeliest_wrong(logits, y, self.targets)
        return torch.nn.functional.pad(order, (0, self.targets - order.shape[1]), value=-1)

    def _checkpoint(self, s: PursuitState, gap: Scalars, age: Labels) -> tuple[PursuitState, Mask]:
        """Return the state and the mask of runs that continue. A run ends if its gap is large or shrinks slowly."""
        due, patience = (table[age.clamp(max=self.steps)] for table in _timetable(self.steps, age.device))
        second = age == CHECKPOINTS[1]
        in_range = gap <= number_where(age == 0, FAR_AT_FIRST, FAR)
        promising = ~second | (s.attempt < LEARNT) | (gap <= LATER_GAIN * s.later)
        # Infinite patience demands no progress. It is tested first, since 0 · inf is NaN.
        moving = (patience == torch.inf) | (gap <= patience * (s.gap - gap))
        on = ~due | (in_range & ((gap <= NEAR) | (promising & moving)))
        s = replace(s, gap=torch.where(due, gap, s.gap), early=torch.where(second, gap, s.early))
        gained = torch.where((age >= CHECKPOINTS[2]) & (s.attempt <= self.targets), s.early - gap, 0.0)
        return replace(s, later=torch.maximum(s.later, gained)), on

    def _next(self, s: PursuitState, over: Mask, p: Batch, ball: Ball) -> PursuitState:
        """Return the state in which rows whose run is `over` begin the next target or repetition, or end."""
        attempt = (s.attempt + over).clamp(max=self.targets + self.again + 1)
        target = s.ranked.gather(1, (attempt - 1).clamp(0, self.targets - 1)[:, None])[:, 0]
        hopeless = (attempt > FEW) & (s.begun > FAR_AT_FIRST)
        # Skip targets that the model does not have and targets of hopeless samples.
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

    def before_restarts(self, s: PursuitState) -> PursuitState:
        return replace(s, until=torch.full_like(s.until, self.targets))

    def restart_seed(self, s: PursuitState) -> RepetitionSeed:
        return RepetitionSeed(s.later, s.closest, s.towards)

    def no_seed(self, y: Labels) -> RepetitionSeed:
        far = torch.full(y.shape, torch.inf, device=y.device, dtype=torch.float32)
        return RepetitionSeed(torch.zeros_like(far), far, torch.full_like(y, -1))

    def restart_count(self, seed: RepetitionSeed) -> Labels:
        near = [_near(seed.closest, torch.full_like(seed.towards, k)) for k in range(1, self.again + 1)]
        return torch.stack([torch.zeros_like(seed.towards), *near]).sum(0)

    def restart(self, seed: RepetitionSeed, which: Labels, p: Batch, ball: Ball) -> PursuitState:
        attempt = self.targets + 1 + which
        target = _repeated(seed.towards, which + 1)
        return self._first(self._start(attempt, p, ball), attempt, attempt, target, seed)

    def _first(self, run: Any, attempt: Labels, until: Labels, target: Labels, seed: RepetitionSeed) -> PursuitState:
        far = torch.full_like(seed.closest, torch.inf)
        return PursuitState(
            t=torch.zeros_like(attempt), run=run, attempt=attempt, until=until, target=target,
            ranked=torch.full_like(attempt, -1)[:, None].repeat(1, self.targets), reach=torch.zeros_like(far),
            gap=far, early=far, later=seed.later, begun=far, closest=seed.closest, towards=seed.towards,
        )  # fmt: skip

    def _begin(self, s: PursuitState, new: Mask, p: Batch, ball: Ball) -> Any:
        """Return the Auto-PGD states; the rows `new` begin again at random points of the ball."""
        if not may_branch(new):
            return where_rows(new, self._start(s.attempt, p, ball), s.run)
        index = new.nonzero()[:, 0]
        if not len(index):
            return s.run
        # At least two rows: torch splits the reduction of a single long row over threads, which rounds differently.
        both = index if len(index) > 1 else index.repeat(2)
        fresh = self._start(s.attempt[both], take(p, both), ball.subset(both))
        return put(s.run, index, take(fresh, torch.arange(len(index), device="cpu")))

    def _start(self, attempt: Labels, p: Batch, ball: Ball) -> Any:
        p = replace(p, key=rng.fold(p.key, attempt), start=None)
        run = self._thin(self._plain.init(p, ball), p, ball)
        return where_rows(attempt > self.targets, self._shrinking.init(p, ball), run) if ball.norm.sparse else run

    def _thin(self, run: Any, p: Batch, ball: Ball) -> Any:
        """Return the run; in sparse norms its first steps move at most `CROWD` · eps coordinates."""
        if not ball.norm.sparse:
            return run
        return replace(run, density=(CROWD * ball.eps / flat(p.x).shape[1]).clamp(max=SHARE))
