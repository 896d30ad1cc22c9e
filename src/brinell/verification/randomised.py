"""Verify Runs of randomised models: tell differences that chance explains from differences that it does not."""

from collections.abc import Collection

import torch
from torch import Tensor

from brinell.core.criterion import Criterion
from brinell.core.dataset import Problem
from brinell.engine.oracle import Oracle
from brinell.finding import Finding
from brinell.verification.result import note, objection

# A point that fooled most of n passes fools at least one of REPEATS * n later passes, or it never did.
REPEATS = 10
# If fewer survivors than this break when they are attacked again, chance explains it.
FEW = 6
CHUNK = 4096


def ever_fooled(criterion: Criterion, oracle: Oracle, x: Tensor, y: Tensor, draws: int) -> list[bool]:
    """Return for every point whether it fools at least one of 10 * `draws` passes."""
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(REPEATS * draws if len(x) else 0):
        fooled |= criterion.reached(oracle.output(x), y, y)
    return fooled.tolist()


def ever_right(oracle: Oracle, data: Problem, ids: Collection[int], draws: int) -> set[int]:
    """Return the ids of samples classified correctly, and accepted, in at least one of 10 * `draws` clean passes."""
    correct: set[int] = set()
    for chunk in data.chunks(CHUNK) if ids else ():
        rows = chunk.rows_of(ids)
        x, y = (v[rows].to(oracle.classifier.device) for v in (chunk.x, chunk.y))
        for _ in range(REPEATS * draws if len(rows) else 0):
            out = oracle.output(x)
            right = (out.logits.argmax(1) == y) & out.logits.isfinite().all(1)
            right = right if out.reject is None else right & (out.reject <= 0)
            correct |= set(chunk.ids[rows][right.cpu()].tolist())
    return correct


def doubtful_note(points: int, draws: int) -> list[Finding]:
    """Return a note that `points` adversarials now fool some passes but not most; an empty list if `points` is 0."""
    if not points:
        return []
    what = "1 adversarial" if points == 1 else f"{points} adversarials"
    return [note("randomised", f"{what} fooled some later passes, but not most of {draws}: the model is randomised.")]


def broken_again(broke: int, survivors: int) -> list[Finding]:
    """Return a finding if survivors broke when run again: an objection if at least 6 and over half broke, else a note.

    >>> print(*broken_again(9, 12))
    fail  run again: Of 12 samples counted as robust 9 broke when run again, more than chance explains.
    >>> print(*broken_again(1, 12))
    info  run again: Of 12 samples counted as robust 1 broke when run again: the model is randomised.
    """
    text = f"Of {survivors} samples counted as robust {broke} broke when run again"
    if broke >= FEW and 2 * broke > survivors:
        return [objection("run again", f"{text}, more than chance explains.")]
    return [note("run again", f"{text}: the model is randomised.")] if broke else []
