"""Readouts for the binarization test of defences that do not end in a linear layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.gallery.parts import squash
from brinell.reliability.readouts import Linear, LinearHeads


@dataclass(frozen=True)
class SquashedHeads:
    """Linear readouts whose two logits pass through a flat hyperbolic tangent."""

    inner: LinearHeads
    gain: Tensor
    through: bool

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        """±tanh(gain · d)."""
        return squash(1.0, self.through)(self.gain[at][:, None] * self.inner.logits(f, at))

    def keep(self, index: Tensor) -> "SquashedHeads":
        """Only some."""
        return SquashedHeads(self.inner.keep(index), self.gain[index], self.through)

    def join(self, others: "list[Any]") -> "SquashedHeads":
        """More of them."""
        gain = torch.cat([self.gain, *(o.gain for o in others)])
        return SquashedHeads(self.inner.join([o.inner for o in others]), gain, self.through)


@dataclass(frozen=True)
class Squashed:
    """The widest margin, squashed like the bits of an error-correcting code: flat wherever the answer is clear."""

    gain: float
    through: bool
    name: str = "squashed linear"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> SquashedHeads:
        """The gain is measured in margins: the clean point, far inside, lies where the tangent is flat."""
        heads = Linear().fit(inner, boundary, widths)
        at = torch.arange(len(inner), device=inner.device)
        d = heads.logits(boundary[:, 0].float(), at)[:, 1]
        return SquashedHeads(heads, self.gain / d, self.through)
