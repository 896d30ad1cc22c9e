"""Names of tensor shapes for type hints: `b` is the number of rows, `*shape` a sample's shape, `k` the classes."""

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
