"""The cost of an evaluation before it is run."""

import os
from pathlib import Path
from typing import Any

import torch

from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import silent
from brinell.evaluate import inputs
from brinell.evaluate.choice import remembered
from brinell.evaluate.cost import Estimate, foresee
from brinell.evaluate.evaluate import ahead, chosen_plan, prepare


def estimate(
    classifier: Any,
    problem: Any,
    threat: Threat,
    plan: Any = "autoattack",
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    slots: int | None = None,
    precision: str = "float32",
    execution: str = "auto",
    device: torch.device | str | None = None,
    individual: bool = False,
    audit: float | int | None = None,
    escalate: bool = False,
    seconds: float | None = None,
) -> Estimate:
    """Forwards, backwards and seconds that `evaluate` would take with the same arguments; nothing is written.

    Method: the plan's own attacks on a few samples that stand for all by their clean margins. Cost: the clean pass of
    the first samples, then at most `seconds` (default: a fifth of the longest possible run, between one second and
    two). With `resume`, what the Run in `out` holds already is left out.

    >>> import brinell
    >>> told = brinell.estimate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm")
    >>> told.samples, told.forwards <= 32 + 2 * 32
    (32, True)
    """
    inputs.refuse_nowhere(resume, out)
    model = inputs.as_classifier(classifier, device)
    chosen = chosen_plan(plan, audit, escalate)
    folder = Path(out) if resume and out is not None else None
    with precisions.exact(model.device):
        session = prepare(
            model,
            inputs.as_problem(problem),
            inputs.as_threat(threat),
            chosen,
            seed=seed,
            slots=slots,
            precision=remembered(precision, folder),
            listener=silent,
            individual=individual,
            execution=execution,
        )
        return foresee(ahead(session, folder, escalate), seconds)
