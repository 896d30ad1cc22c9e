"""Who is audited: attacked at full strength though the short plan gave up."""

from torch import Tensor

from brinell.ops import rng


def in_audit(seed: int, ids: Tensor, share: float) -> Tensor:
    """Return which samples an audit of this share draws: each by the seed and its own id alone.

    >>> import torch
    >>> round(in_audit(0, torch.arange(10_000), 0.125).float().mean().item(), 2)
    0.12
    """
    key = rng.fold(rng.keys(seed, ids), rng.digest("audit"))
    return rng.uniform(key, (1,))[:, 0] < share
