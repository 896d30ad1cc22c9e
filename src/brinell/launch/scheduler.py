"""Who does which samples next: a pure object without clock, processes or tensors, so that simulations run it too.

Units are large at first and smaller towards the end (guided self-scheduling), but fill a block. Once everything is
handed out, whoever is idle takes over the tail of the unit with the most work left, or does the last samples of a late
one a second time: a sample's outcome does not depend on who computes it, so the first answer counts.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

# A new unit is this share of what one worker may expect of the rest: half, so that uneven units even out.
SHARE = 2
# A unit that takes this many times as long as others of its size is late.
LATE = 2.0


@dataclass(eq=False)
class Lease:
    """Samples handed to a worker, in order; `left` are those nobody has finished and nobody else took over."""

    worker: int
    samples: tuple[int, ...]
    begun: float
    left: dict[int, None] = field(default_factory=dict)
    taken: tuple[int, ...] = ()
    victim: int | None = None

    def __post_init__(self) -> None:
        self.left = dict.fromkeys(self.samples)


class Scheduler:
    """Hands out samples, each to one worker unless it is late, until all are finished.

    `samples` are ids, read as they are needed; `total` is how many there are at most. Units have at least `block`
    samples and at most `largest`; `fixed` gives all of them one size. Without `overlap` nobody takes over anything.

    >>> s = Scheduler(range(100), 100, workers=2, block=10, largest=1000)
    >>> [len(s.lease(w, now=0.0).samples) for w in (0, 1)]
    [30, 20]
    """

    def __init__(
        self,
        samples: Iterable[int],
        total: int,
        workers: int,
        *,
        block: int,
        largest: int,
        fixed: int | None = None,
        overlap: bool = True,
    ) -> None:
        self._source: Iterator[int] = iter(samples)
        self._unread, self._dry = total, False
        self._workers, self._block, self._largest = workers, block, largest
        self._fixed, self._overlap = fixed, overlap
        self._returned: deque[int] = deque()
        self._leases: dict[int, Lease] = {}
        self._holders: dict[int, list[Lease]] = {}
        self._paces: list[float] = []

    @property
    def done(self) -> bool:
        """Whether every sample is finished."""
        return self._dry and not self._returned and not self._holders

    def lease(self, worker: int, now: float) -> Lease | None:
        """Samples for an idle worker, or None if there is nothing useful to do for it now.

        Where `lease.victim` is given, that worker had the samples `lease.taken` until now and may drop them.
        """
        assert worker not in self._leases, "a worker does one thing at a time"
        samples = self._again() or self._fresh()
        if samples:
            return self._open(Lease(worker, samples, now))
        for other in sorted(self._leases.values(), key=lambda l: -self._rest(l, now)) if self._overlap else ():
            if len(other.left) >= 2 * self._block:
                return self._open(self._split(other, worker, now))
            if self._late(other, now) and all(len(self._holders[i]) == 1 for i in other.left):
                return self._open(Lease(worker, tuple(other.left), now))
        return None

    def finish(self, samples: Iterable[int]) -> None:
        """These samples are decided, whoever decided them."""
        for i in samples:
            for lease in self._holders.pop(i, ()):
                lease.left.pop(i, None)

    def end(self, worker: int, now: float) -> list[int]:
        """The worker is through with its lease; returns those of its samples that are finished by that."""
        lease = self._leases.pop(worker)
        self._paces.append((now - lease.begun) / len(lease.samples))
        decided = list(lease.left)
        self.finish(decided)
        return decided

    def lose(self, worker: int) -> None:
        """The worker is gone; what it alone had is handed out again, before anything else."""
        lease = self._leases.pop(worker, None)
        if lease is None:
            return
        for i in lease.left:
            holders = self._holders[i]
            holders.remove(lease)
            if not holders:
                del self._holders[i]
                self._returned.append(i)

    def _size(self) -> int:
        if self._fixed is not None:
            return self._fixed
        share = -(-self._unread // (SHARE * self._workers))
        blocks = max(1, min(-(-share // self._block), self._largest // self._block))
        return blocks * self._block

    def _again(self) -> tuple[int, ...]:
        return tuple(self._returned.popleft() for _ in range(min(self._size(), len(self._returned))))

    def _fresh(self) -> tuple[int, ...]:
        samples = tuple(islice(self._source, self._size()))
        self._unread = max(0, self._unread - len(samples))
        self._dry = self._dry or not samples
        return samples

    def _open(self, lease: Lease) -> Lease:
        self._leases[lease.worker] = lease
        for i in lease.samples:
            self._holders.setdefault(i, []).append(lease)
        return lease

    def _split(self, other: Lease, worker: int, now: float) -> Lease:
        """A new lease of the other's last samples, which it will come to last."""
        left = list(other.left)
        count = max(len(left) // 2 // self._block, 1) * self._block
        taken = tuple(left[-count:])
        for i in taken:
            del other.left[i]
            self._holders[i].remove(other)
        return Lease(worker, taken, now, taken=taken, victim=other.worker)

    def _rest(self, lease: Lease, now: float) -> float:
        """A guess of the seconds the lease still takes."""
        own = (now - lease.begun) / max(len(lease.samples) - len(lease.left), 1)
        return len(lease.left) * max(own, self._pace())

    def _pace(self) -> float:
        return statistics.median(self._paces) if self._paces else 0.0

    def _late(self, lease: Lease, now: float) -> bool:
        usual = self._pace() * max(len(lease.samples), self._block)
        return bool(self._paces) and bool(lease.left) and now - lease.begun > LATE * usual
