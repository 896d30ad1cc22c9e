"""A scheduler for attacks that never end early: the attempts of a sample are under way at the same time."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.engine.best_so_far import Best, BestRow, gather_rows, joined
from brinell.engine.scheduler import Scheduler
from brinell.engine.slots import Entry, Outcome


@dataclass
class ParallelAttempts(Scheduler):
    """A scheduler whose slots hold one attempt each, so that few samples with many attempts fill all slots.

    Without early exit every attempt runs to its end, so no pass is wasted. Every attempt has its own best point. These
    are joined in the order of the attempts: results and counted passes are those of one attempt after another.
    """

    results: dict[int, dict[int, BestRow]] = field(default_factory=dict)
    """The results of samples with attempts under way, by position of the sample and by attempt."""
    complete: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = self.samples.attempts
        if given is None:
            self._count = torch.full_like(self.samples.eps, len(self.engine.attempts), dtype=torch.long)
            self._first = torch.zeros_like(self._count)
        else:
            self._first, self._count = given[:, 0], given[:, 1] - given[:, 0]
        # All attempts of a sample enter one after the other, so that few results wait for others of their sample.
        self._sample = torch.arange(len(self.samples), device=self.samples.device).repeat_interleave(self._count)
        before = self._count.cumsum(0) - self._count
        self._attempt = torch.arange(len(self._sample), device=self.samples.device) - before[self._sample]

    @property
    def total(self) -> int:
        return len(self._sample)

    def entry(self, numbers: Tensor, live: Tensor) -> Entry:
        at = self._sample[numbers]
        return self.engine.entry(self.samples, at, live, self._first[at] + self._attempt[numbers])

    def has_attempts_left(self, outcome: Outcome) -> list[bool]:
        return [False] * len(outcome.at)

    def keep(self, outcome: Outcome) -> None:
        places, attempts, counts = outcome.at.tolist(), outcome.attempt.tolist(), self._count[outcome.at].tolist()
        for row, (at, attempt, count) in enumerate(zip(places, attempts, counts, strict=True)):
            of_sample = self.results.setdefault(at, {})
            of_sample[attempt] = BestRow(outcome.best, row)
            if len(of_sample) == count:
                self.complete.append(at)

    def drain(self) -> Iterator[tuple[Tensor, Best]]:
        complete, self.complete = sorted(self.complete), []
        # Samples with the same number of attempts are joined together.
        by_count: dict[int, list[int]] = {}
        for at in complete:
            by_count.setdefault(len(self.results[at]), []).append(at)
        for group in by_count.values():
            rows = [[row for _, row in sorted(self.results.pop(at).items())] for at in group]
            best, *later = (gather_rows(list(each)) for each in zip(*rows, strict=True))
            for following in later:
                best = joined(best, following, self.engine.attack.minimum_norm)
            yield self.index(group), best
