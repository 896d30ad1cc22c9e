"""What the binarization test found: score, interval, chance, verdict, and a paragraph that says so."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from torch import Tensor

from brinell.results import Proportion

# Zimmermann et al. 2022, sec. 4: an attack passes from this score on.
PASS = 0.95
# The lower end of the score's interval must reach this too: a perfect score takes 16 samples.
SURE = 0.8
# Where random points succeed this often, success says little about an attack.
EASY = 0.5
# Where more than this share of the samples was skipped, those left speak for themselves alone.
LEFT_OUT = 0.5
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
# What is asked of a detector: nothing (there is none), its decision, or the opposite of it.
PLAIN, REGULAR, INVERTED = "plain", "regular", "inverted"


@dataclass(frozen=True)
class KappaLevel:
    """The test at one closeness κ: what the tested attack, the reference attack and random points found.

    `random` has one entry per surface the random points came from, `queries` of them per sample. The proportions are
    over the samples whose adversarial was verified at this κ.
    """

    kappa: float
    score: Proportion
    reference: Proportion | None
    random: dict[str, Proportion]
    queries: int = 0

    @property
    def rasr(self) -> Proportion:
        """The success rate of random points, of the surface where they do best."""
        return max(self.random.values(), key=lambda p: p.k)

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "kappa": self.kappa,
            "score": _numbers(self.score),
            "reference": None if self.reference is None else _numbers(self.reference),
            "random": {where: _numbers(p) for where, p in self.random.items()},
            "queries": self.queries,
        }


def _numbers(p: Proportion) -> dict[str, Any]:
    return {"value": p.value if p.n else None, "k": p.k, "n": p.n, "low": p.low, "high": p.high}


@dataclass(frozen=True, eq=False)
class BinarizationTest:
    """The outcome of `brinell.test_attack`.

    `curve` are the levels looked at, the hardest first, and `level` is the one that counts. `ids`, `found` and
    `witnesses` are its samples, whether the attack broke each, and an adversarial of each that is known to exist;
    `rows` are the attack's rows as in a Run. `reasons` tell of every skipped sample why.

    Of a model with a detector `kind` is "regular" or "inverted" and the adversarials are accepted or rejected by it;
    `drawn` is how many points were drawn to find the boundary points, `other` the test of the other kind where both
    were made: it is this one that did worse.
    """

    attack: str
    reference: str
    model: str
    threat: str
    readout: str
    layer: str
    inner: int
    boundary: int
    surface: str
    level: KappaLevel
    curve: tuple[KappaLevel, ...]
    ids: Tensor
    found: Tensor
    witnesses: Tensor
    rows: pa.Table
    reasons: dict[int, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cost: dict[str, float] = field(default_factory=dict)
    kind: str = PLAIN
    detector: str = ""
    drawn: int = 0
    other: "BinarizationTest | None" = None

    @property
    def score(self) -> float:
        """The share of samples on which the attack found an adversarial; one exists for each. NaN without samples."""
        return self.level.score.value

    @property
    def low(self) -> float:
        """Lower end of the score's 95 % Wilson interval."""
        return self.level.score.low

    @property
    def high(self) -> float:
        """Upper end of the score's 95 % Wilson interval."""
        return self.level.score.high

    @property
    def n(self) -> int:
        """Samples that count."""
        return self.level.score.n

    @property
    def rasr(self) -> float:
        """The success rate of as many random points as the attack used, on the surface where they do best."""
        return self.level.rasr.value

    @property
    def queries(self) -> int:
        """Random points per sample behind R-ASR: as many as the attack used on the sample that cost it most."""
        return self.level.queries

    @property
    def kappa(self) -> float:
        """The closeness of the decision boundary at which the score was measured."""
        return self.level.kappa

    @property
    def skipped(self) -> int:
        """Samples without a score: no boundary point the detector allows was found, or their two classes could not be
        separated, or not held apart in float32."""
        return len(self.reasons)

    @property
    def passed(self) -> bool:
        """Whether the attack reached the pass mark, on enough samples, in a test that random points do not pass."""
        return self.verdict == PASSED

    @property
    def too_few(self) -> bool:
        """Whether the samples are too few for a high score: its interval begins below 0.8."""
        return self.low < SURE

    @property
    def too_many_skipped(self) -> bool:
        """Whether more than half of the samples are without a score."""
        return self.skipped > LEFT_OUT * (self.n + self.skipped)

    @property
    def too_easy(self) -> bool:
        """Whether random points succeed so often that a high score means little."""
        return self.n > 0 and self.rasr > EASY

    @property
    def verdict(self) -> str:
        """ "passed", "failed" or "inconclusive"."""
        if self.n and self.score < PASS:
            return FAILED
        return INCONCLUSIVE if self.too_few or self.too_many_skipped or self.too_easy else PASSED

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "verdict": self.verdict, "passed": self.passed, "score": self.level.score.value if self.n else None,
            "low": self.low, "high": self.high, "n": self.n, "rasr": self.rasr if self.n else None,
            "skipped": self.skipped, "kappa": self.kappa, "attack": self.attack, "reference": self.reference,
            "model": self.model, "threat": self.threat, "readout": self.readout, "layer": self.layer,
            "inner": self.inner, "boundary": self.boundary, "surface": self.surface, "queries": self.queries,
            "curve": [level.to_json() for level in self.curve],
            "reasons": {str(i): why for i, why in self.reasons.items()},
            "warnings": list(self.warnings), "notes": list(self.notes), "cost": self.cost, "text": str(self),
            "kind": self.kind, "detector": self.detector, "drawn": self.drawn,
            "other": None if self.other is None else self.other.to_json(),
        }  # fmt: skip

    def __str__(self) -> str:
        more = [] if self.other is None else [self.other._said()]
        return " ".join([self._said(), *more, *self.warnings])

    def _said(self) -> str:
        return " ".join([self._what(), self._how_much(), f"Verdict: {self.verdict}.", self._next()])

    def _what(self) -> str:
        rule = {
            REGULAR: f", drawn until its detector ({self.detector or 'as it is'}) accepts them",
            INVERTED: f", drawn until its detector ({self.detector or 'as it is'}) rejects them",
        }.get(self.kind, "")
        title = {REGULAR: "Regular binarization", INVERTED: "Inverted binarization"}.get(self.kind, "Binarization")
        return (
            f"{title} test of {self.attack} on {self.model}, {self.threat}: the last layer replaced by a "
            f"two-class readout ({self.readout}) per sample, {self.inner + 1} inner points against {self.boundary} "
            f"from the {self.surface}{rule}, closeness kappa = {self.kappa:g}."
        )

    def _how_much(self) -> str:
        total = self.n + self.skipped
        skipped = f"{self.skipped} of {total} samples skipped" if self.skipped else "no sample skipped"
        if not self.n:
            return f"No score: {skipped}."
        each = ", ".join(f"{bracketed(p)} ({where})" for where, p in self.level.random.items())
        which = {REGULAR: " that the detector accepts", INVERTED: " that the detector rejects"}.get(self.kind, "")
        return (
            f"An adversarial example{which} is known for each of {self.n} samples ({skipped}); the attack found one on "
            f"{self.level.score}. "
            f"R-ASR, {self.queries} random points each: {each}."
        )

    def _next(self) -> str:
        if not self.n:
            return f"No sample could be used ({self._usual()}): {self._looser()}."
        if self.verdict == PASSED:
            return self._enough()
        return " ".join(self._doubts()) if self.verdict == INCONCLUSIVE else self._failing()

    def _doubts(self) -> list[str]:
        """What keeps a high score from being a pass, and what to do about each."""
        out = []
        if self.too_few:
            out.append(
                f"Too few samples: with {self.n} the interval of the score begins at {100 * self.low:.1f} %, below "
                f"{100 * SURE:.0f} %. Test at least {_needed()}, better 64 or more."
            )
        if self.too_many_skipped:
            out.append(
                f"More than half of the samples were skipped (most: {self._usual()}), and the others may be the easy "
                f"ones: {self._looser()}."
            )
        if self.too_easy:
            out.append(
                f"Random points succeed too often for a high score to mean much (over {100 * EASY:.0f} %): make the "
                f"test harder with more inner points, e.g. inner={10 * (self.inner + 1) - 1}, or a kappa nearer to 1."
            )
        return out

    def _usual(self) -> str:
        """The most frequent reason why a sample was skipped."""
        return max(sorted(set(self.reasons.values())), key=list(self.reasons.values()).count)

    def _looser(self) -> str:
        """What lets more samples take part."""
        if "detector" in self._usual():
            return "use another radius, or points of the whole surface"
        return "use fewer inner points, a larger gap, or name another layer of the network"

    def _enough(self) -> str:
        text = "The attack finds what is known to be there: its robust accuracy passes this necessary check."
        if self.low >= PASS:
            return text
        return f"{text} The interval reaches below {PASS:g}: test more samples to be sure."

    def _failing(self) -> str:
        text = (
            f"It misses adversarials that exist (pass mark {PASS:g}); do not trust a robust accuracy measured with it."
        )
        if self.score <= self.rasr:
            text += " It does no better than random points."
        other = self.level.reference
        if other is not None and other.n and other.value >= PASS:
            text += f" {self.reference} reaches {bracketed(other)} on the same classifiers"
            if not self.too_easy:
                return f"{text}: try that next."
            # Where chance does as well, nothing speaks for the reference either.
            text += f", which says little where random points reach {bracketed(self.level.rasr)}."
        elif other is not None and other.n:
            text += f" {self.reference} reaches only {bracketed(other)} too."
        if self.kind != PLAIN:
            return f"{text} Try attacks that look at the detector: the plan detector has them all, with targets."
        return (
            f"{text} Try a margin loss, more and larger steps, averaged gradients (brinell.Eot) for a randomised "
            "model, brinell.models.bpda for parts without a gradient, or the plan autoattack."
        )


def bracketed(p: Proportion) -> str:
    """The percentage and its interval, where n stands beside it.

    >>> bracketed(Proportion(8, 10))
    '80.0 % [49.0, 94.3]'
    """
    return str(p).split(", n")[0]


def _needed() -> int:
    """The fewest samples with which a perfect score can pass."""
    n = 1
    while Proportion(n, n).low < SURE:
        n += 1
    return n


def worse_of(tests: Sequence[BinarizationTest]) -> BinarizationTest:
    """The test that went worse, with the other one in it: whoever passes must pass both."""
    badness = (FAILED, INCONCLUSIVE, PASSED)
    first, *rest = sorted(tests, key=lambda t: (badness.index(t.verdict), t.level.score.value if t.n else 0.0))
    return replace(first, other=rest[0]) if rest else first
