"""Bounds on rounding errors, so that a certificate covers the network as float32 computes it.

Derivation: docs/design/certification.md.
"""

import torch
from torch import Tensor

from brinell.certification.network import Node
from brinell.certification.operations import Input

UNIT32, UNIT64 = 2.0**-24, 2.0**-53
# The smallest normal float32: the error of a result that underflows is at most that, even if it is flushed to zero.
TINIEST = 2.0**-126
# Beyond this size float32 overflows (its largest number is 3.4e38), and nothing is known.
LARGEST = 3e38
# Roundings of float64 in one step of a bound, besides the terms of the operation itself.
STEPS = 64


def gamma(terms: int, unit: float) -> float:
    """Return γₙ = n·u / (1 − n·u), the relative error of a sum of products with n roundings in any order.

    >>> gamma(1, 0.25)
    0.3333333333333333
    """
    return terms * unit / (1 - terms * unit)


def size(lower: Tensor, upper: Tensor) -> Tensor:
    """Return the largest absolute value in each interval."""
    return torch.maximum(lower.abs(), upper.abs())


def noise(node: Node, sizes: list[Tensor]) -> Tensor:
    """Return, per output element of a node, a bound on all rounding errors of its computation and of its bounds.

    `sizes` are the largest absolute values of its inputs. float32 contributes γₙ times the sum of the absolute values
    of all terms, float64 a share that is a billionth of it.
    """
    operation, n = node.operation, int(torch.Size(node.shape).numel())
    if isinstance(operation, Input):
        return torch.full_like(sizes[0], 2 * gamma(n + STEPS, UNIT64))
    # On the way back, a step adds up at most n products for a coefficient, and n for a constant.
    terms = operation.terms
    relative = gamma(terms, UNIT32) + 2 * gamma(2 * (terms + n) + STEPS, UNIT64)
    magnitude = operation.magnitude(*sizes)
    errors = magnitude * relative * (1 + 1e-6) + terms * TINIEST
    return torch.where(magnitude > LARGEST, torch.inf, errors)
