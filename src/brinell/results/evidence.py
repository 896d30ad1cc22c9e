"""What a verdict rests on, each item with its number, and what was not tested: short sentences."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.finding import Finding, n_samples
from brinell.results import row_queries
from brinell.results.bracket import proved
from brinell.results.format.schema import NUMBERS, counted

if TYPE_CHECKING:
    from brinell.results.run import Run

BINARIZATION = "active test"
DIFFERENCES = "finite differences"
ADAPTIVE = "adaptive"
# The check of a model that gives no gradients; other models do not have it.
ACCESS = "access"
NOT_MADE = "not made: "
# The checks whose good outcome is evidence, in the order in which they are listed.
CHECKS = (
    DIFFERENCES, "equal margins", "reversed loss", "8-bit grid", "smaller radius", "gradients at survivors",
    "runner-up class", "asked again",
)  # fmt: skip


def check_title(name: str) -> str:
    """Return how pages call a check; the stored name of the binarization test is older.

    >>> check_title("active test"), check_title("grad mode")
    ('binarization test', 'grad mode')
    """
    return "binarization test" if name == BINARIZATION else name


def evidence(run: "Run") -> Iterable[str]:
    """Yield what speaks for the result, a sentence each: what the attacks did, then every check that passed.

    >>> from brinell.results import Run
    >>> next(iter(evidence(Run.open("tests/results/golden_run_v1"))))
    '3 of 5 correct samples are broken, each by an adversarial that was verified with a fresh pass.'
    """
    yield from filter(None, [proof(run)])
    yield from _attacked(run)
    yield from (as_sentence(f"{f.name[0].upper()}{f.name[1:]}: {f.message}") for f in _passed(run))


def in_short(run: "Run") -> Iterable[str]:
    """Yield the evidence for a terminal, where one sentence names all checks that passed.

    >>> from brinell.results import Run
    >>> len(list(in_short(Run.open("tests/results/golden_run_v1"))))
    1
    """
    if run.verdict.level != "reliable":
        yield from filter(None, [proof(run)])
    yield from _attacked(run)
    passed = [finding.name for finding in _passed(run)]
    if passed:
        yield f"Checks that found no problem: {', '.join(passed)}."


def proof(run: "Run") -> str:
    """Return what certificates say about the number, as a sentence; "" without certificates, or if chance is in them.

    They say that every sample is decided, or how much too high the number can be.
    """
    found = proved(run)
    if found is None or not found.narrow:
        return ""
    certified, rest = found.certified.k, found.robust.n - found.robust.k
    if found.settled:
        return (
            f"Every sample is decided by proof: {certified:,} certified, {rest:,} misclassified or broken, 0 open. No "
            "attack within this norm and radius can change the number."
        )
    return (
        f"Certificates prove {certified:,} of {n_samples(found.robust.k, kind='survivor')} and leave {found.open:,} "
        f"open: the robust accuracy is at most {100 * found.width:.1f} points too high, less than its sampling error."
    )


def _attacked(run: "Run") -> Iterable[str]:
    correct, broken = run.clean_accuracy.k, run.clean_accuracy.k - run.robust_accuracy.k
    if not correct:
        yield "No sample is classified correctly, so no sample was attacked."
        return
    verb, each = "is" if 1 in (correct, broken) else "are", "" if broken == 1 else "each "
    verified = f", {each}by an adversarial that was verified with a fresh pass" if broken else ""
    yield f"{broken:,} of {n_samples(correct, 'correct ')} {verb} broken{verified}."
    yield from _effort(run)
    yield from _success(run)
    if run.audit is not None:
        yield f"Audit: {run.audit}."
    if run.layers is not None:
        yield from (as_sentence(f"{line[0].upper()}{line[1:]}") for line in run.layers.lines)
    yield from _rounded(run)
    findings = {f.name: f for f in run.findings}
    test = findings.get(BINARIZATION)
    if test is not None and test.value is not None:
        yield f"Binarization test: the attack found the known adversarial of {test.value:.0%} of the samples."
    if ADAPTIVE in findings:
        yield as_sentence(f"Adaptive: {findings[ADAPTIVE].message}")


def _passed(run: "Run") -> Iterable[Finding]:
    findings = {f.name: f for f in run.findings}
    found = (findings[name] for name in CHECKS if name in findings)
    return (finding for finding in found if finding.ok and finding.value is not None)


def _effort(run: "Run") -> Iterable[str]:
    """Yield how strongly every survivor was attacked; nothing if the Run does not say what its attacks require."""
    stages = [s for s in run.identity.plan.main_stages if s.requires is not None]
    survivors = run.survivors()
    if not stages or not len(survivors):
        return
    steps = least_effort(run, [s.name for s in stages if not s.black_box], "backwards", survivors)
    queries = least_effort(run, [s.name for s in stages if s.black_box], "forwards", survivors)
    each = "Each of " if len(survivors) > 1 else ""
    yield (
        f"{each}{n_samples(len(survivors), kind='survivor')} withstood at least {steps:,} gradients and {queries:,} "
        "black-box queries."
    )


def _success(run: "Run") -> Iterable[str]:
    """Yield the successes per pass of attacks with and without gradients; nothing if the Run has only one kind."""
    table, stages = run.numbers(), [s for s in run.identity.plan.stages if s.requires is not None]
    passes = np.asarray(table["forwards"], dtype=np.int64) + np.asarray(table["backwards"], dtype=np.int64)
    parts = []
    for black_box, kind in ((False, "with gradients"), (True, "without")):
        names = pa.array([s.name for s in stages if s.black_box == black_box], pa.string())
        rows = np.asarray(pc.is_in(table["attack"], value_set=names), dtype=bool)
        spent, hits = int(passes[rows].sum()), int((rows & counted(table)).sum())
        if not spent:
            return
        parts.append(
            f"attacks {kind} broke {n_samples(hits)} in {spent:,} passes ({1000 * hits / spent:.2g} per 1,000)"
        )
    yield as_sentence(f"{parts[0][0].upper()}{parts[0][1:]}, {parts[1]}")


def _rounded(run: "Run") -> Iterable[str]:
    rows = run.shards.all_rows((*NUMBERS, "verified_8bit"))
    claims = counted(rows) & np.asarray(pc.is_valid(rows["verified_8bit"]), dtype=bool)
    total, kept = int(claims.sum()), int((claims & np.asarray(pc.fill_null(rows["verified_8bit"], False))).sum())
    if total:
        verb = "stays" if 1 in (total, kept) else "stay"
        yield f"Rounded to 8 bits, {kept:,} of {n_samples(total, kind='adversarial')} {verb} adversarial in the ball."
    if kept < total:
        yield "Rounding is for information: the threat allows every value in [0, 1], so all of them count."


def untested(run: "Run") -> Iterable[str]:
    """Yield what was not tested, a sentence each.

    >>> from brinell.results import Run
    >>> list(untested(Run.open("tests/results/golden_run_v1")))[-1]
    'Attacks made for this model.'
    """
    found = proved(run)
    if found is not None and found.settled:
        yield "Other inputs, norms and radii: certificates hold for these samples and this threat only."
        return
    findings, plan = {f.name: f for f in run.findings}, run.identity.plan
    test = findings.get(BINARIZATION)
    if test is None:
        yield "The attack on known adversarials (binarization test, --test)."
    elif test.message.startswith(NOT_MADE):
        yield as_sentence(f"The attack on known adversarials: the binarization test was {test.message}")
    elif test.value is None:
        yield "The attack on known adversarials: no sample of the binarization test could be used."
    if not any(stage.black_box for stage in plan.stages):
        yield "Attacks without gradients."
    if plan.audited and run.audit is None:
        yield "What the full plan would find (audit)."
    if DIFFERENCES not in findings:
        yield "Gradients against finite differences."
    if not run.probes:
        yield "Indicators of attack failure (--probe)."
    if ADAPTIVE not in findings:
        yield "Attacks made for this model."


def replaced_gradients(run: "Run") -> bool:
    """Whether gradients that the user replaced (`brinell.models.bpda`) are not those of the model."""
    return any(f.name == DIFFERENCES and f.level == "info" for f in run.findings)


def least_effort(run: "Run", attacks: Sequence[str], column: str, ids: row_queries.Ids) -> int:
    """Return the smallest total of passes (forwards or backwards) that all `attacks` spent on a sample of `ids`."""
    table = run.numbers()
    chosen = np.asarray(pc.is_in(table["attack"], value_set=pa.array(list(attacks), pa.string())), dtype=bool)
    at, passes = row_queries.ids_of(table)[chosen], np.asarray(table[column], dtype=np.int64)[chosen]
    keep = np.isin(at, ids)
    total = np.zeros(len(ids), dtype=np.int64)
    np.add.at(total, np.searchsorted(ids, at[keep]), passes[keep])
    return int(total.min())


def as_sentence(text: str) -> str:
    """Return the text with a full stop, unless it ends a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
