"""The verdict: can the robust accuracy be trusted? One table of rules, each with its message."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from brinell.finding import Finding, Level, n_samples
from brinell.results import bracket, row_queries
from brinell.results.evidence import (
    ACCESS,
    BINARIZATION,
    DIFFERENCES,
    as_sentence,
    evidence,
    least_effort,
    proof,
    replaced_gradients,
    untested,
)  # fmt: skip
from brinell.results.format.manifest import EVADE, StageRecord
from brinell.results.format.schema import AUDIT, STOOD_STILL, counted, flagged

if TYPE_CHECKING:
    from brinell.results.run import Run

VerdictLevel = Literal["reliable", "upper bound", "suspicious", "invalid"]
VERDICT_LEVELS: tuple[VerdictLevel, ...] = ("reliable", "upper bound", "suspicious", "invalid")
"""From the best to the worst. Upper bound: no sign of trouble, but little evidence; suspicious: a sign of trouble."""
STRONGER = "autoattack"
# The cheapest plan that can end *reliable*, for models with gradients and for randomised models.
SETTLING, SETTLING_RANDOM = "fast", "autoattack-rand"
# The strengths of plans that are not weak.
STRONG = ("standard", "audited")
# The page that explains every rule and its remedy.
PAGE = "verdict.md"
FINDING_LEVELS: dict[VerdictLevel, Level] = {
    "reliable": "ok", "upper bound": "info", "suspicious": "warn", "invalid": "fail",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The verdict on a Run: how far the Run can be trusted (`level`), and the findings that lower the level.

    The `anchor` of a finding is its section in the documentation. `evidence` lists what the verdict rests on, each with
    its number, and `untested` what was not tested. `ground` is the sentence of a verdict without findings.

    >>> print(Verdict("upper bound", (Finding("unfinished", "info", "The Run is not finished."),)))
    upper bound: The Run is not finished.
    >>> print(Verdict("reliable"))
    reliable: No check found a problem.
    """

    level: VerdictLevel
    findings: tuple[Finding, ...] = ()
    evidence: tuple[str, ...] = field(default=(), compare=False)
    untested: tuple[str, ...] = field(default=(), compare=False)
    ground: str = field(default="No check found a problem.", compare=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The messages of the findings."""
        return tuple(finding.message for finding in self.findings)

    def __str__(self) -> str:
        return f"{self.level}: {' '.join(self.reasons) or self.ground}"


def judge(run: "Run") -> Verdict:
    """Return the verdict on a Run: the worst level of any rule that applies, and all findings, the worst first.

    >>> from brinell.results import Run
    >>> judge(Run.open("tests/results/golden_run_v1")).level
    'suspicious'
    """
    judged = [
        (level, Finding(anchor.replace("-", " "), FINDING_LEVELS[level], message, anchor=f"{PAGE}#{anchor}"))
        for level, anchor, rule in RULES
        for message in rule(run)
    ]
    worst = max((level for level, _ in judged), key=VERDICT_LEVELS.index, default=VERDICT_LEVELS[0])
    ground = proof(run) or Verdict.ground
    return Verdict(worst, tuple(finding for _, finding in judged), tuple(evidence(run)), tuple(untested(run)), ground)


Rule = Callable[["Run"], Iterable[str]]
# Checks that warn of attacks which find too little; other checks warn of the model.
OF_ATTACKS = (
    BINARIZATION, DIFFERENCES, "zero gradient", "equal margins", "reversed loss", "gradients at survivors",
    "runner-up class",
)  # fmt: skip


def _checked(level: Level, verb: str) -> Rule:
    return lambda run: (
        f"Check {c.name} {verb}: {as_sentence(c.message)}"
        for c in run.findings
        if c.level == level and not (level == "warn" and c.name in OF_ATTACKS and _proved(run))
    )


def _proved(run: "Run") -> bool:
    """Whether certificates leave so few samples open that stronger attacks could hardly change the number."""
    found = bracket.proved(run)
    return found is not None and found.narrow


def _of_attacks(rule: Rule) -> Rule:
    """Return a rule about what attacks may have missed: it does not apply where certificates bound that."""
    return lambda run: () if _proved(run) else rule(run)


def _empty(run: "Run") -> Iterable[str]:
    if run.finished and run.clean_accuracy.n == 0:
        yield "The Run has no rows."


def _contradicted(run: "Run") -> Iterable[str]:
    ids = bracket.contradictions(run)
    if len(ids):
        yield (
            f"{n_samples(len(ids))} {'is' if len(ids) == 1 else 'are'} both certified and broken, the first with id "
            f"{ids[0]}: a certificate is wrong, or the model changed."
        )


def _unverified(run: "Run") -> Iterable[str]:
    if run.randomised:
        return  # repeated draws judge: an adversarial that fails them is not claimed
    table = run.numbers()
    count = int((np.asarray(table["broken"], dtype=bool) & ~counted(table)).sum())
    if count:
        what, are = ("1 adversarial", "is") if count == 1 else (f"{count} adversarials", "are")
        yield f"{what} did not pass verification and {are} not counted."


def _unfinished(run: "Run") -> Iterable[str]:
    if not run.finished:
        yield "The Run is not finished, so its robust accuracy is only an upper bound: continue with --resume."


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
        f"Nothing to break: the clean accuracy, {clean}, is not clearly above the {100 * chance:.1f} % of "
        "guessing, so the robust accuracy says nothing about robustness. Check normalisation, channel order and label "
        "order, or evaluate more samples."
    )


# The probability at which a draw of samples with so many missing classes is no longer called random.
UNLIKELY = 1e-3
BINARY, MOST_CLASSES = 2, 10**9


def missing_by_chance(classes: int, n: int, missing: int) -> float:
    """Return an upper bound on the probability that n samples, drawn uniformly, miss at least `missing` classes.

    Method: the samples then lie in d = K - `missing` classes, and there are C(K, d) ways to choose these; each has the
    probability (d / K)^n.

    >>> missing_by_chance(1000, 50, 999) < 1e-9, missing_by_chance(1000, 5000, 3)
    (True, 1.0)
    """
    classes, missing = min(classes, MOST_CLASSES), min(missing, MOST_CLASSES)
    present = classes - missing
    if present <= 0 or missing <= 0:
        return float(missing <= 0)
    ways = math.lgamma(classes + 1) - math.lgamma(present + 1) - math.lgamma(missing + 1)
    return math.exp(min(0.0, ways + n * math.log(present / classes)))


def _missing_classes(run: "Run") -> Iterable[str]:
    classes, n, missing = run.identity.model.classes or 0, run.clean_accuracy.n, run.missing_classes
    if classes == BINARY:
        return  # often only one class is attacked, for example malware
    if not run.finished or not missing or not n or missing_by_chance(classes, n, missing) >= UNLIKELY:
        return
    yield (
        f"The data have no sample of {missing:,} of the {classes:,} classes of the model, so the accuracies hold only "
        "for the other classes. Draw the samples at random: the first files in sorted order are those of a few classes."
    )


# With fewer samples the verdict would depend on which ones were drawn.
FEWEST = 100


def _too_few(run: "Run") -> Iterable[str]:
    n, survivors = run.clean_accuracy.n, len(run.survivors())
    found = bracket.proved(run)
    if found is not None and found.settled:
        return  # proofs need no other samples
    # A weak plan has a rule of its own.
    strong = run.identity.plan.strength in STRONG or _proved(run)
    if strong and run.finished and 0 < n < FEWEST and survivors:
        yield (
            f"Too few samples to tell: {n_samples(n)}, of which {survivors} withstood the attacks, while checks and "
            f"attacks need at least {FEWEST} to see a model that only seems robust. Evaluate more samples."
        )


def _weak(run: "Run") -> Iterable[str]:
    plan, identity = run.identity.plan.name, run.identity
    if identity.plan.strength in STRONG:
        return
    weak, upper = f"The plan {plan} is weak:", f"the robust accuracy is only an upper bound{_at_most(run)}"
    if identity.criterion == EVADE:
        remedy = "An attack made for this detector may find more."
        yield f"{weak} no ensemble against detectors is established yet, so {upper}. {remedy}"
    elif any(finding.name == ACCESS for finding in run.findings):
        remedy = "If its network is at hand, attack that with gradients."
        yield f"The model is a black box: only attacks by queries are possible, so {upper}. {remedy}"
    elif identity.threat.norm == "L0":
        yield f"{weak} no strong ensemble is established for L0, so {upper}."
    else:
        ensemble = "a strong ensemble that includes a black-box attack"
        yield f"{weak} without {ensemble} {upper}; to settle it, run the plan {_settling(run)}."


def _at_most(run: "Run") -> str:
    """Return how much too high the robust accuracy can be, as the end of a clause; "" without certificates."""
    found = bracket.proved(run)
    if found is None:
        return ""
    return f", at most {100 * found.width:.1f} points too high (certificates leave {found.open:,} open)"


def _settling(run: "Run") -> str:
    noisy = any(finding.name == "randomised" and finding.level == "warn" for finding in run.findings)
    return SETTLING_RANDOM if noisy or run.identity.plan.draws > 1 else SETTLING


# The least effort per sample of an ensemble that is called strong: the steps of the weakest attacks still reported
# (Madry et al. 2018: 20), and the queries below which random search finds nothing.
STEPS, QUERIES = 20, 50


def _shortfalls(run: "Run") -> Iterable[str]:
    """Yield what a "standard" plan, or the audit of an "audited" plan, lacks; each text is the end of a sentence.

    A stage is left out if the manifest does not say what its attack requires (Runs of early versions). A Run without
    survivors lacks nothing.
    """
    plan, audit = run.identity.plan, run.identity.plan.audited
    if plan.strength != "standard" and not audit:
        return
    stages = [s for s in (plan.audit_stages if audit else plan.main_stages) if s.requires is not None]
    survivors = run.survivors()
    if audit:
        table = run.numbers()
        survivors = np.intersect1d(survivors, row_queries.ids_of(table)[flagged(table, AUDIT)])
    if not stages or not len(survivors):
        return
    gradient = [s.name for s in stages if not s.black_box]
    black_box = [s.name for s in stages if s.black_box]
    steps = least_effort(run, gradient, "backwards", survivors)
    if not gradient:
        yield "none of its attacks uses gradients"
    elif steps < STEPS:
        yield f"it spent only {steps} gradients on some survivors (at least {STEPS} expected)"
    # An audit checks what the first stage missed; on a randomised model every attack is one more draw.
    if audit or plan.draws > 1:
        return
    queries = least_effort(run, black_box, "forwards", survivors)
    if not black_box:
        yield "it has no black-box attack, so masked gradients would go unnoticed"
    elif queries < QUERIES:
        yield f"its black-box attacks made only {queries} queries on some survivors (at least {QUERIES} expected)"


def _claimed(run: "Run") -> Iterable[str]:
    # Of an unfinished Run, attacks are missing because it is unfinished.
    name, missing = run.identity.plan.name, list(_shortfalls(run)) if run.finished else []
    if missing:
        what = "The audit of" if run.identity.plan.audited else "The plan"
        yield f"{what} {name} is called strong, but {'; '.join(missing)}: run the plan {STRONGER}."


def _remedy_of_audit() -> str:
    return f"Pass --resume --escalate (escalate=True) for the full plan on all survivors, or use the plan {STRONGER}"


def _audit_contradicts(run: "Run") -> Iterable[str]:
    audit, layers, name = run.audit, run.layers, run.identity.plan.name
    if not run.identity.plan.audited or not run.finished or audit is None:
        return
    if audit.objects:
        yield (
            f"The full plan broke {audit.found} of {audit.audited} audited survivors, so the plan {name} missed at "
            f"least {100 * audit.at_least:.1f} points (95 %). {_remedy_of_audit()}."
        )
    elif layers is not None and not layers.complete:
        why = layers.doubt or "The full plan broke survivors near the boundary"
        yield f"{why}, so the plan {name} misses samples on this model. {_remedy_of_audit()}."


def _unaudited(run: "Run") -> Iterable[str]:
    audit, layers, name = run.audit, run.layers, run.identity.plan.name
    if not run.identity.plan.audited or not run.finished:
        return
    if audit is None:
        yield (
            f"The plan {name} is shortened and was not audited, so it is unknown what it missed. To settle it, "
            f"evaluate into another folder without audit=0 (--audit 0), or use the plan {STRONGER}."
        )
        return
    if not audit.complete and replaced_gradients(run):
        yield (
            f"Replaced gradients (bpda) are not those of the model, and the plan {name} trusts gradients. "
            f"{_remedy_of_audit()}."
        )
    contradicted = audit.objects or (layers is not None and not layers.complete)
    layered = layers is not None and bool(layers.rings)
    if not contradicted and not audit.complete and not layered and audit.too_small(run.robust_accuracy):
        yield (
            f"The audit is too small to confirm the plan {name}: after {audit.audited} samples, the plan may "
            f"have missed up to {100 * audit.bound:.1f} points, more than the sampling error. {_remedy_of_audit()}."
        )


# A black-box attack may break this share of the samples that gradient attacks missed (AutoAttack: 0.2 points), and one
# sample: provably trained networks, whose gradients are zero in places, lose one in a hundred.
TOLERATED, TOLERATED_SAMPLES = 0.002, 1


def _black_box_wins(run: "Run") -> Iterable[str]:
    if run.randomised:
        return  # with a randomised model every attack is one more draw
    rows = run.numbers()
    ids, verified = row_queries.ids_of(rows), counted(rows)
    by_gradient = ids[:0]
    any_gradient = False
    plan, audit = run.identity.plan, run.audit
    # An audit has a rule of its own, unless it attacked all survivors.
    for stage in plan.stages if audit is not None and audit.complete else plan.main_stages:
        broken = ids[row_queries.is_attack(rows, stage.name) & verified]
        if not stage.black_box:
            by_gradient, any_gradient = np.union1d(by_gradient, broken), True
            continue
        alone = len(np.setdiff1d(broken, by_gradient))
        if any_gradient and alone > max(TOLERATED_SAMPLES, TOLERATED * run.clean_accuracy.n):
            yield (
                f"The black-box attack {stage.name} broke {n_samples(alone)} that the gradient "
                "attacks before it did not: gradients may be masked."
            )


# Attacks through surrogates may break one sample, or this share of them, that other attacks missed by chance.
SURROGATE_SHARE, SURROGATE_SAMPLES = 0.01, 1


def _surrogate_wins(run: "Run") -> Iterable[str]:
    stages = run.identity.plan.stages
    own = [stage.name for stage in stages if stage.via is None]
    if len(own) == len(stages) or run.randomised:
        return
    alone = len(row_queries.survivors(run.numbers(), own)) - len(run.survivors())
    if alone > max(SURROGATE_SAMPLES, SURROGATE_SHARE * run.clean_accuracy.n):
        yield (
            f"{n_samples(alone)} fell only to attacks that follow the gradients of a surrogate: the model's own "
            "gradients mislead, and there may be more to find."
        )


def _non_finite(run: "Run") -> Iterable[str]:
    rows = run.numbers()
    count = len(np.intersect1d(row_queries.ids_of(rows)[flagged(rows, "non-finite logits")], run.survivors()))
    if count:
        yield f"{n_samples(count)} counted as robust got NaN or infinite logits inside the threat."


# A stage may stand still on this share of the samples counted as robust, and on one sample, without being noticed.
STILL_SHARE, STILL_SAMPLES = 0.1, 1
CROSS_ENTROPY = "ce"


def _stood_still(run: "Run") -> Iterable[str]:
    rows, survivors, stages = run.numbers(), run.survivors(), run.identity.plan.stages
    ids, still = row_queries.ids_of(rows), flagged(rows, STOOD_STILL)
    gradient = np.isin(np.asarray(rows["attack"]), [s.name for s in stages if not s.black_box])
    moved = ids[gradient & ~still]
    for stage in stages:
        found = np.intersect1d(ids[still & row_queries.is_attack(rows, stage.name)], survivors)
        if _saturates(stage):
            # Cross-entropy saturates on sound models too; then another loss must have moved.
            found = np.setdiff1d(found, moved)
        if len(found) > max(STILL_SAMPLES, STILL_SHARE * len(survivors)):
            yield (
                f"The attack {stage.name} stood still on {len(found)} of {n_samples(len(survivors))} counted as "
                "robust: for at least half of its queries the answers of the model did not change."
            )


def _saturates(stage: StageRecord) -> bool:
    attack = stage.raw.get("attack")
    return isinstance(attack, dict) and attack.get("loss") == CROSS_ENTROPY


# Probes test gradients, whether the attack works, and its strength. The first two matter for every attack of the plan;
# a weak attack does not where the plan has others.
GRADIENTS = ("unavailable gradients", "unstable predictions", "loss surface")
WORKING = ("unconstrained failure", "transfer failure")
STRENGTH = ("silent success", "incomplete optimisation", "black box", "more steps", "random noise")


def _probed(names: tuple[str, ...], alone: bool = False) -> Rule:
    """Return a rule that reports probe findings with these names; with `alone`, only for plans with a single attack."""

    def rule(run: "Run") -> Iterable[str]:
        if alone and len(run.identity.plan.main_stages) > 1:
            return
        for attack, finding in run.probe_findings:
            if finding.name in names and not finding.ok:
                advice = f". {finding.remedy}" if finding.remedy else ""
                yield as_sentence(f"Probe of {attack}, {finding.name}: {finding.message}{advice}")

    return rule


RULES: tuple[tuple[VerdictLevel, str, Rule], ...] = (
    ("invalid", "failed-check", _checked("fail", "failed")),
    ("invalid", "no-rows", _empty),
    ("invalid", "certified-and-broken", _contradicted),
    ("suspicious", "check-that-warns", _checked("warn", "warns")),
    ("suspicious", "unverified-adversarials", _unverified),
    ("suspicious", "missing-rows", _incomplete),
    ("suspicious", "guessing", _guessing),
    ("suspicious", "missing-classes", _missing_classes),
    ("suspicious", "weak-plan", _of_attacks(_claimed)),
    ("suspicious", "audit", _of_attacks(_audit_contradicts)),
    ("suspicious", "black-box-wins", _of_attacks(_black_box_wins)),
    ("suspicious", "surrogate-wins", _of_attacks(_surrogate_wins)),
    ("suspicious", "non-finite-logits", _non_finite),
    ("suspicious", "stood-still", _of_attacks(_stood_still)),
    ("suspicious", "probe-of-gradients", _of_attacks(_probed(GRADIENTS))),
    ("suspicious", "probe-of-the-attack", _of_attacks(_probed(WORKING))),
    ("suspicious", "probe-of-strength", _of_attacks(_probed(STRENGTH, alone=True))),
    ("upper bound", "unfinished", _unfinished),
    ("upper bound", "weak-plan", _of_attacks(_weak)),
    ("upper bound", "audit", _of_attacks(_unaudited)),
    ("upper bound", "too-few-samples", _too_few),
)
"""Level, anchor on the page of the verdict, and rule; the worst level first."""
