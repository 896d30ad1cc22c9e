"""The outcome of the binarization test: score with interval, R-ASR, verdict, and a description in words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from torch import Tensor

from brinell.results import Proportion

# Zimmermann et al. 2022, sec. 4: the score from which an attack passes.
PASS = 0.95
# The lower end of the score's interval must also reach this; a perfect score needs 16 samples.
SURE = 0.8
# Above this R-ASR a high score says little about the attack.
EASY = 0.5
# Above this share of skipped samples the test is inconclusive.
LEFT_OUT = 0.5
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
# The kind of test: without a detector, with its decision, or with its decision negated.
PLAIN, REGULAR, INVERTED = "plain", "regular", "inverted"
# The source of the features of a test whose readouts sit on the logits.
WHOLE = "the outputs of the model"
# What the detector decides about the adversarials of each kind of test.
DECIDES = {REGULAR: "accepts", INVERTED: "rejects"}


@dataclass(frozen=True)
class KappaLevel:
    """The outcome at one closeness κ: success rates of the tested attack (`score`), the reference and random points.

    `random` maps the place of random points ("corners", "surface") to their success rate, with `queries` points per
    sample. All rates are over the samples whose known adversarial was verified at this κ.
    """

    kappa: float
    score: Proportion
    reference: Proportion | None
    random: dict[str, Proportion]
    queries: int = 0

    @property
    def rasr(self) -> Proportion:
        """R-ASR: the success rate of random points at the place (corners or surface) where they succeed most often."""
        return max(self.random.values(), key=lambda p: p.k)

    def to_json(self) -> dict[str, Any]:
        reference = None if self.reference is None else _numbers(self.reference)
        random = {where: _numbers(p) for where, p in self.random.items()}
        return {
            "kappa": self.kappa, "score": _numbers(self.score), "reference": reference, "random": random,
            "queries": self.queries,
        }  # fmt: skip


def _numbers(p: Proportion) -> dict[str, Any]:
    return {"value": p.value if p.n else None, "k": p.k, "n": p.n, "low": p.low, "high": p.high}


@dataclass(frozen=True, eq=False)
class BinarizationTest:
    """The outcome of `brinell.test_attack`.

    `curve` holds the outcomes at all κ measured, hardest first; `level` is the outcome that decides the verdict. From
    `level` come the closeness `kappa`, the score with its interval from `low` to `high` over `n` samples, and R-ASR
    with `queries` random points per sample. `ids` are the samples of `level`, `found` says which of them the attack
    broke, and `witnesses` are their known adversarials. `rows` are the attack's rows as in a Run. `reasons` tells why
    each skipped sample was skipped.

    For a model with a detector, `kind` is "regular" (the detector accepts the adversarials) or "inverted" (it rejects
    them). `drawn` is the number of points drawn to find the boundary points. `other` is the better test if both kinds
    were run.
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
        """The share of samples with a known adversarial on which the attack found one; NaN without samples."""
        return self.level.score.value

    @property
    def low(self) -> float:
        return self.level.score.low

    @property
    def high(self) -> float:
        return self.level.score.high

    @property
    def n(self) -> int:
        return self.level.score.n

    @property
    def rasr(self) -> float:
        """R-ASR: the success rate of random points at the place (corners or surface) where they succeed most often."""
        return self.level.rasr.value

    @property
    def queries(self) -> int:
        return self.level.queries

    @property
    def kappa(self) -> float:
        return self.level.kappa

    @property
    def skipped(self) -> int:
        """The number of samples without a score; `reasons` tells why."""
        return len(self.reasons)

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    @property
    def too_few(self) -> bool:
        """Whether there are too few samples for a pass: the lower end of the score's interval is below 0.8."""
        return self.low < SURE

    @property
    def too_many_skipped(self) -> bool:
        """Whether more than half of the samples have no score."""
        return self.skipped > LEFT_OUT * (self.n + self.skipped)

    @property
    def too_easy(self) -> bool:
        """Whether random points break more than half of the samples, so that a high score means little."""
        return self.n > 0 and self.rasr > EASY

    @property
    def verdict(self) -> str:
        """The verdict: "failed" (score below 0.95), "inconclusive" (too few, too many skipped, too easy), "passed"."""
        if self.n and self.score < PASS:
            return FAILED
        return INCONCLUSIVE if self.too_few or self.too_many_skipped or self.too_easy else PASSED

    def to_json(self) -> dict[str, Any]:
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
        more = [] if self.other is None else [self.other._paragraph()]
        return " ".join([self._paragraph(), *more, *self.warnings])

    def _paragraph(self) -> str:
        return " ".join([self._setup_text(), self._score_text(), f"Verdict: {self.verdict}.", self._advice()])

    def _setup_text(self) -> str:
        decides = DECIDES.get(self.kind)
        rule = f", drawn until the detector ({self.detector or 'unchanged'}) {decides} them" if decides else ""
        title = f"{self.kind} binarization" if decides else "binarization"
        place = f"on {WHOLE}" if self.layer == WHOLE else "in place of the last layer"
        return (
            f"{title.capitalize()} test of {self.attack} on {self.model}, {self.threat}: a two-class readout "
            f"({self.readout}) per sample {place}, {self.inner + 1} inner points against {self.boundary} "
            f"from the {self.surface}{rule}; closeness kappa = {self.kappa:g}."
        )

    def _score_text(self) -> str:
        total = self.n + self.skipped
        skipped = f"{self.skipped} of {total} samples skipped" if self.skipped else "no sample skipped"
        if not self.n:
            return f"No score: {skipped}."
        each = ", ".join(f"{bracketed(p)} ({where})" for where, p in self.level.random.items())
        which = f" that the detector {DECIDES[self.kind]}" if self.kind in DECIDES else ""
        return (
            f"An adversarial example{which} is known for each of {self.n} samples ({skipped}); the attack found one on "
            f"{self.level.score}. "
            f"R-ASR, {self.queries} random points each: {each}."
        )

    def _advice(self) -> str:
        if not self.n:
            return f"No sample could be used ({self._main_reason()}). {self._how_to_skip_less()}"
        if self.verdict == PASSED:
            return self._passed_text()
        return " ".join(self._reservations()) if self.verdict == INCONCLUSIVE else self._failed_text()

    def _reservations(self) -> list[str]:
        """Return the reasons why a high score is inconclusive, each with a remedy."""
        out = []
        if self.too_few:
            out.append(
                f"Too few samples: with n = {self.n} the interval of the score begins at {100 * self.low:.1f} %, below "
                f"{100 * SURE:.0f} %. Test at least {_needed()} samples, better 64 or more."
            )
        if self.too_many_skipped:
            out.append(
                f"More than half of the samples were skipped (mostly: {self._main_reason()}); the others may be the "
                f"easy ones. {self._how_to_skip_less()}"
            )
        if self.too_easy:
            out.append(
                f"Random points succeed on more than {100 * EASY:.0f} % of the samples, so a high score means little. "
                f"Make the test harder: more inner points, e.g. inner={10 * (self.inner + 1) - 1}, or kappa nearer 1."
            )
        return out

    def _main_reason(self) -> str:
        return max(sorted(set(self.reasons.values())), key=list(self.reasons.values()).count)

    def _how_to_skip_less(self) -> str:
        if "detector" in self._main_reason():
            return "Use another radius, or draw points from the whole surface (corners=False)."
        return "Use fewer inner points or a larger gap, or name another layer of the network: inner=, gap=, layer=."

    def _passed_text(self) -> str:
        text = "The attack finds the adversarials known to exist. This check is necessary, not sufficient."
        if self.low >= PASS:
            return text
        return f"{text} The interval extends below {PASS:g}: test more samples."

    def _failed_text(self) -> str:
        text = f"The attack misses known adversarials (pass mark {PASS:g}). Do not trust its robust accuracy."
        if self.score <= self.rasr:
            text += " It does no better than random points."
        other = self.level.reference
        if other is not None and other.n and other.value >= PASS:
            text += f" {self.reference} reaches {bracketed(other)} on the same classifiers"
            if not self.too_easy:
                return f"{text}: try that next."
            # If random points do as well, the reference proves nothing either.
            text += f", which says little where random points reach {bracketed(self.level.rasr)}."
        elif other is not None and other.n:
            text += f" {self.reference} reaches only {bracketed(other)} too."
        if self.kind != PLAIN:
            return f"{text} Try attacks that take the detector into account: the plan detector contains them all."
        return (
            f"{text} Try a margin loss, more and larger steps, averaged gradients (brinell.Eot) for a randomised "
            "model, brinell.models.bpda for parts without a gradient, or the plan autoattack."
        )


def bracketed(p: Proportion) -> str:
    """Return a proportion as text: percentage and interval, without n.

    >>> bracketed(Proportion(8, 10))
    '80.0 % [49.0, 94.3]'
    """
    return str(p).split(", n")[0]


def _needed() -> int:
    """Return the smallest number of samples with which a perfect score passes."""
    n = 1
    while Proportion(n, n).low < SURE:
        n += 1
    return n


def worse_of(tests: Sequence[BinarizationTest]) -> BinarizationTest:
    """Return the test with the worse verdict (if equal, the lower score), with the better test as its `other`."""
    from_worst = (FAILED, INCONCLUSIVE, PASSED)
    worse, *rest = sorted(tests, key=lambda t: (from_worst.index(t.verdict), t.level.score.value if t.n else 0.0))
    return replace(worse, other=rest[0]) if rest else worse
