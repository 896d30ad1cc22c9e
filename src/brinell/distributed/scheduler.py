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
LATE = 1.5
# The usual time per sample is that of the units that ended last.
RECENT = 101


@dataclass(eq=False)
class Lease:
    """Samples handed to a worker, in order; `left` are those nobody has finished and nobody else took over."""

    worker: int
    samples: tuple[int, ...]
    begun: float
    left: dict[int, None] = field(default_factory=dict)
    victim: int | None = None

    def __post_init__(self) -> None:
        self.left = dict.fromkeys(self.samples)

    def rest(self, now: float, pace: float) -> float:
        """A guess of the seconds it still takes, where others need `pace` seconds per sample."""
        own = (now - self.begun) / max(len(self.samples) - len(self.left), 1)
        return len(self.left) * max(own, pace)


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
        self._paces: deque[float] = deque(maxlen=RECENT)

    @property
    def done(self) -> bool:
        """Whether every sample is finished."""
        return self._dry and not self._returned and not self._holders

    def lease(self, worker: int, now: float) -> Lease | None:
        """Samples for an idle worker, or None if there is nothing useful to do for it now.

        Where `lease.victim` is given, that worker had these samples until now and may drop them.
        """
        assert worker not in self._leases, "a worker does one thing at a time"
        samples = self._again() or self._fresh()
        if samples:
            return self._open(Lease(worker, samples, now))
        return self._take_over(worker, now) if self._overlap else None

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

    def _take_over(self, worker: int, now: float) -> Lease | None:
        """A share of the lease that will take longest, or, where all are small, the rest of one that is late."""
        pace = statistics.median(self._paces) if self._paces else 0.0
        leases = self._leases.values()
        large = [other for other in leases if len(other.left) >= 2 * self._block]
        if large:
            return self._open(self._split(max(large, key=lambda other: other.rest(now, pace)), worker, now))
        late = [other for other in leases if self._paces and self._late(other, now, pace)]
        if late:
            return self._open(Lease(worker, tuple(max(late, key=lambda other: other.rest(now, pace)).left), now))
        return None

    def _late(self, lease: Lease, now: float, pace: float) -> bool:
        """Whether somebody else should do the rest of the lease as well; two are enough."""
        slow = now - lease.begun > LATE * pace * max(len(lease.samples), self._block)
        return slow and bool(lease.left) and all(len(self._holders[i]) == 1 for i in lease.left)

    def _split(self, other: Lease, worker: int, now: float) -> Lease:
        """A new lease of the other's last samples, which it will come to last."""
        left = list(other.left)
        count = max(len(left) // 2 // self._block, 1) * self._block
        taken = tuple(left[-count:])
        for i in taken:
            del other.left[i]
            self._holders[i].remove(other)
        return Lease(worker, taken, now, victim=other.worker)
