"""What many workers would take: the real scheduler, played with a clock of its own."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from brinell.distributed.scheduler import Lease, Scheduler
from brinell.engine.oracle import BLOCK


@dataclass(frozen=True)
class World:
    """What workers are like: seconds per block relative to the usual, and what goes wrong.

    `blocks` are relative times of blocks, drawn from at random. `slow` is the share of workers that take `slowness`
    times as long, `deaths` how often a worker dies per hour, `start` the seconds until a worker is ready, at first and
    after a death, `latency` those to hand over a unit.
    """

    blocks: Sequence[float | int] = (1,)
    slow: float | int = 0.0
    slowness: float | int = 3.0
    deaths: float | int = 0.0
    start: float | int = 0.0
    latency: float | int = 0.0


@dataclass(frozen=True)
class Estimate:
    """Seconds until everything is done, and what so many workers cost for so long.

    `efficiency` is the time the work itself takes on equal workers that never wait, over the time it took.
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
) -> Estimate:
    """Time and cost of an evaluation from the throughput of one worker and the price of one worker for an hour.

    `passes_per_sample` is in every Run (`run.cost.forwards_per_sample`), `passes_per_second` its forwards over its
    `wall_seconds`. A worker's block takes the same time full or not, so workers beyond one per block bring nothing.

    >>> print(estimate(51_200, 10, passes_per_sample=100, passes_per_second=1000, price_per_hour=3))
    10 workers: 0.142 h, cost 4.267, efficiency 100 %
    >>> estimate(512, 8, passes_per_sample=100, passes_per_second=1000).efficiency
    0.25
    """
    usual = block * passes_per_sample / passes_per_second
    game = _Game(samples, workers, block, usual, world or World(), random.Random(seed))
    seconds = game.play()
    ideal = samples * passes_per_sample / passes_per_second / workers
    return Estimate(workers, seconds, ideal / seconds, workers * price_per_hour * seconds / 3600)


NOBODY = -1
# As often per block does the driver look whether somebody is late.
LOOKS = 20


class _Game:
    """Events in the order of time: a worker is ready or has done a block of its lease, or the idle look around."""

    def __init__(self, n: int, workers: int, block: int, usual: float, world: World, chance: random.Random) -> None:
        self.block, self.usual, self.world, self.chance = block, usual, world, chance
        self.scheduler = Scheduler(range(n), n, workers, block=block, largest=n)
        self.speeds = [world.slowness if i < round(world.slow * workers) else 1.0 for i in range(workers)]
        self.order = count()
        self.events: list[tuple[float, int, int, Lease | None, int]] = []
        self.idle: set[int] = set()
        self.looking = False
        for worker in range(workers):
            self._later(float(world.start), worker)

    def _later(self, when: float, worker: int, lease: Lease | None = None, done: int = 0) -> None:
        heapq.heappush(self.events, (when, next(self.order), worker, lease, done))

    def play(self) -> float:
        """The time at which the last sample is finished."""
        now = 0.0
        while not self.scheduler.done:
            now, _, worker, lease, done = heapq.heappop(self.events)
            if lease is not None:
                self._block_done(now, worker, lease, done)
            elif worker != NOBODY:
                self.idle.add(worker)
            else:
                self.looking = False
            self._hand_out(now)
        return now

    def _block_done(self, now: float, worker: int, lease: Lease, done: int) -> None:
        self.scheduler.finish(lease.samples[done - self.block : done])
        if done >= len(lease.samples):
            self.scheduler.end(worker, now)
            self.idle.add(worker)
        else:
            self._next_block(now, worker, lease, done)

    def _next_block(self, now: float, worker: int, lease: Lease, done: int) -> None:
        took = self.usual * self.speeds[worker] * self.chance.choice(self.world.blocks)
        if self.world.deaths and self.chance.random() < self.world.deaths * took / 3600:
            # It dies in the middle of the block and somebody starts in its place.
            self.scheduler.lose(worker)
            self._later(now + took / 2 + self.world.start, worker)
            return
        self._later(now + took, worker, lease, done + self.block)

    def _hand_out(self, now: float) -> None:
        for worker in sorted(self.idle):
            lease = self.scheduler.lease(worker, now)
            if lease is None:
                if not self.looking:
                    self.looking = True
                    self._later(now + self.usual / LOOKS, NOBODY)
                return
            self.idle.remove(worker)
            self._next_block(now + self.world.latency, worker, lease, 0)
