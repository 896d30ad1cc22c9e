"""`brinell.verify`: check a stored Run against its manifest, the data and the model, and attack some samples again."""

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.checks import model as model_checks
from brinell.core.certificate import Certifier
from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.finding import Finding
from brinell.results import Run
from brinell.results.format.shards import NO_CHECKSUMS
from brinell.verification import provenance
from brinell.verification.adversarials import Verification, verify_adversarials
from brinell.verification.attacked import all_contradictions
from brinell.verification.certificates import certify_again
from brinell.verification.plans import other_plan
from brinell.verification.rerun import block_of, run_again
from brinell.verification.result import as_notes, failures, note, objection
from brinell.verification.sampling import sampling_of

UNFINISHED = (
    "The Run is not finished: its accuracies are provisional, and rows that are missing cannot be missed. "
    "Finish it with --resume."
)
NO_MODEL = "No model was given: rows and manifest were compared with each other, and nothing was checked on a model."


def verify(
    run: "Run | str | os.PathLike[str]",
    classifier: ModelLike | None = None,
    problem: DataLike | None = None,
    *,
    rerun: int | None = None,
    hidden: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    full_plan: bool = False,
    plan: PlanLike | None = None,
    certifier: Certifier | None = None,
    progress: bool | None = False,
) -> Verification:
    """Verify a Run: rows, manifest and data, every stored adversarial on the model, and random survivors by attack.

    Method: rows, manifest and data must agree in schema, row counts, ids, labels, input hashes, attacks and their
    parameters, seed and threat. The Run must be on all samples of the data or on the first ones. For each adversarial,
    class, float64 distance, box, finiteness and the hash of the clean input are checked, and every clean prediction
    and every check of the model is repeated. Then the plan of the Run attacks `rerun` random survivors again. Without
    `rerun`, there are as many as it takes to find `hidden` broken samples that the Run counts as robust, with
    probability `confidence`. The default of `hidden` is half of the 95 % interval of the robust accuracy. `seed`
    chooses the survivors; without it, a seed is drawn and printed. `rerun=0` attacks nothing. Each is attacked by the
    stages that attacked it in the Run, and by those that had to: the audit of a plan like `fast` attacks few. With
    `full_plan=True`, every stage attacks all chosen samples, which can cost more than the Run. `plan` is only needed if
    the attacks of the Run cannot be built from what it stores. Certificates must agree with the other rows, and random
    certified samples, and open ones that a search left open, are certified again, as many as find what is stated;
    `certifier` is only needed for certificates of a certifier of your own. Without a model, only rows and manifest are
    checked. A model with another fingerprint gives a note, not a failure.
    Cost: a forward pass per sample and adversarial, and the plan on the survivors that are attacked again: 13 of 50
    for 100 samples of which half survive, 47 of 500 for 1,000, 151 of 5,000 for 10,000. The result states the passes.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    sampling = sampling_of(rerun, hidden, confidence, seed, full_plan)
    opened = Run.open(run)
    opened.shards.check_hashes()
    objections = all_contradictions(opened, whole=opened.finished)
    objections += [] if opened.finished else [objection("finished", UNFINISHED)]
    notes = [] if opened.shards.listed is not None else [note("checksums", NO_CHECKSUMS)]
    if classifier is None:
        return Verification(0, findings=(*objections, *notes, note("model", NO_MODEL)), unchecked=True)
    model, data = coerce.as_classifier(classifier), _data(opened, problem)
    threat = provenance.threat_for(opened, data)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    provenance.refuse_shapes(opened, data)
    wrong_samples = provenance.sample_failures(opened, data)
    if other := provenance.others(wrong_samples, opened):
        return Verification(0, findings=(*other, *objections))
    model_checks.check_train_mode(model)
    objections += provenance.other_data(opened, data)
    notes = [*as_notes(provenance.other_model(opened, model)), *notes, *provenance.selection(opened, data)]
    oracle = Oracle(model, block_of(opened, model))
    with precisions.exact(model.device), oracle.calls.named():
        result = verify_adversarials(opened, model, data, threat, oracle)
        objections += provenance.other_classes(opened, oracle, data)
        notes = [*notes, *other_plan(opened, threat, oracle, data)]
        failed = failures({**result.failures, **wrong_samples})
        earlier_notes = [finding for finding in result.findings if finding.level == "info"]
        found = [*objections, *failed, *earlier_notes, *notes]
        found += certify_again(opened, oracle, data, threat, sampling, certifier).findings
        findings: list[Finding] = sorted(found, key=lambda finding: finding.level == "info")
        result = replace(result, findings=tuple(findings))
        if not result.ok or sampling.count == 0:
            return result
        given = None if plan is None else coerce.as_plan(plan)
        again = run_again(opened, oracle, data, threat, sampling, progress, given)
    return replace(result, again=again.rerun, findings=(*findings, *again.findings))


def _data(run: Run, problem: Any) -> Any:
    if problem is None:
        raise InputError(
            expected="the data of the Run together with the model",
            got=f"no data for {run.path}",
            remedy="Pass problem= (--data).",
        )
    return coerce.as_problem(problem)
