"""A Run verified: what its user calls; `recheck` does the work."""

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from brinell.checks import model as model_checks
from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle, default_block
from brinell.evaluation import coerce
from brinell.results import Run
from brinell.verification import provenance as agreement
from brinell.verification.adversarials import Verification, recheck
from brinell.verification.consistency import contradictions


def verify(run: "Run | str | os.PathLike[str]", classifier: Any, problem: Any) -> Verification:
    """Re-check a Run: its rows against its manifest and the data, and every stored adversarial on the model.

    Method: schema, numbers of rows, ids, labels, hashes of inputs, attacks and their numbers, seed, threat and counts
    must agree; of each adversarial class, distance in float64, box, finiteness and origin are looked at, and the model
    is asked about every clean input. What a Run lacks because it is unfinished is no fault. A model with another
    fingerprint than the Run's is told in the notes.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = coerce.as_classifier(classifier), coerce.as_problem(problem)
    objections = contradictions(opened, whole=opened.finished)
    threat = agreement.threat_for(opened, data)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    agreement.refuse_shapes(opened, data)
    model_checks.check_train_mode(model)
    objections += [*agreement.other_data(opened, data), *agreement.strengthened(opened)]
    notes = [*agreement.foreign(opened, model), *([] if opened.finished else ["The Run is not finished."])]
    with precisions.exact(model.device):
        oracle = Oracle(model, default_block(model.device))
        found = recheck(opened, model, data, threat, oracle)
        objections += agreement.other_classes(opened, oracle, data)
    failures = {**found.failures, **agreement.facts(opened, data)}
    return replace(found, failures=failures, objections=tuple(objections), notes=(*found.notes, *notes))
