"""The engine: run one attack on many samples with a fixed number of slots."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Attempt, Requires, Response
from brinell.core.criterion import Criterion
from brinell.core.threat import Ball
from brinell.engine.attack_step import AttackStep, BestSoFar
from brinell.engine.best_so_far import Best, at_next_attempt, blank
from brinell.engine.oracle import Oracle
from brinell.engine.parallel_attempts import ParallelAttempts
from brinell.engine.scheduler import Scheduler
from brinell.engine.slots import Entry, Samples, Slots
from brinell.ops import rng
from brinell.ops.device_cache import table
from brinell.ops.rowwise import concat, head, take


def unwatched(passes: int, begun: int) -> None:
    """Ignore the passes: the default of `Engine.watch`."""


def go_on(iterations: int) -> bool:
    """Never end a run: the default of `Engine.tick`."""
    return False


@dataclass(frozen=True)
class Engine:
    """An engine for one attack on many samples. With `early_exit` a sample's attempts end once the sample is broken.

    Every iteration queries the model once for every slot. Waiting samples take the slots of finished samples. The
    arithmetic of a row never involves another row, so scheduling cannot change an outcome. `ball` gives norm and mask;
    each sample has its own radius. `refined` means that the caller refines distances in float32. `observe` is called
    with the slots and the response of every iteration, `tick` with the number of iterations since its last call; if
    `tick` returns true, the run ends. `watch` is called with the number of passes since its last call and the number of
    samples begun. `scheduler` is the function that makes the scheduler
    (see `brinell.engine.accelerate`). With `keep_best` the point of largest margin is kept where none is adversarial.
    """

    oracle: Oracle
    attack: AnyAttack
    criterion: Criterion
    ball: Ball
    attempts: tuple[Attempt, ...]
    slots: int
    early_exit: bool = True
    draws: int = 1
    refined: bool = False
    tick: Callable[[int], bool] = go_on
    observe: Callable[[Slots, Response], None] | None = None
    scheduler: Callable[["Engine", Samples], Scheduler] = Scheduler
    keep_best: bool = False
    watch: Callable[[int, int], None] = unwatched

    def run(self, samples: Samples) -> Iterator[tuple[Tensor, Best]]:
        """Attack the samples; whenever samples finish, yield their positions in `samples` and their best points."""
        # An observer and a clock expect the attempts of a sample one after another.
        watched = self.observe is not None or self.tick is not go_on
        if self.scheduler is Scheduler and len(self.attempts) > 1 and not watched:
            return ParallelAttempts(self, samples).run()
        return self.scheduler(self, samples).run()

    def attack_step(
        self, make: Callable[..., AttackStep] = AttackStep, pattern: tuple[Requires, ...] = ()
    ) -> AttackStep:
        """Return the function that does one attack step on slots for each entry of `pattern`."""
        # If float32 refines the nearest point afterwards, keep it whatever its margin.
        slack = 0.0 if self.refined else self.oracle.slack
        best_so_far = BestSoFar(self.criterion, self.attack.minimum_norm, self.draws > 1 or self.keep_best, slack)
        pattern = pattern or self.attack.query_pattern
        settings = self.draws, self.early_exit, self.observe
        return make(self.oracle, self.attack, best_so_far, self.ball, pattern, *settings)

    def entry(self, samples: Samples, at: Tensor, live: Tensor, attempt: Tensor | None = None) -> Entry:
        """Return the `Entry` of the samples at positions `at` for these attempts (None: for their first attempts)."""
        if attempt is None:
            attempt = torch.zeros_like(at) if samples.attempts is None else samples.attempts[at, 0]
        batch = replace(take(samples.batch, at), target=samples.targets[at, attempt])
        return Entry(at, attempt, live, batch, samples.eps[at])

    def begin(self, entry: Entry) -> Slots:
        """Return slots at the beginning of the attempts in `entry`; no adversarial is found yet."""
        ranks, restarts = _ranks_and_restarts(self.attempts, entry.at.device)
        restart = restarts[entry.attempt]
        key = rng.fold(rng.fold(entry.batch.key, ranks[entry.attempt]), restart)
        batch = replace(entry.batch, key=key, restart=restart)
        state = self.first_states(
            replace(entry, batch=batch), lambda e: self.attack.init(e.batch, replace(self.ball, eps=e.eps))
        )
        return Slots(entry.at, entry.attempt, entry.live, batch, entry.eps, state=state, best=blank(batch.x))

    def next_attempt(self, slots: Slots, samples: Samples) -> Slots:
        """Return slots with the same samples at the beginning of their next attempts; best points are kept."""
        entry = self.entry(samples, slots.at, torch.ones_like(slots.live), slots.attempt + 1)
        return replace(self.begin(entry), best=at_next_attempt(slots.best))

    def first_states(self, entry: Entry, init: Callable[[Any], Any]) -> Any:
        """Return the attack's first states, bit-identical for any number of rows in `entry`.

        Rounding may depend on the number of rows. On a CPU only a single row rounds differently, since its reductions
        are split over threads, so a single row is doubled. On other devices the rows are padded to a whole block.
        """
        device, n = self.oracle.classifier.device, len(entry.eps)
        cpu = device.type == "cpu"
        room = 2 if cpu else self.oracle.block
        if n == room or (cpu and n > 1):
            return init(entry)
        indices = (torch.arange(first, first + room, device=device).clamp(max=n - 1) for first in range(0, n, room))
        return head(concat([init(take(entry, index)) for index in indices]), n)


@table
def _ranks_and_restarts(attempts: tuple[Attempt, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    ranks, restarts = [a.rank for a in attempts], [a.restart for a in attempts]
    return torch.tensor(ranks, device=device, dtype=torch.long), torch.tensor(restarts, device=device, dtype=torch.long)
