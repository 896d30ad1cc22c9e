"""The audit: which survivors it attacks at full strength, and when it must be extended to all survivors."""

from torch import Tensor

from brinell.ops import rng
from brinell.results import Run


def in_audit(seed: int, ids: Tensor, share: float) -> Tensor:
    """Return a mask of the samples that an audit of this share draws; the mask depends on seed and ids alone.

    >>> import torch
    >>> round(in_audit(0, torch.arange(10_000), 0.125).float().mean().item(), 2)
    0.12
    """
    key = rng.fold(rng.keys(seed, ids), rng.digest("audit"))
    return rng.uniform(key, (1,))[:, 0] < share


def needs_escalation(run: Run, warned: bool) -> bool:
    """Return whether to audit all survivors: the audit contradicts the plan or is too small, or a check warns."""
    audit = run.audit
    if audit is None or audit.complete:
        return False
    return warned or audit.objects or audit.too_small(run.robust_accuracy)
