"""Models whose answers depend on the batch are asked row by row."""

from dataclasses import replace

import torch

from brinell.checks.gradients import check_batch_shape
from brinell.core.dataset import Problem
from brinell.core.execution import Blocks, Execution
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle, default_block
from brinell.finding import Finding

SINGLE = Blocks(1)


def find_batch_dependence(classifier: Classifier, problem: Problem, threat: Threat) -> Finding | None:
    """Return a warning if the model answers an input alone otherwise than in a batch; None if it does not.

    Cost: two passes on each of a few samples. A randomised model, or one that fails on a single input, gets None.
    """
    oracle = Oracle(classifier, default_block(classifier.device))
    first = next(problem.chunks(oracle.checked))
    x = first.x[: oracle.checked].to(classifier.device)
    try:
        with torch.no_grad():
            found = check_batch_shape(oracle, threat, x, oracle.output(x).logits)
    except Exception:  # whatever the model itself raises: the checks that follow report it
        return None
    if found.level == "ok" or found.value is None:
        return None
    message = f"{found.message} The model was asked row by row: the numbers hold for batches of one input."
    return replace(found, message=message)


def one_row_at_a_time(execution: Execution) -> Execution:
    """Return the options with one row per model call.

    >>> one_row_at_a_time(Execution()).blocks
    Blocks(usual=1, others={})
    """
    return replace(execution, blocks=SINGLE)
