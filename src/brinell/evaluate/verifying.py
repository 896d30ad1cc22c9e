"""A Run verified: what its user calls; `recheck` does the work."""

import os
from typing import Any

from torch import Tensor

from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle, default_block
from brinell.evaluate import door, inputs
from brinell.evaluate.recheck import Verification, recheck
from brinell.results import Run


def verify(run: "Run | str | os.PathLike[str]", classifier: Any, problem: Any) -> Verification:
    """Re-check every stored adversarial of a Run on the model: class, distance in float64, box, finiteness, origin.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = inputs.as_classifier(classifier), inputs.as_problem(problem)
    threat = inputs.threat_of(opened)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    door.train_mode(model)
    with precisions.exact(model.device):
        oracle = Oracle(model, default_block(model.device))
        return recheck(opened, model, data, threat, oracle)
