"""The audit: which survivors it attacks at full strength, and when it must be extended to all survivors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from brinell.core.plan import Stage
from brinell.ops import rng
from brinell.results import Run
from brinell.results.evidence import replaced_gradients


def in_audit(seed: int, ids: Tensor, share: float) -> Tensor:
    """Return a mask of the samples that an audit of this share draws; the mask depends on seed and ids alone.

    >>> import torch
    >>> round(in_audit(0, torch.arange(10_000), 0.125).float().mean().item(), 2)
    0.12
    """
    key = rng.fold(rng.keys(seed, ids), rng.digest("audit"))
    return rng.uniform(key, (1,))[:, 0] < share


def attacked(stage: Stage, seed: int, ids: Tensor, left: Sequence[float], reach: float = 0.0) -> Tensor:
    """Return a mask of the samples that the stage attacks if they stand: an audit only the drawn and the near ones.

    `left` are the shares of the clean margins that the stages before the audit left. Samples below `reach` or the
    stage's `near` are near; a `reach` of inf includes everyone.

    >>> from brinell.attacks import PGD
    >>> attacked(Stage(PGD(), share=1e-9, near=0.1), 0, torch.arange(3), [0.05, 0.15, 0.9], 0.2).tolist()
    [True, True, False]
    """
    if reach == math.inf or not stage.is_audit:
        return torch.ones(len(ids), dtype=torch.bool, device="cpu")
    limit = max(reach, stage.near or 0.0)
    near = torch.tensor([v < limit for v in left], dtype=torch.bool, device="cpu")
    return in_audit(seed, ids, stage.sampled_share).cpu() | near


def needed_reach(run: Run, warned: bool, escalate: bool | None) -> tuple[float, str]:
    """Return how far the full plan must go (`Layers.reach`; inf: to all survivors), and why if to all.

    None for `escalate` follows the layers, and goes to all survivors where the gradients were replaced (the shortcuts
    of the plan trust them). True also goes to all survivors if a check warns or if the audit is too
    small. False never goes beyond the plan.
    """
    layers, audit = run.layers, run.audit
    if escalate is False or layers is None or audit is None or audit.complete:
        return 0.0, ""
    if layers.doubt:
        return math.inf, layers.doubt
    if replaced_gradients(run):
        return math.inf, "Replaced gradients are not those of the model"
    if escalate and warned:
        return math.inf, "A check warns"
    if escalate and audit.too_small(run.robust_accuracy):
        return math.inf, "The audit is too small"
    return layers.reach, ""
