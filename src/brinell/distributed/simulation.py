"""Simulate the real scheduler with a virtual clock to predict the time and cost of many workers."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from brinell.distributed.scheduler import Lease, UnitScheduler
from brinell.engine.oracle import BLOCK


@dataclass(frozen=True)
class World:
    """Conditions of a simulated cluster: spread of the block times, slow workers, crashes and delays.

    `blocks` are relative times of a block; each block takes one of these times at random. A share `slow` of the workers
    is `slowness` times slower. `deaths` is the number of crashes per worker and hour, `start` is the seconds until a
    new or replaced worker is ready, and `latency` is the seconds to assign a unit.
    """

    blocks: Sequence[float | int] = (1,)
    slow: float | int = 0.0
    slowness: float | int = 3.0
    deaths: float | int = 0.0
    start: float | int = 0.0
    latency: float | int = 0.0


@dataclass(frozen=True)
class ClusterEstimate:
    """Predicted seconds and cost of an evaluation on a cluster, in the currency of `price_per_hour`.

    `efficiency` is the ideal time (equal workers that never wait) divided by the predicted time.
    """

    workers: int
    seconds: float
    efficiency: float
    cost: float

    def __str__(self) -> str:
        hours = self.seconds / 3600
        return f"{self.workers} workers: {hours:.3g} h, cost {self.cost:.4g}, efficiency {100 * self.efficiency:.0f} %"


def estimate(
    samples: int,
    workers: int,
    *,
    passes_per_sample: float | int,
    passes_per_second: float | int,
    price_per_hour: float | int = 0,
    block: int = BLOCK["cuda"],
    world: World | None = None,
    seed: int = 0,
) -> ClusterEstimate:
    """Predict the time and cost of an evaluation from the throughput and the hourly price of one worker.

    From an earlier Run, `passes_per_sample` is `run.cost.forwards_per_sample` and `passes_per_second` is the forward
    passes of the Run divided by its `wall_seconds`. A partly filled block takes as long as a full one, so more workers
    than blocks do not help.

    >>> print(estimate(51_200, 10, passes_per_sample=100, passes_per_second=1000, price_per_hour=3))
    10 workers: 0.142 h, cost 4.267, efficiency 100 %
    >>> estimate(512, 8, passes_per_sample=100, passes_per_second=1000).efficiency
    0.25
    """
    block_seconds = block * passes_per_sample / passes_per_second
    seconds = _Simulation(samples, workers, block, block_seconds, world or World(), random.Random(seed)).run()
    ideal = samples * passes_per_sample / passes_per_second / workers
    return ClusterEstimate(workers, seconds, ideal / seconds, workers * price_per_hour * seconds / 3600)


DRIVER = -1
# How often per block the driver checks for late workers.
CHECKS = 20


class _Simulation:
    """A run of the scheduler on a queue of events: a worker is ready or ends a block; the driver looks for delays."""

    def __init__(
        self, n: int, workers: int, block: int, block_seconds: float, world: World, rng: random.Random
    ) -> None:
        self.block, self.block_seconds, self.world, self.rng = block, block_seconds, world, rng
        self.scheduler = UnitScheduler(range(n), n, workers, block=block, largest=n)
        self.speeds = [world.slowness if i < round(world.slow * workers) else 1.0 for i in range(workers)]
        self.order = count()
        self.events: list[tuple[float, int, int, Lease | None, int]] = []
        self.idle: set[int] = set()
        self.check_scheduled = False
        for worker in range(workers):
            self._schedule(float(world.start), worker)

    def _schedule(self, when: float, worker: int, lease: Lease | None = None, done: int = 0) -> None:
        heapq.heappush(self.events, (when, next(self.order), worker, lease, done))

    def run(self) -> float:
        now = 0.0
        while not self.scheduler.done:
            now, _, worker, lease, done = heapq.heappop(self.events)
            if lease is not None:
                self._block_done(now, worker, lease, done)
            elif worker != DRIVER:
                self.idle.add(worker)
            else:
                self.check_scheduled = False
            self._assign_units(now)
        return now

    def _block_done(self, now: float, worker: int, lease: Lease, done: int) -> None:
        self.scheduler.finish(lease.samples[done - self.block : done])
        if done >= len(lease.samples):
            self.scheduler.end(worker, now)
            self.idle.add(worker)
        else:
            self._next_block(now, worker, lease, done)

    def _next_block(self, now: float, worker: int, lease: Lease, done: int) -> None:
        seconds = self.block_seconds * self.speeds[worker] * self.rng.choice(self.world.blocks)
        if self.world.deaths and self.rng.random() < self.world.deaths * seconds / 3600:
            # The worker crashes in the middle of the block and a new one starts in its place.
            self.scheduler.lose(worker)
            self._schedule(now + seconds / 2 + self.world.start, worker)
            return
        self._schedule(now + seconds, worker, lease, done + self.block)

    def _assign_units(self, now: float) -> None:
        for worker in sorted(self.idle):
            lease = self.scheduler.lease(worker, now)
            if lease is None:
                if not self.check_scheduled:
                    self.check_scheduled = True
                    self._schedule(now + self.block_seconds / CHECKS, DRIVER)
                return
            self.idle.remove(worker)
            self._next_block(now + self.world.latency, worker, lease, 0)
