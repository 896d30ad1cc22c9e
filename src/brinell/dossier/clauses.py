"""Clauses of laws, standards and catalogues, each with the evidence in a dossier, or what is not covered.

The summaries are our own and short; the wording of each source governs. A status is "evidence" (the dossier holds
evidence for the point), "partly" (for a part of it), "declared" (a statement of the user, not tested) or "not covered".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from brinell.dossier.markup import DossierView

EVIDENCE, PARTLY, DECLARED, NOT_COVERED = "evidence", "partly", "declared", "not covered"
DISCLAIMER = (
    "This table is an aid to readers. It is no legal advice, no conformity assessment and no certificate. Whether a "
    "clause applies and whether it is met is decided by the provider and by those who assess the system."
)
ACT = "Regulation (EU) 2024/1689"
ISO_1, ISO_2 = "ISO/IEC TR 24029-1:2021", "ISO/IEC 24029-2:2023"
NIST, RMF = "NIST AI 100-2 E2025", "NIST AI RMF 1.0"
ATLAS, AISVS = "MITRE ATLAS", "OWASP AISVS 1.0"


class Clause(NamedTuple):
    """A clause: its source and number, a summary, and a function that returns its status and where to look or why."""

    source: str
    number: str
    summary: str
    status: Callable[[DossierView], tuple[str, str]]


def _always(status: str, where: str) -> Callable[[DossierView], tuple[str, str]]:
    return lambda view: (status, where)


def _if(
    condition: Callable[[DossierView], Any], yes: tuple[str, str], otherwise: tuple[str, str]
) -> Callable[[DossierView], tuple[str, str]]:
    return lambda view: yes if condition(view) else otherwise


def _certified(view: DossierView) -> bool:
    return any(view.has(f"{i}/certified") for i in range(len(view.runs)))


def _subgroups(view: DossierView) -> bool:
    return any(len(run["samples"]["groupings"]) > 1 for run in view.runs)


def _adaptive(view: DossierView) -> bool:
    return any(check["name"] == "adaptive" for run in view.runs for check in run["checks"])


def needs(view: DossierView, black_box: bool) -> bool:
    """Return whether some attack of the dossier uses only outputs (`black_box`), or gradients."""
    stages = [a for run in view.runs for a in run["attacks"] if a.get("needs") is not None]
    return any((a["needs"] == "logits") == black_box for a in stages)


def _transfer(view: DossierView) -> bool:
    return any(a.get("via") for run in view.runs for a in run["attacks"])


CLAUSES: tuple[Clause, ...] = (
    Clause(ACT, "Art. 15(1)", "Accuracy, robustness and cybersecurity at an appropriate and lasting level", _always(
        PARTLY, "Results, levels, and re-test triggers, for the threats tested; consistency over the lifecycle is not "
        "measured")),
    Clause(ACT, "Art. 15(2)", "Benchmarks and measurement methods, encouraged by the Commission", _always(
        NOT_COVERED, "Addressed to the Commission. The method used here is stated under Attacks and Checks")),
    Clause(ACT, "Art. 15(3)", "Accuracy levels and metrics declared in the instructions for use", _if(
        lambda v: v.payload["levels"], (PARTLY, "Declared levels, each with the decision; the instructions for use are "
        "not part of this dossier"), (NOT_COVERED, "No level is declared; the measured accuracies are under Results"))),
    Clause(ACT, "Art. 15(4)", "Resilience to errors, faults and inconsistencies; redundancy; feedback loops", _if(
        lambda v: v.declared["risk"]["measures"], (DECLARED, "Residual risk, measures; not tested"),
        (NOT_COVERED, "Faults, redundancy and feedback loops are not tested"))),
    Clause(ACT, "Art. 15(5)", "Resilience to attacks: adversarial examples and model evasion", _if(
        lambda v: all(run["verdict"] == "reliable" for run in v.runs),
        (EVIDENCE, "Threat model, Attacks, Results, Checks of the evaluation, Not tested"),
        (PARTLY, "Threat model, Attacks, Results; the verdict on an evaluation is not “reliable”"))),
    Clause(ACT, "Art. 15(5)", "Resilience to attacks: data and model poisoning, confidentiality attacks, model flaws",
           _always(NOT_COVERED, "Not tested")),
    Clause(ACT, "Annex IV, 2(g)", "Test procedures, test data and their main characteristics", _always(
        EVIDENCE, "Data and sampling, Attacks, Checks of the evaluation")),
    Clause(ACT, "Annex IV, 2(g)", "Metrics for accuracy and robustness", _always(
        EVIDENCE, "Results: every share with n and a 95 % interval")),
    Clause(ACT, "Annex IV, 2(g)", "Potentially discriminatory impacts", _if(
        _subgroups, (PARTLY, "Results by subgroup: accuracies only"),
        (NOT_COVERED, "No subgroups were given; results by class only"))),
    Clause(ACT, "Annex IV, 2(g)", "Test logs and reports, dated and signed", _if(
        lambda v: v.payload["public_key"], (EVIDENCE, "Files and hashes, Signature; whether the key belongs to the "
        "responsible person is for the reader to check"), (NOT_COVERED, "This is a draft without a signature"))),
    Clause(ISO_1, "statistical methods", "Robustness measured on a test set with statistical metrics", _always(
        EVIDENCE, "Results, Data and sampling")),
    Clause(ISO_1, "formal methods", "Robustness shown by a proof", _if(
        _certified, (EVIDENCE, "Both ends of the bracket"), (NOT_COVERED, "No certificates in the Runs"))),
    Clause(ISO_1, "empirical methods", "Field trials and a posteriori testing", _always(
        NOT_COVERED, "The Runs test stored samples")),
    Clause(ISO_2, "5.2", "The domain in which a property is to hold", _always(
        EVIDENCE, "Threat model: norm, radius and box around each sample")),
    Clause(ISO_2, "5.3", "Stability: the output does not change inside the domain", _if(
        _certified, (EVIDENCE, "Both ends of the bracket, for the certified samples"),
        (NOT_COVERED, "Attacks give counterexamples to stability, no proof; no certificates in the Runs"))),
    Clause(ISO_2, "5.4 to 5.6", "Sensitivity, relevance and reachability", _always(NOT_COVERED, "Not assessed")),
    Clause(ISO_2, "6", "Choice of formal methods for the network", _if(
        _certified, (PARTLY, "Both ends of the bracket"), (NOT_COVERED, "No formal method was used"))),
    Clause(ISO_2, "7", "Robustness during the life cycle", _always(
        PARTLY, "Re-test triggers; no measurement in operation")),
    Clause(NIST, "evasion", "White-box evasion attacks", _if(
        lambda v: needs(v, False), (EVIDENCE, "Attacks: those with gradients"),
        (NOT_COVERED, "No attack uses gradients"))),
    Clause(NIST, "evasion", "Black-box evasion attacks", _if(
        lambda v: needs(v, True), (EVIDENCE, "Attacks: those without gradients"),
        (NOT_COVERED, "No attack without gradients was run"))),
    Clause(NIST, "evasion", "Transfer of attacks from other models", _if(
        _transfer, (PARTLY, "Attacks through a surrogate of the model"),
        (NOT_COVERED, "No attack from another model"))),
    Clause(NIST, "poisoning, privacy", "Poisoning of data or model; attacks on privacy", _always(
        NOT_COVERED, "Not tested")),
    Clause(RMF, "MEASURE 2.7", "Security and resilience evaluated and documented", _always(
        PARTLY, "Evasion only: Threat model, Results, Not tested, Residual risk")),
    Clause(ATLAS, "AML.T0015", "Evade the AI model", _always(EVIDENCE, "Results, for the threats of this dossier")),
    Clause(ATLAS, "AML.T0043", "Craft adversarial data (white-box .000, black-box .001, transfer .002)", _always(
        PARTLY, "Attacks: the column “Access”; manual modification (.003) and backdoor triggers (.004) are not "
        "tested")),
    Clause(AISVS, "11.1.3", "Evaluation against known attack techniques of the modality", _always(
        EVIDENCE, "Attacks, Results")),
    Clause(AISVS, "11.1.4", "Hardening against adversarial inputs", _if(
        lambda v: v.declared["model"]["defences"], (DECLARED, "Model and preprocessing, defences; its effect is under "
        "Results"), (NOT_COVERED, "No defence is declared; the result of the model as it is, is under Results"))),
    Clause(AISVS, "11.1.1, 11.1.2, 11.1.5", "Alignment training, its tests, and harmful content", _always(
        NOT_COVERED, "Classifiers only")),
    Clause(AISVS, "11.2, 11.3", "Membership inference, model inversion, model extraction", _always(
        NOT_COVERED, "Not tested")),
    Clause(AISVS, "11.4", "Anomalous inputs at run time", _if(
        lambda v: any(run["criterion"] == "evade" for run in v.runs), (PARTLY, "The detector of the model is attacked "
        "together with it"), (NOT_COVERED, "No detector was evaluated"))),
)  # fmt: skip
"""All clauses of the table, in its order."""
