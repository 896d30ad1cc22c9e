"""The pilot: attack a few samples for a short time to see how many break, how soon, and how long a query takes."""

import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from brinell.core.plan import Stage, Stages
from brinell.cost.budget import max_queries
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

# Host syncs that are timed, after one to warm up; samples of the largest pilot; queries per sample it should reach.
TIMED, LARGEST, ANSWERS = 3, 512, 60
# A slow model is queried with smaller blocks, so that the pilot has time for at least this many calls.
CALLS = 8
# The assumed time of a forward and a backward pass, relative to a forward pass.
WITH_GRADIENT = 3.0
# The time of a captured iteration, relative to its model call.
STEP = 1.2


@dataclass(frozen=True)
class Pace:
    """The duration of an iteration of the engine: `fixed` seconds, plus `block` seconds per block of rows."""

    fixed: float
    block: float

    def seconds(self, iterations: float, blocks: float) -> float:
        """Return the seconds of this many iterations that query this many blocks in total."""
        return self.fixed * iterations + self.block * blocks


@dataclass(frozen=True)
class StageTrial:
    """The trial of one stage: whether it attacked (`tried`), broke (`fell`) and finished (`ended`) each sample.

    `answers` is the number of queries on each sample.
    """

    tried: Flags
    fell: Flags
    ended: Flags
    answers: Ints
    pace: Pace | None


@dataclass(frozen=True)
class Pilot:
    """The result of a pilot run, from which the cost of a plan is estimated: its samples, trials and times.

    `at` are the positions of its samples in the chunk; `trials` has one trial per stage. `forward` is the seconds of a
    forward pass of `block` rows. `recorded` holds, for each stage, the seconds that one iteration on one block takes
    when it is replayed as a CUDA graph; the pilot run itself does not use graphs.
    """

    at: Ints
    trials: tuple[StageTrial, ...]
    forward: float
    block: int
    seconds: float
    recorded: tuple[float | None, ...] = ()


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """On exit, restore the global random generators that randomised models use, so that the pilot changes no result."""
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
    """A timer that counts the engine's host syncs and iterations, and stops it at a deadline or a maximum count."""

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
        synced = self.most is not None and self.syncs >= self.most
        iterated = self.most_iterations is not None and self.iterations >= self.most_iterations
        self.over = late or synced or iterated
        return self.over

    @property
    def syncs(self) -> int:
        """The number of host syncs so far."""
        return len(self.times) - 1

    @property
    def iterations(self) -> int:
        """The number of iterations so far."""
        return sum(self.made)

    @property
    def each(self) -> float:
        """Seconds per iteration; iterations before the first host sync are left out if there are later iterations."""
        first = 0 if self.syncs < 2 else 1
        return (self.times[-1] - self.times[first]) / sum(self.made[first:])


def spread(values: Numbers, n: int, offset: float) -> Ints:
    """Return the positions of n values with evenly spread ranks; every prefix of the result has evenly spread ranks.

    >>> spread(np.arange(8.0), 4, 0.0).tolist()
    [0, 4, 2, 6]
    """
    order, size = np.argsort(values, kind="stable"), len(values)
    n = min(n, size)
    # The van der Corput sequence: the binary digits of 0, 1, 2 … mirrored at the point.
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
    """Return n of the positions `at`, spread evenly over the ranks of the clean margins, shifted by the seed."""
    purpose = torch.tensor([rng.digest("pilot")], dtype=torch.long, device="cpu")
    offset = float(rng.uniform(rng.keys(seed, purpose), (1,)))
    return at[spread(c.margin.cpu().numpy().astype(np.float64)[at], n, offset)]


def run_pilot(
    context: StageContext, stages: Stages, c: Clean, at: Ints, individual: bool, seconds: float, pace: float,
    clock: Clock,
) -> Pilot:  # fmt: skip
    """Run the plan on some of the samples at positions `at`, for at most `seconds`.

    Method: the samples are spread evenly over the ranks of the clean margins. The margin almost decides whether a
    sample breaks, so few samples predict the share of broken samples well. Every stage gets a part of the time, and
    its iterations are timed with full slots and with one block. `pace` is roughly the seconds of one row's forward
    pass.
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
            break  # out of time
    joined = tuple(_join([p[k] for p in parts]) for k in range(len(stages))) if parts else ()
    return Pilot(order[:done], joined, forward, context.oracle.block, clock() - begun, recorded)


def _recorded(context: StageContext, stage: Stage, shape: tuple[int, ...]) -> float | None:
    """Return the seconds per block of an iteration in a CUDA graph, from timed model calls; None without graphs."""
    if context.graph_cache is None or context.graph_cache.failed:
        return None
    oracle, turns = stage_oracle(context, stage), stage.attack.query_pattern
    lanes = -(-context.slots // context.oracle.block)
    calls = {need: replayed_seconds(oracle, shape, need, lanes) for need in set(turns)}
    each = [seconds for need in turns if (seconds := calls[need]) is not None]
    return STEP * stage.eot * sum(each) / len(turns) if len(each) == len(turns) else None


def _smaller(context: StageContext, seconds: float, pace: float) -> StageContext:
    """Return the context with blocks small enough for several model calls within the pilot's `seconds`."""
    most = int(seconds / CALLS / max(WITH_GRADIENT * pace, 1e-12))
    block = context.oracle.block
    while block > 1 and block > most:
        block //= 2
    smaller = tuple(size for size in context.oracle.sizes if size < block)
    plain = Oracle(context.oracle.classifier, block, precision=context.oracle.precision, sizes=smaller)
    oracle = accelerated(plain, plain.classifier.device)
    # Attacks on randomised models end at their first success here: only whether a sample breaks is needed.
    early = context.early_exit or context.draws > 1
    return replace(context, oracle=oracle, draws=1, early_exit=early, graph_cache=None)


def _forward(context: StageContext, c: Clean, order: Ints, clock: Clock) -> float:
    rows = torch.as_tensor(np.resize(order, context.oracle.block), device="cpu")
    x = c.chunk.x[rows].to(c.logits.device)
    context.oracle.output(x).logits.cpu()
    begun = clock()
    context.oracle.output(x).logits.cpu()
    return clock() - begun


def _blocks(context: StageContext, stages: Stages, n: int, forward: float, seconds: float) -> int:
    """Return how many blocks of samples the pilot can attack in `seconds` with enough queries per sample."""
    most = -(-min(n, context.slots) // context.oracle.block)
    wanted = min(ANSWERS, max(max_queries(s) for s in stages))
    each = WITH_GRADIENT * forward * max(s.eot for s in stages)
    return max(1, min(most, int(seconds / len(stages) / max(each * wanted, 1e-12))))


def _batch(
    context: StageContext, stages: Stages, c: Clean, at: Ints, individual: bool, end: float, clock: Clock,
    everyone: Ints, before: list[StageTrial],
) -> tuple[StageTrial, ...]:  # fmt: skip
    standing = np.ones(len(at), dtype=bool)
    trials: list[StageTrial] = []
    for k, stage in enumerate(stages):
        # The next stage gets twice the time of each later one.
        allotted = max(0.0, end - clock()) * 2 / (len(stages) - k + 1)
        trying = np.ones_like(standing) if individual else standing.copy()
        pace = before[k].pace if before else None
        # An audit attacks few samples: small calls take less time.
        few = math.ceil(stage.usual_share * len(everyone))
        trying[np.flatnonzero(trying)[few:]] = False
        trial = _stage(context, stage, c, at, trying, clock() + allotted, clock, everyone[:few], pace)
        standing &= ~trial.fell
        trials.append(trial)
    return tuple(trials)


def _stage(
    context: StageContext, stage: Stage, c: Clean, at: Ints, trying: Flags, deadline: float, clock: Clock,
    everyone: Ints, pace: Pace | None,
) -> StageTrial:  # fmt: skip
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
    # Without the first host sync, before which the targets were ranked.
    took = watch.each * watch.iterations if watch.syncs else 0.0
    return StageTrial(trying, fell, ended, answers, _corrected(pace, answers[trying], context.oracle.block, took))


def _corrected(pace: Pace, answers: Ints, block: int, took: float) -> Pace:
    """Return the pace scaled to the seconds that the pilot `took`; unchanged if the pilot made few iterations."""
    iterations, blocks = schedule(answers, len(answers), block)
    expected = pace.seconds(iterations, blocks)
    if iterations < ANSWERS / 4 or expected <= 0:
        return pace
    return Pace(pace.fixed * took / expected, pace.block * took / expected)


def schedule(answers: npt.NDArray[np.integer], slots: int, block: int) -> tuple[float, float]:
    """Return how many iterations the engine makes and how many blocks it queries in all, given queries per sample.

    Method: samples take the next free slot; whole blocks of empty slots are dropped when no sample is waiting.

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
    # The k-th block is queried as long as more than k blocks of slots are occupied.
    longest = np.sort(np.asarray(ends))[::-1]
    return float(longest[0]), float(longest[::block].sum())


def _pace(context: StageContext, stage: Stage, c: Clean, everyone: Ints, deadline: float, clock: Clock) -> Pace:
    """Return the pace of a stage, measured on iterations with full slots and with a single block."""
    block = context.oracle.block
    full = -(-min(context.slots, len(everyone)) // block)
    one = _seconds(context, stage, c, np.resize(everyone, min(block, len(everyone))), deadline, clock)
    if full == 1 or clock() + (TIMED + 1) * full * one > deadline:
        return Pace(0.0, one)
    whole = _seconds(context, stage, c, everyone[: full * block], deadline, clock)
    each = min(max((whole - one) / (full - 1), 0.0), whole / full)
    return Pace(whole - full * each, each)


def _seconds(context: StageContext, stage: Stage, c: Clean, at: Ints, deadline: float, clock: Clock) -> float:
    watch = Stopwatch(clock, deadline, TIMED + 1)
    last = watch.times[0]
    for _ in run_unverified(context, stage, c, torch.as_tensor(at, device=c.logits.device), watch):
        last = clock()
    if watch.over:
        return watch.each
    # The attack ended before the last host sync: its start counts too.
    return (max(last, watch.times[-1]) - watch.times[0]) / watch.iterations


def _join(parts: list[StageTrial]) -> StageTrial:
    names = ("tried", "fell", "ended", "answers")
    tried, fell, ended, answers = (np.concatenate([getattr(p, n) for p in parts]) for n in names)
    return StageTrial(tried, fell, ended, answers, next((p.pace for p in reversed(parts) if p.pace is not None), None))
