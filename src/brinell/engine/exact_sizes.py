"""Find the numbers of rows per call at which a model responds to each row as in a whole block, bit for bit."""

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.engine.oracle import Oracle

# Libraries split a product over rows and threads. From a few rows per thread on, they add the terms of every row in the
# same order.
CANDIDATES = (4, 8, 12, 16, 24)
LOSS = "ce"


def exact_sizes(oracle: Oracle, x: Tensor, y: Tensor, gradients: bool) -> tuple[int, ...]:
    """Return the numbers of rows below `oracle.block` at which rows get the response that they get in a whole block.

    Method: the order in which a library adds depends on the shapes of the arrays, not on their values. So the model is
    called on the given samples, in a block and in smaller calls, with gradients and without, and all bits are compared.
    A randomised model has no such numbers. Cost: one block and one call of every candidate.
    """
    index = torch.arange(oracle.block, device=x.device) % len(x)
    x, y = x[index], y[index]
    whole = _response(oracle, x, y, gradients)
    smaller = [size for size in CANDIDATES if size < oracle.block]
    return tuple(s for s in smaller if _same(whole, _response(oracle, x[:s], y[:s], gradients)))


def _response(oracle: Oracle, x: Tensor, y: Tensor, gradients: bool) -> list[Tensor]:
    one_pass, _ = oracle.one_pass(LOSS, Requires.GRAD if gradients else Requires.LOGITS, x, None)
    response: Response = one_pass(x, y, y)
    with torch.no_grad():
        verified = oracle.classifier.forward(x).logits
    parts = [verified, response.logits, response.loss]
    return parts if response.grad is None else [*parts, response.grad]


def _same(whole: list[Tensor], part: list[Tensor]) -> bool:
    return all(torch.equal(a[: len(b)], b) for a, b in zip(whole, part, strict=True))
