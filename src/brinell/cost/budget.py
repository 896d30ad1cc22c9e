"""The estimated cost of an evaluation, and the largest number of queries that a stage can make."""

from dataclasses import asdict, dataclass
from typing import Any

from brinell.core.attack import Requires
from brinell.core.plan import Stage, Stages


@dataclass(frozen=True)
class StageEstimate:
    """The estimated cost of one stage: number of attacked samples, passes in total, wall-clock seconds.

    >>> StageEstimate("pgd", samples=10, forwards=210, backwards=210, seconds=0.5).samples
    10
    """

    stage: str
    samples: int
    forwards: int
    backwards: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """The estimated passes and seconds of an evaluation, stage by stage, with a range.

    `forwards` and `backwards` predict `Run.cost`; the true numbers are probably between `low` and `high` times these.
    `seconds` is the wall-clock time, probably between `seconds_low` and `seconds_high`. `samples` is the number of
    samples to evaluate, `probed` is the number of samples in the pilot, a short trial of the plan.

    >>> import brinell
    >>> cost = brinell.estimate("demo", brinell.data.load("demo")[:64], brinell.Linf(0.1), "pgd20")
    >>> [s.stage for s in cost.stages], cost.forwards <= 64 * 22, cost.low <= 1 <= cost.high
    (['clean', 'pgd-ce'], True, True)
    """

    stages: tuple[StageEstimate, ...]
    samples: int
    low: float
    high: float
    seconds_low: float
    seconds_high: float
    probed: int
    probe_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def forwards(self) -> int:
        """The estimated number of forward passes, counted as in a Run's rows."""
        return sum(s.forwards for s in self.stages)

    @property
    def backwards(self) -> int:
        """The estimated number of backward passes, counted as in a Run's rows."""
        return sum(s.backwards for s in self.stages)

    @property
    def seconds(self) -> float:
        """The estimated wall-clock time of the evaluation."""
        return sum(s.seconds for s in self.stages)

    @property
    def basis(self) -> str:
        """A description of the pilot that the estimate is based on."""
        return f"a pilot of {self.probe_seconds:.1f} s on {self.probed:,} of {self.samples:,} samples"

    def __str__(self) -> str:
        passes = f"about {rounded(self.forwards)} forwards and {rounded(self.backwards)} backwards"
        spread = f"{duration(self.seconds_low)} to {duration(self.seconds_high)}"
        return f"{passes}, {duration(self.seconds)} ({spread}), by {self.basis}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields and their totals as plain data for JSON."""
        return {
            **asdict(self),
            "notes": list(self.notes),
            "stages": [asdict(s) for s in self.stages],
            "forwards": self.forwards,
            "backwards": self.backwards,
            "seconds": self.seconds,
            "sentence": str(self),
        }


def rounded(n: int) -> str:
    """Return a number as text, rounded to three significant digits.

    >>> rounded(1234567), rounded(89)
    ('1,230,000', '89')
    """
    size = 10 ** max(len(str(abs(n))) - 3, 0)
    return f"{round(n / size) * size:,}"


def duration(seconds: float) -> str:
    """Return a duration as text with a unit.

    >>> duration(0.3), duration(42.0), duration(300.0), duration(9000.0)
    ('0.3 s', '42 s', '5 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def max_queries(stage: Stage) -> int:
    """Return the largest number of queries that the stage makes per sample."""
    return stage.attack.queries * len(stage.attempts())


def usual_queries(stage: Stage) -> int:
    """Return how many queries a survivor usually takes: the maximum, unless the attack gives up on samples early."""
    return stage.attack.usual_queries * len(stage.attempts())


def backwards_per_query(stage: Stage, classes: int) -> float:
    """Return the mean number of backward passes per query; only some queries of an attack need gradients."""
    cost = {Requires.LOGITS: 0, Requires.GRAD: 1, Requires.DETECTOR: 2, Requires.JACOBIAN: classes}
    pattern = stage.attack.query_pattern
    return sum(cost[need] for need in pattern) / len(pattern)


def longest_seconds(stages: Stages, n: float, pace: float) -> float:
    """Return the seconds of the stages on n samples if no sample breaks; `pace` is the seconds of one forward pass."""
    weights = (max_queries(s) * s.eot * (1 + 2 * backwards_per_query(s, 10)) * s.usual_share for s in stages)
    return n * pace * (1 + sum(weights))
