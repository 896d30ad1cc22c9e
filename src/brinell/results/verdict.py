"""Can the number be believed? One table of rules, each with the reason it gives."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from brinell.results import row_queries
from brinell.results.effort import shortfalls
from brinell.results.format.manifest import EVADE
from brinell.results.format.schema import counted, flagged

if TYPE_CHECKING:
    from brinell.results.run import Run

VerdictLevel = Literal["reliable", "suspicious", "invalid"]
VERDICT_LEVELS: tuple[VerdictLevel, ...] = ("reliable", "suspicious", "invalid")
STRONGER = "autoattack"
# What a plan calls itself; anything else, and nothing, is weak.
STRONG = ("standard", "audited")
# Where every rule is explained, with what to do.
PAGE = "verdict.md"


class Reason(str):
    """A sentence, and the place in the documentation that says what to do about it.

    >>> reason = Reason("The Run has no rows.", "verdict.md#no-rows")
    >>> reason, reason.docs
    ('The Run has no rows.', 'verdict.md#no-rows')
    """

    docs: str

    def __new__(cls, text: str, docs: str) -> "Reason":
        """Equal to its text: where it leads is no part of what it says."""
        reason = super().__new__(cls, text)
        reason.docs = docs
        return reason


@dataclass(frozen=True)
class Verdict:
    """A level of trust and the reasons for it; those of a Run have `docs`, a page and an anchor of the documentation.

    >>> print(Verdict("suspicious", ("The Run is not finished.",)))
    suspicious: The Run is not finished.
    >>> print(Verdict("reliable"))
    reliable: No rule of the verdict objects.
    """

    level: VerdictLevel
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.level}: {' '.join(self.reasons) or 'No rule of the verdict objects.'}"


def judge(run: "Run") -> Verdict:
    """Return the worst level any rule reaches, with every reason, the gravest first.

    >>> from brinell.results import Run
    >>> judge(Run.open("tests/results/golden_run_v1")).level
    'suspicious'
    """
    found = [(level, Reason(text, f"{PAGE}#{anchor}")) for level, anchor, rule in RULES for text in rule(run)]
    worst = max((level for level, _ in found), key=VERDICT_LEVELS.index, default=VERDICT_LEVELS[0])
    return Verdict(worst, tuple(reason for _, reason in found))


def _failed(run: "Run") -> Iterable[str]:
    return (f"Check {c.name} failed: {_sentence(c.message)}" for c in run.findings if c.level == "fail")


def _empty(run: "Run") -> Iterable[str]:
    if run.finished and run.clean_accuracy.n == 0:
        yield "The Run has no rows."


def _warned(run: "Run") -> Iterable[str]:
    return (f"Check {c.name} warns: {_sentence(c.message)}" for c in run.findings if c.level == "warn")


def _unverified(run: "Run") -> Iterable[str]:
    if _randomised(run):
        return  # judged on repeated draws: what does not hold there was never claimed
    table = run.numbers()
    count = int((np.asarray(table["broken"], dtype=bool) & ~counted(table)).sum())
    if count == 1:
        yield "1 adversarial did not pass verification and is not counted."
    elif count:
        yield f"{count} adversarials did not pass verification and are not counted."


def _unfinished(run: "Run") -> Iterable[str]:
    if not run.finished:
        yield "The Run is not finished, so its robust accuracy is only an upper bound."


def _incomplete(run: "Run") -> Iterable[str]:
    if not run.finished:
        return
    total, n = run.identity.data.n, run.clean_accuracy.n
    if total is not None and n < total:
        yield f"Rows of {total - n} of {total} samples are missing."
    skipped = run.skipped()
    if len(skipped):
        yield f"Of the samples counted as robust, {len(skipped)} lack a row of some attack of the plan."


def _guessing(run: "Run") -> Iterable[str]:
    clean, chance = run.clean_accuracy, run.chance_accuracy
    if not run.finished or clean.n == 0 or chance is None or clean.low > chance:
        return
    yield (
        f"Nothing to break: the clean accuracy, {clean}, is not clearly above the {100 * chance:.1f} % that guessing "
        "gets, so the robust accuracy says nothing about robustness; check normalisation, channel order and label "
        "order, or evaluate more samples."
    )


def _weak(run: "Run") -> Iterable[str]:
    if run.identity.plan.strength not in STRONG:
        name = run.identity.plan.name
        if run.identity.criterion == EVADE:
            yield (
                f"The plan {name} is weak: no ensemble against detectors has stood the test of time, so the robust "
                "accuracy is only an upper bound; an attack made for this detector may find more."
            )
            return
        yield (
            f"The plan {name} is weak: without a strong ensemble that includes a black-box attack the robust accuracy "
            f"is only an upper bound; run the plan {STRONGER}."
        )


def _claimed(run: "Run") -> Iterable[str]:
    name, lacks = run.identity.plan.name, list(shortfalls(run))
    if lacks:
        what = "The audit of" if run.identity.plan.audited else "The plan"
        yield f"{what} {name} is called strong, but {'; '.join(lacks)}: run the plan {STRONGER}."


def _audited(run: "Run") -> Iterable[str]:
    found = run.audit
    if not run.identity.plan.audited or not run.finished:
        return
    name = run.identity.plan.name
    if found is None:
        yield (
            f"The plan {name} saves passes and was not audited, so what it may have missed is unknown; evaluate into "
            f"another folder with an audit, or use the plan {STRONGER}."
        )
        return
    more = f"evaluate again with resume and escalate, which runs the full plan on the rest, or use the plan {STRONGER}"
    if found.objects:
        yield (
            f"The audit objects: {found.found} of {found.audited} survivors fell to the full plan, so the plan {name} "
            f"missed at least {100 * found.at_least:.1f} points (95 %); {more}."
        )
        return
    if found.too_small(run.robust_accuracy):
        yield (
            f"The audit is too small to vouch for the plan {name}: after {found.audited} samples up to "
            f"{100 * found.bound:.1f} points may have been missed, more than the sampling error; {more}."
        )


def _randomised(run: "Run") -> bool:
    """Whether the model is judged by repeated draws, and is random indeed."""
    steady = any(finding.name == "randomised" and finding.level == "info" for finding in run.findings)
    return run.identity.plan.draws > 1 and not steady


# Black-box attacks may find this share of the samples that gradient attacks missed (AutoAttack's rule: 0.2 points).
LUCK = 0.002


def _black_box_wins(run: "Run") -> Iterable[str]:
    if _randomised(run):
        return  # on a randomised model every attack is one more draw
    rows = run.numbers()
    ids, fell = row_queries.ids_of(rows), counted(rows)
    followed = ids[:0]
    any_gradient = False
    for stage in run.identity.plan.main_stages:  # the audit has a rule of its own
        broken = ids[row_queries.is_attack(rows, stage.name) & fell]
        if not stage.black_box:
            followed, any_gradient = np.union1d(followed, broken), True
            continue
        alone = len(np.setdiff1d(broken, followed))
        if any_gradient and alone > LUCK * max(run.clean_accuracy.n, 1):
            yield (
                f"The black-box attack {stage.name} broke {_samples(alone)} that the gradient "
                "attacks before it did not: gradients may be masked."
            )


def _non_finite(run: "Run") -> Iterable[str]:
    rows = run.numbers()
    count = len(np.intersect1d(row_queries.ids_of(rows)[flagged(rows, "non-finite logits")], run.survivors()))
    if count:
        yield f"{_samples(count)} counted as robust got NaN or infinite logits inside the threat."


# What probes look at: whether gradients lead anywhere, whether the attack works at all, and how far it gets. The first
# two concern every attack of the plan; what one lacks in strength the others may make up for.
GRADIENTS = ("unavailable gradients", "unstable predictions", "loss surface")
WORKING = ("unconstrained failure", "transfer failure")
STRENGTH = ("silent success", "incomplete optimisation", "black box", "more steps", "random noise")


def _probed(names: tuple[str, ...], alone: bool = False) -> Callable[["Run"], Iterable[str]]:
    """A rule about these items of the Run's probes; with `alone` only where the plan has no other attack."""

    def rule(run: "Run") -> Iterable[str]:
        if alone and len(run.identity.plan.main_stages) > 1:
            return
        for attack, finding in run.probe_findings:
            if finding.name in names and not finding.ok:
                advice = f". {finding.remedy}" if finding.remedy else ""
                yield _sentence(f"Probe of {attack}, {finding.name}: {finding.message}{advice}")

    return rule


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


RULES: tuple[tuple[VerdictLevel, str, Callable[["Run"], Iterable[str]]], ...] = (
    ("invalid", "failed-check", _failed),
    ("invalid", "no-rows", _empty),
    ("suspicious", "check-that-warns", _warned),
    ("suspicious", "unverified-adversarials", _unverified),
    ("suspicious", "unfinished", _unfinished),
    ("suspicious", "missing-rows", _incomplete),
    ("suspicious", "guessing", _guessing),
    ("suspicious", "weak-plan", _weak),
    ("suspicious", "weak-plan", _claimed),
    ("suspicious", "audit", _audited),
    ("suspicious", "black-box-wins", _black_box_wins),
    ("suspicious", "non-finite-logits", _non_finite),
    ("suspicious", "probe-of-gradients", _probed(GRADIENTS)),
    ("suspicious", "probe-of-the-attack", _probed(WORKING)),
    ("suspicious", "probe-of-strength", _probed(STRENGTH, alone=True)),
)
"""Level, anchor on the page of the verdict, and rule; the gravest first."""
