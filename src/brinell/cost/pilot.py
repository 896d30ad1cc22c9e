"""Attack a few samples for a short time to see how many break, how soon, and how long a query takes."""

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from brinell.core.plan import Stage, Stages
from brinell.engine.accelerate import accelerated
from brinell.engine.cuda.autotune import replayed_seconds
from brinell.engine.oracle import Oracle
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import run_unverified, stage_oracle
from brinell.ops import rng

Numbers = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Clock = Callable[[], float]

# Looks that are timed, after one that warms up; samples of the largest pilot; answers a pilot should get to see.
TIMED, LARGEST, ANSWERS = 3, 512, 60
# A slow model is asked about fewer rows at a time: the probe should have time for at least so many questions.
QUESTIONS = 8
# What a forward and a backward pass take beside a forward alone, until it is measured.
WITH_GRADIENT = 3.0
# What an iteration takes beside its model call, where both are recorded.
STEP = 1.2


@dataclass(frozen=True)
class Pace:
    """Seconds of an iteration of the engine: so much by itself, and so much for every block of rows."""

    fixed: float
    block: float

    def seconds(self, iterations: float, blocks: float) -> float:
        """The time of so many iterations that ask about so many blocks altogether."""
        return self.fixed * iterations + self.block * blocks


@dataclass(frozen=True)
class StageTrial:
    """What one stage did to every sample of the pilot: whether it was tried, fell, came to its end, after how many
    answers (of a sample that was cut short: those it had until then)."""

    tried: Flags
    fell: Flags
    ended: Flags
    answers: Ints
    pace: Pace | None


@dataclass(frozen=True)
class Pilot:
    """The samples that were tried (positions in the chunk), a trial per stage, and what it took to find out."""

    at: Ints
    trials: tuple[StageTrial, ...]
    forward: float
    block: int
    seconds: float
    recorded: tuple[float | None, ...] = ()
    """Seconds of a stage's iterations, per block, where they are recorded: what is tried here is not."""


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Restore the global random generators, which randomised models use: the evaluation must find them unchanged."""
    host = torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(host)
        if there is not None:
            torch.cuda.set_rng_state(there, device)


@dataclass
class Stopwatch:
    """Counts the engine's looks and iterations, notes when they were, and stops it at the deadline or after so many."""

    clock: Clock
    deadline: float
    most: int | None = None
    most_iterations: int | None = None

    def __post_init__(self) -> None:
        self.times = [self.clock()]
        self.made: list[int] = []
        self.over = False

    def __call__(self, iterations: int) -> bool:
        self.times.append(self.clock())
        self.made.append(iterations)
        late = self.times[-1] >= self.deadline
        looked = self.most is not None and self.looks >= self.most
        asked = self.most_iterations is not None and self.iterations >= self.most_iterations
        self.over = late or looked or asked
        return self.over

    @property
    def looks(self) -> int:
        """Looks so far."""
        return len(self.times) - 1

    @property
    def iterations(self) -> int:
        """Iterations so far."""
        return sum(self.made)

    @property
    def each(self) -> float:
        """Seconds per iteration, without those before the first look where there are others."""
        first = 0 if self.looks < 2 else 1
        return (self.times[-1] - self.times[first]) / sum(self.made[first:])


def spread(values: Numbers, n: int, offset: float) -> Ints:
    """Positions of n values that lie evenly along their order; every beginning of the list does so too.

    >>> spread(np.arange(8.0), 4, 0.0).tolist()
    [0, 4, 2, 6]
    """
    order, size = np.argsort(values, kind="stable"), len(values)
    if n >= size:
        n = size
    # The van der Corput sequence: the digits of 0, 1, 2 … mirrored at the point.
    k, places = np.arange(8 * max(size, 1)), np.zeros(8 * max(size, 1))
    digit = 0.5
    while k.any():
        places, k, digit = places + digit * (k % 2), k // 2, digit / 2
    rank = np.floor(((places + offset) % 1.0) * size).astype(np.int64)
    _, first = np.unique(rank, return_index=True)
    chosen = rank[np.sort(first)][:n]
    missing = np.setdiff1d(np.arange(size), chosen)[: n - len(chosen)]
    return order[np.concatenate([chosen, missing])]


def positions(seed: int, c: Clean, at: Ints, n: int) -> Ints:
    """Of the samples at positions `at`, n that stand for all: spread along their clean margins, drawn by the seed."""
    offset = float(rng.uniform(rng.keys(seed, torch.tensor([rng.digest("pilot")])), (1,)))
    return at[spread(c.margin.cpu().numpy().astype(np.float64)[at], n, offset)]


def run_pilot(
    context: StageContext,
    stages: Stages,
    c: Clean,
    at: Ints,
    individual: bool,
    seconds: float,
    pace: float,
    clock: Clock,
) -> Pilot:
    """Try the plan on samples among those at positions `at`, for at most so many seconds.

    Method: the samples lie evenly along the clean margins of all candidates, with an offset drawn by the seed: who
    breaks is nearly a matter of margin, so a few samples tell the share well. Every stage gets its part of the time,
    and its iterations are timed with the slots full and with one block. A stage cut short leaves samples of which it
    is only known that they did not break so far. `pace` is a first idea of the seconds of one row's forward pass.
    """
    begun = clock()
    recorded = tuple(_recorded(context, stage, tuple(c.chunk.x.shape[1:])) for stage in stages)
    end = clock() + seconds
    context = _smaller(context, seconds, pace)
    order = positions(context.seed, c, at, LARGEST)
    forward = _forward(context, c, order, clock)
    done = 0
    parts: list[tuple[StageTrial, ...]] = []
    size = _blocks(context, stages, len(order), forward, (end - clock()) / 2) * context.oracle.block
    while done < len(order) and (not parts or clock() - begun < seconds / 2):
        here = order[done : done + size]
        parts.append(_batch(context, stages, c, here, individual, end, clock, at, [] if not parts else list(parts[0])))
        done, size = done + len(here), 2 * size
        if not all((t.ended | ~t.tried).all() for t in parts[-1]):
            break  # there was no time for more
    joined = tuple(_join([p[k] for p in parts]) for k in range(len(stages))) if parts else ()
    return Pilot(order[:done], joined, forward, context.oracle.block, clock() - begun, recorded)


def _recorded(context: StageContext, stage: Stage, shape: tuple[int, ...]) -> float | None:
    """Seconds of an iteration per block by its model calls alone, which are most of it, and what comes on top."""
    if context.graph_cache is None or context.graph_cache.failed:
        return None
    oracle, turns = stage_oracle(context, stage), stage.attack.query_pattern
    lanes = -(-context.slots // context.oracle.block)
    calls = {need: replayed_seconds(oracle, shape, need, lanes) for need in set(turns)}
    each = [calls[need] for need in turns]
    if any(s is None for s in each):
        return None
    return STEP * stage.eot * sum(s for s in each if s is not None) / len(turns)


def _smaller(context: StageContext, seconds: float, pace: float) -> StageContext:
    """The setup with a model that is asked about so few rows at a time that the probe can ask several times."""
    most = int(seconds / QUESTIONS / max(WITH_GRADIENT * pace, 1e-12))
    block = context.oracle.block
    while block > 1 and block > most:
        block //= 2
    plain = Oracle(context.oracle.classifier, block, precision=context.oracle.precision)
    oracle = accelerated(plain, plain.classifier.device)
    # Randomised models too end with their first success here: to know who falls, not at which pass.
    early = context.early_exit or context.draws > 1
    return replace(context, oracle=oracle, draws=1, early_exit=early, graph_cache=None)


def _forward(context: StageContext, c: Clean, order: Ints, clock: Clock) -> float:
    """Seconds of a forward pass of one block."""
    rows = torch.as_tensor(np.resize(order, context.oracle.block))
    x = c.chunk.x[rows].to(c.logits.device)
    context.oracle.output(x).logits.cpu()
    begun = clock()
    context.oracle.output(x).logits.cpu()
    return clock() - begun


def _blocks(context: StageContext, stages: Stages, n: int, forward: float, seconds: float) -> int:
    """How many blocks of samples the pilot can follow for as many answers as it should see."""
    most = -(-min(n, context.slots) // context.oracle.block)
    wanted = min(ANSWERS, max(s.attack.queries * len(s.attempts()) for s in stages))
    each = WITH_GRADIENT * forward * max(s.eot for s in stages)
    return max(1, min(most, int(seconds / len(stages) / max(each * wanted, 1e-12))))


def _batch(
    context: StageContext,
    stages: Stages,
    c: Clean,
    at: Ints,
    individual: bool,
    end: float,
    clock: Clock,
    everyone: Ints,
    before: list[StageTrial],
) -> tuple[StageTrial, ...]:
    standing = np.ones(len(at), dtype=bool)
    trials: list[StageTrial] = []
    for k, stage in enumerate(stages):
        # The first of the stages left gets twice what each other one gets.
        allotted = max(0.0, end - clock()) * 2 / (len(stages) - k + 1)
        trying = np.ones_like(standing) if individual else standing.copy()
        pace = before[k].pace if before else None
        trial = _stage(context, stage, c, at, trying, clock() + allotted, clock, everyone, pace)
        standing &= ~trial.fell
        trials.append(trial)
    return tuple(trials)


def _stage(
    context: StageContext,
    stage: Stage,
    c: Clean,
    at: Ints,
    trying: Flags,
    deadline: float,
    clock: Clock,
    everyone: Ints,
    pace: Pace | None,
) -> StageTrial:
    fell, ended, answers = np.zeros_like(trying), np.zeros_like(trying), np.zeros(len(at), dtype=np.int64)
    blank = StageTrial(trying, fell, ended, answers, pace)
    if not trying.any() or clock() >= deadline:
        return blank
    if pace is None:
        pace = _pace(context, stage, c, everyone, deadline - (deadline - clock()) / 2, clock)
    place = np.flatnonzero(trying)
    watch = Stopwatch(clock, deadline)
    for which, r in run_unverified(context, stage, c, torch.as_tensor(at[place], device=c.logits.device), watch):
        here = place[which.cpu().numpy()]
        fell[here], ended[here] = r.broken.cpu().numpy(), True
        answers[here] = r.forwards.cpu().numpy() // stage.eot
    answers[trying & ~ended] = watch.iterations
    # Without the first look, before which the targets were ranked.
    took = watch.each * watch.iterations if watch.looks else 0.0
    return StageTrial(trying, fell, ended, answers, _corrected(pace, answers[trying], context.oracle.block, took))


def _corrected(pace: Pace, answers: Ints, block: int, took: float) -> Pace:
    """The pace, so that it gives the time that the pilot itself took where that was long enough to tell."""
    iterations, blocks = schedule(answers, len(answers), block)
    expected = pace.seconds(iterations, blocks)
    if iterations < ANSWERS / 4 or expected <= 0:
        return pace
    return Pace(pace.fixed * took / expected, pace.block * took / expected)


def schedule(answers: npt.NDArray[np.integer], slots: int, block: int) -> tuple[float, float]:
    """Iterations of the engine, and blocks asked about in all of them, for samples that take so many answers each.

    Method: samples take the next free slot; whole blocks of empty slots are dropped when none is waiting.

    >>> schedule(np.array([3, 1, 1]), slots=2, block=2), schedule(np.array([5, 1]), slots=2, block=1)
    ((3.0, 3.0), (5.0, 6.0))
    """
    if not len(answers):
        return 0.0, 0.0
    capacity = min(slots, len(answers))
    ends = [int(v) for v in answers[:capacity]]
    heapq.heapify(ends)
    for v in answers[capacity:]:
        heapq.heapreplace(ends, ends[0] + int(v))
    # The k-th block lives as long as more than k blocks of slots do.
    longest = np.sort(np.asarray(ends))[::-1]
    return float(longest[0]), float(longest[::block].sum())


def _pace(context: StageContext, stage: Stage, c: Clean, everyone: Ints, deadline: float, clock: Clock) -> Pace:
    """The seconds of an iteration, measured with the slots full and with a single block."""
    block = context.oracle.block
    full = -(-min(context.slots, len(everyone)) // block)
    one = _seconds(context, stage, c, np.resize(everyone, min(block, len(everyone))), deadline, clock)
    if full == 1 or clock() + (TIMED + 1) * full * one > deadline:
        return Pace(0.0, one)
    all_ = _seconds(context, stage, c, everyone[: full * block], deadline, clock)
    each = min(max((all_ - one) / (full - 1), 0.0), all_ / full)
    return Pace(all_ - full * each, each)


def _seconds(context: StageContext, stage: Stage, c: Clean, at: Ints, deadline: float, clock: Clock) -> float:
    watch = Stopwatch(clock, deadline, TIMED + 1)
    last = watch.times[0]
    for _ in run_unverified(context, stage, c, torch.as_tensor(at, device=c.logits.device), watch):
        last = clock()
    if watch.over:
        return watch.each
    # All ended before the last look: an attack of few answers, whose beginning counts too.
    return (max(last, watch.times[-1]) - watch.times[0]) / watch.iterations


def _join(parts: list[StageTrial]) -> StageTrial:
    names = ("tried", "fell", "ended", "answers")
    tried, fell, ended, answers = (np.concatenate([getattr(p, n) for p in parts]) for n in names)
    return StageTrial(tried, fell, ended, answers, next((p.pace for p in reversed(parts) if p.pace is not None), None))
