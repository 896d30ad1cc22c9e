"""Which samples of a Run to attack or certify again, how many, and what that shows."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brinell.errors import InputError
from brinell.finding import n_samples
from brinell.results import Run
from brinell.results.statistics import Proportion, hidden, sample_size
from brinell.verification.bundle import digest

# Bits of a drawn seed: too many to prepare for, and exact in any JSON reader.
SEED_BITS = 48


@dataclass(frozen=True)
class RerunSample:
    """How many survivors to attack again: `count`, or as many as it takes to find `hidden` broken ones.

    Without both, `hidden` is half of the 95 % interval of the robust accuracy, in samples: what is hidden with a larger
    effect than the sampling error is found. `seed` chooses the samples. Each is attacked by the stages that attacked it
    in the Run; with `full_plan`, by all stages of the plan.

    >>> [s.size(500, half_interval=31) for s in (RerunSample(hidden=25), RerunSample(), RerunSample(7))]
    [56, 45, 7]
    """

    count: int | None = None
    hidden: int | None = None
    confidence: float = 0.95
    seed: int = 0
    full_plan: bool = False

    def __post_init__(self) -> None:
        if self.count is not None and self.hidden is not None:
            raise InputError(
                expected="either the number of samples to run again, or the number of hidden samples to find",
                got=f"rerun={self.count} and hidden={self.hidden}",
                remedy="Leave out rerun (--rerun) or hidden (--hidden).",
            )
        for name, value, least in (("rerun", self.count, 0), ("hidden", self.hidden, 1)):
            if value is not None and (isinstance(value, bool) or value < least):
                raise InputError(
                    expected=f"{name} of at least {least}", got=f"{value}", remedy=f"Leave {name} out for the default."
                )
        if not 0 < self.confidence < 1:
            raise InputError(
                expected="a confidence between 0 and 1", got=f"{self.confidence}", remedy="Pass 0.95 for 95 %."
            )

    def size(self, population: int, half_interval: int) -> int:
        """Return how many samples of a population to attack again."""
        if self.count is not None:
            return min(self.count, population)
        return sample_size(min(self.hidden or max(1, half_interval), population), population, self.confidence)


def sampling_of(
    rerun: int | None, hidden: int | None, confidence: float, seed: int | None, full_plan: bool = False
) -> RerunSample:
    """Return the sampling for the options of `brinell.verify`; without a seed, one is drawn."""
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    return RerunSample(rerun, hidden, confidence, drawn, full_plan)


@dataclass(frozen=True)
class Rerun:
    """What a repetition shows: `ran` of `population` samples counted as robust were attacked again, `broke` broke.

    `alike` of them gave the same rows bit for bit. `seed` chose the samples. If the model is `randomised`, no number of
    hidden samples can be stated. Stages of an audit attacked `audited` of them, as in the Run; `near` of them got
    stages that they had to get in the Run and did not, since they come near the boundary here. `broken` samples that
    the Run counts as broken were attacked too. All this took `passes`, the Run took `run_passes`.

    >>> print(Rerun(population=500, ran=46, broke=0, alike=46, seed=7))
    46 of 500 survivors run again (seed 7), 0 broke; 31 or more wrong ones would have been noticed (95 %)
    """

    population: int
    ran: int
    broke: int = 0
    alike: int = 0
    seed: int = 0
    confidence: float = 0.95
    what: str = "survivors"
    randomised: bool = False
    audited: int = 0
    near: int = 0
    broken: int = 0
    passes: int = 0
    run_passes: int = 0

    @property
    def found(self) -> int:
        """The smallest number of hidden broken samples that the repetition finds with the stated confidence."""
        return hidden(0, self.ran, self.population, self.confidence)[1] + 1

    def __str__(self) -> str:
        text = f"{self.ran:,} of {self.population:,} {self.what} run again (seed {self.seed}), {self.broke:,} broke"
        if self.broke or not self.ran or self.randomised:
            return text
        if self.ran == self.population:
            return f"{text}; a single wrong one would have been noticed"
        share = f"{100 * self.confidence:g} %"
        return f"{text}; {self.found:,} or more wrong ones would have been noticed ({share})"

    @property
    def reasons(self) -> str:
        """What was run again and why, and its cost, in one or two sentences; empty if nothing was.

        >>> Rerun(500, 46, audited=5, broken=60, passes=1200, run_passes=12_000).reasons
        'Run again: 46 survivors (hidden broken samples), 5 of them by the audit too (its result decides the verdict), \
60 broken samples (which attack broke them). This took 1,200 passes, 10 % of those of the Run.'
        """
        if not self.passes:
            return ""
        audited = f"{self.audited:,} of them by the audit too (its result decides the verdict)"
        near = f"{self.near:,} by more of the plan (near the boundary here, not attacked by it in the Run)"
        broken = f"{n_samples(self.broken, kind='broken sample')} (which attack broke them)"
        parts = [f"{self.ran:,} {self.what} (hidden broken samples)"]
        parts += [text for count, text in ((self.audited, audited), (self.near, near), (self.broken, broken)) if count]
        share = f", {100 * self.passes / self.run_passes:.0f} % of those of the Run" if self.run_passes else ""
        return f"Run again: {', '.join(parts)}. This took {self.passes:,} passes{share}."

    def to_json(self) -> dict[str, Any]:
        """Return the repetition as JSON-compatible data."""
        return {**vars(self), "found": self.found if self.ran else None}


def half_interval(accuracy: Proportion) -> int:
    """Return half of the 95 % interval of an accuracy, in samples, rounded down; at least 1."""
    return max(1, int(accuracy.n * (accuracy.high - accuracy.low) / 2))


def ordered(run: Run, ids: Sequence[int], seed: int) -> list[int]:
    """Return the ids in an order by a hash of the seed, the Run and the id, so that its author cannot choose."""
    key = f"{seed}/{digest(run.path)}"
    return sorted(ids, key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())
