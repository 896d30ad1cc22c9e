"""What a second look at a randomised model may hold against a Run, and what chance alone explains."""

from collections.abc import Collection

import torch
from torch import Tensor

from brinell.core.criterion import Criterion
from brinell.core.dataset import Problem
from brinell.engine.oracle import Oracle

# A point that fooled most passes once fools at least one of so many times as many later, or it never did.
LONGER = 10
# Fewer survivors than this that fall when they are attacked again say nothing.
FEW = 6
CHUNK = 4096


def ever_fooled(criterion: Criterion, oracle: Oracle, x: Tensor, y: Tensor, draws: int) -> list[bool]:
    """Whether at least one of many passes is fooled, point by point."""
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(LONGER * draws if len(x) else 0):
        fooled |= criterion.reached(oracle.output(x), y, y)
    return fooled.tolist()


def ever_right(oracle: Oracle, data: Problem, ids: Collection[int], draws: int) -> set[int]:
    """Those of the samples whose clean input is classified correctly, and accepted, in at least one of many passes."""
    found: set[int] = set()
    for chunk in data.chunks(CHUNK) if ids else ():
        rows = [r for r, i in enumerate(chunk.ids.tolist()) if i in ids]
        x, y = (v[rows].to(oracle.classifier.device) for v in (chunk.x, chunk.y))
        for _ in range(LONGER * draws if rows else 0):
            out = oracle.output(x)
            right = (out.logits.argmax(1) == y) & out.logits.isfinite().all(1)
            right = right if out.reject is None else right & (out.reject <= 0)
            found |= set(chunk.ids[rows][right.cpu()].tolist())
    return found


def doubt(points: int, draws: int) -> list[str]:
    """A note about adversarials that fooled some of the later passes, and not most."""
    what = "1 adversarial" if points == 1 else f"{points} adversarials"
    said = f"{what} fooled some later passes and not most of {draws}: chance decides there, the model is randomised."
    return [said] if points else []


def fallen(fell: int, stood: int) -> tuple[list[str], list[str]]:
    """Objections and notes about survivors that fell when a randomised model was attacked again.

    >>> fallen(9, 12)
    (['Of 12 samples counted as robust 9 broke when run again, more than chance explains.'], [])
    >>> fallen(1, 12)
    ([], ['Of 12 samples counted as robust 1 broke when run again: the model is randomised.'])
    """
    said = f"Of {stood} samples counted as robust {fell} broke when run again"
    if fell >= FEW and 2 * fell > stood:
        return [f"{said}, more than chance explains."], []
    return [], [f"{said}: the model is randomised."] if fell else []
