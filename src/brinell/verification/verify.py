"""`brinell.verify`: check a stored Run against its manifest, the data and the model."""

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from brinell.checks import model as model_checks
from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle, default_block
from brinell.evaluation import coerce
from brinell.results import Run
from brinell.verification import provenance
from brinell.verification.adversarials import Verification, verify_adversarials
from brinell.verification.consistency import contradictions
from brinell.verification.result import as_notes, failures, note


def verify(run: "Run | str | os.PathLike[str]", classifier: Any, problem: Any) -> Verification:
    """Verify a Run: its rows against its manifest and the data, and every stored adversarial on the model.

    Method: rows, manifest and data must agree in schema, row counts, ids, labels, input hashes, attacks and their
    parameters, seed and threat. For each adversarial, class, float64 distance, box, finiteness and the hash of the
    clean input are checked, and every clean prediction is repeated. Missing rows of an unfinished Run are no fault. A
    model with another fingerprint gives a note, not a failure.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    opened = Run.open(run)
    model, data = coerce.as_classifier(classifier), coerce.as_problem(problem)
    objections = contradictions(opened, whole=opened.finished)
    threat = provenance.threat_for(opened, data)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    provenance.refuse_shapes(opened, data)
    model_checks.check_train_mode(model)
    objections += [*provenance.other_data(opened, data), *provenance.other_strength(opened)]
    notes = as_notes(provenance.other_model(opened, model))
    notes += [] if opened.finished else [note("unfinished", "The Run is not finished.")]
    with precisions.exact(model.device):
        oracle = Oracle(model, default_block(model.device))
        result = verify_adversarials(opened, model, data, threat, oracle)
        objections += provenance.other_classes(opened, oracle, data)
    failed = failures({**result.failures, **provenance.sample_failures(opened, data)})
    earlier_notes = [finding for finding in result.findings if finding.level == "info"]
    return replace(result, findings=(*objections, *failed, *earlier_notes, *notes))
