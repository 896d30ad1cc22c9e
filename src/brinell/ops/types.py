"""Tensor shapes as types: `b` rows, `*shape` of one sample, `k` classes."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Points = Float[Tensor, "b *shape"]
Scalars = Float[Tensor, "b"]
Doubles = Float[Tensor, "b m"]
Logits = Float[Tensor, "b k"]
Labels = Int[Tensor, "b"]
Keys = Int[Tensor, "b"]
Mask = Bool[Tensor, "b"]
Marks = Bool[Tensor, "b n"]
