"""Find the numbers of rows per call at which a model responds to each row as in a whole block, bit for bit."""

import time

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.engine.oracle import Oracle

# Libraries split a product over rows and threads. From a few rows per thread on, they add the terms of every row in the
# same order.
SMALLER = (4, 8, 12, 16, 24)
# Calls of more than a block: for models so fast that the time between calls counts.
LARGER = (40, 48, 64, 96, 128)
CANDIDATES = SMALLER + LARGER
# Seconds for a block, forward and backward. Slower models gain nothing from larger calls, which take more memory.
FAST = 0.02
LOSS = "ce"


def exact_sizes(oracle: Oracle, x: Tensor, y: Tensor, gradients: bool, most: int) -> tuple[int, ...]:
    """Return the numbers of rows up to `most` at which rows get the response that they get in a whole block.

    Method: the order in which a library adds depends on the shapes of the arrays, not on their values. So the model is
    called on the given samples, in a block and in smaller and larger calls, with gradients and without, and all bits
    are compared. Larger calls are tried in turn until one differs, and not for slow models. A randomised model has no
    such numbers. Cost: two blocks and one call of every candidate.
    """
    index = torch.arange(oracle.block, device=x.device) % len(x)
    x, y = x[index], y[index]
    whole = _response(oracle, x, y, gradients)
    found = [size for size in SMALLER if size < oracle.block and _same(oracle, x, y, gradients, whole, size)]
    # The time of this thread, since the machine may be busy with other work; the first calls took longer.
    begun = time.thread_time()
    fast = _same(oracle, x, y, gradients, whole, oracle.block) and time.thread_time() - begun < FAST
    for size in LARGER:
        if not (fast and oracle.block < size <= most and _same(oracle, x, y, gradients, whole, size)):
            break
        found.append(size)
    return tuple(found)


def _response(oracle: Oracle, x: Tensor, y: Tensor, gradients: bool) -> list[Tensor]:
    one_pass, _ = oracle.one_pass(LOSS, Requires.GRAD if gradients else Requires.LOGITS, x, None)
    response: Response = one_pass(x, y, y)
    with torch.no_grad():
        verified = oracle.classifier.forward(x).logits
    parts = [verified, response.logits, response.loss]
    return parts if response.grad is None else [*parts, response.grad]


def _same(oracle: Oracle, x: Tensor, y: Tensor, gradients: bool, whole: list[Tensor], size: int) -> bool:
    """Return whether a call of `size` rows, the rows of the block in turn, has the bits of the block."""
    index = torch.arange(size, device=x.device) % len(x)
    part = _response(oracle, x[index], y[index], gradients)
    return all(torch.equal(a[index], b) for a, b in zip(whole, part, strict=True))
