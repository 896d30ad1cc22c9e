"""The scheduler: decide which worker attacks which samples. The scheduler has no clock, so the simulation uses it too.

Units are large at first and become smaller towards the end (guided self-scheduling), but never smaller than a block.
When all samples are assigned, an idle worker takes over the tail of the unit with the most work left, or repeats the
unfinished samples of a late unit. The outcome of a sample does not depend on the worker, so the first result counts.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

# A new unit is one half of a worker's equal share of the unassigned samples, so that uneven units balance out.
SHARE = 2
# A unit is late if it takes this many times as long as other units of its size.
LATE = 1.5
# The typical time per sample is the median of this many recent units.
RECENT = 101


@dataclass(eq=False)
class Lease:
    """The samples assigned to a worker, in the order in which the worker attacks them.

    `unfinished` holds the samples that are neither finished nor taken over by another worker. `taken_from` is the
    worker that had these samples before, if any.
    """

    worker: int
    samples: tuple[int, ...]
    started: float
    unfinished: dict[int, None] = field(default_factory=dict)
    taken_from: int | None = None

    def __post_init__(self) -> None:
        self.unfinished = dict.fromkeys(self.samples)

    def remaining_seconds(self, now: float, pace: float) -> float:
        """Return the estimated seconds until the lease is finished; `pace` is the usual seconds per sample."""
        measured = (now - self.started) / max(len(self.samples) - len(self.unfinished), 1)
        return len(self.unfinished) * max(measured, pace)


class UnitScheduler:
    """A scheduler: each sample goes to one worker, and to a second worker if the first is late.

    `samples` are ids, read on demand; `total` is an upper bound of their number. A unit has at least `block` samples
    and at most `largest`; `fixed` is the size of all units, if given. Without `overlap` no worker takes over samples of
    another worker.

    >>> s = UnitScheduler(range(100), 100, workers=2, block=10, largest=1000)
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
        self._unread, self._exhausted = total, False
        self._workers, self._block, self._largest = workers, block, largest
        self._fixed, self._overlap = fixed, overlap
        self._returned: deque[int] = deque()
        self._leases: dict[int, Lease] = {}
        self._holders: dict[int, list[Lease]] = {}
        self._paces: deque[float] = deque(maxlen=RECENT)

    @property
    def done(self) -> bool:
        return self._exhausted and not self._returned and not self._holders

    def lease(self, worker: int, now: float) -> Lease | None:
        """Return a lease of samples for an idle worker, or None if there is nothing useful to do now.

        If `taken_from` of the lease is set, that worker had these samples until now and may drop the samples.
        """
        assert worker not in self._leases, "a worker has at most one lease"
        samples = self._take_returned() or self._take_unread()
        if samples:
            return self._open(Lease(worker, samples, now))
        return self._take_over(worker, now) if self._overlap else None

    def finish(self, samples: Iterable[int]) -> None:
        """Mark samples as finished, whichever worker finished them."""
        for i in samples:
            for lease in self._holders.pop(i, ()):
                lease.unfinished.pop(i, None)

    def end(self, worker: int, now: float) -> list[int]:
        """End a worker's lease: mark all its samples as finished, and return the samples not marked before."""
        lease = self._leases.pop(worker)
        self._paces.append((now - lease.started) / len(lease.samples))
        finished = list(lease.unfinished)
        self.finish(finished)
        return finished

    def lose(self, worker: int) -> None:
        """Remove a crashed worker; samples that no other worker has are assigned again, before new samples."""
        lease = self._leases.pop(worker, None)
        if lease is None:
            return
        for i in lease.unfinished:
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

    def _take_returned(self) -> tuple[int, ...]:
        return tuple(self._returned.popleft() for _ in range(min(self._size(), len(self._returned))))

    def _take_unread(self) -> tuple[int, ...]:
        samples = tuple(islice(self._source, self._size()))
        self._unread = max(0, self._unread - len(samples))
        self._exhausted = self._exhausted or not samples
        return samples

    def _open(self, lease: Lease) -> Lease:
        self._leases[lease.worker] = lease
        for i in lease.samples:
            self._holders.setdefault(i, []).append(lease)
        return lease

    def _take_over(self, worker: int, now: float) -> Lease | None:
        """Return a lease of the last samples of a long lease, or else of the unfinished samples of a late lease."""
        pace = statistics.median(self._paces) if self._paces else 0.0
        leases = sorted(self._leases.values(), key=lambda other: -other.remaining_seconds(now, pace))
        for other in leases:
            if len(other.unfinished) >= 2 * self._block:
                return self._open(self._split(other, worker, now))
        for other in leases:
            if self._paces and self._is_late(other, now, pace):
                return self._open(Lease(worker, tuple(other.unfinished), now))
        return None

    def _is_late(self, lease: Lease, now: float, pace: float) -> bool:
        """Return whether the lease is late and no second worker repeats its unfinished samples yet."""
        slow = now - lease.started > LATE * pace * max(len(lease.samples), self._block)
        return slow and bool(lease.unfinished) and all(len(self._holders[i]) == 1 for i in lease.unfinished)

    def _split(self, other: Lease, worker: int, now: float) -> Lease:
        """Move the last samples of the lease `other`, which its worker would reach last, into a new lease."""
        remaining = list(other.unfinished)
        count = max(len(remaining) // 2 // self._block, 1) * self._block
        taken = tuple(remaining[-count:])
        for i in taken:
            del other.unfinished[i]
            self._holders[i].remove(other)
        return Lease(worker, taken, now, taken_from=other.worker)
