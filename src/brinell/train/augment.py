"""Random crops and flips of a whole batch on the device; a sample's own key decides, not its neighbours."""

import torch
import torch.nn.functional as F
from torch import Tensor

from brinell.ops import rng
from brinell.ops.types import Keys


def augment(x: Tensor, key: Keys, crop: int, flip: bool) -> Tensor:
    """Images (b, c, h, w) shifted by up to `crop` pixels each way, zeros moving in, and mirrored half of the time.

    Method: padding by `crop`, then a window of the old size at a place drawn from the key. Images of bytes stay bytes.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> torch.equal(augment(x, rng.keys(0, torch.arange(1)), crop=0, flip=False), x)
    True
    """
    if not crop and not flip:
        return x
    b, c, h, w = x.shape
    top, left = rng.integers(rng.fold(key, 1), 2 * crop + 1, (2,)).unbind(1)
    down, across = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    if flip:
        mirrored = rng.signs(rng.fold(key, 2), (1,)) < 0
        across = torch.where(mirrored, across.flip(0), across)
    rows, columns = top[:, None] + down, left[:, None] + across
    padded = F.pad(x, (crop, crop, crop, crop)) if crop else x
    samples, channels = torch.arange(b, device=x.device), torch.arange(c, device=x.device)
    return padded[samples[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]
