"""Names of tensors by kind and shape, for type hints.

`b` is the number of rows, `*shape` a sample's shape, `k` the classes, `c h w` an image. At run time these are plain
tensors. The tests replace them by types that check kind and shape (tests/conftest.py).
"""

from typing import Annotated

from torch import Tensor

Points = Annotated[Tensor, "Float", "b *shape"]
Scalars = Annotated[Tensor, "Float", "b"]
Doubles = Annotated[Tensor, "Float", "b m"]
Logits = Annotated[Tensor, "Float", "b k"]
Labels = Annotated[Tensor, "Int", "b"]
Keys = Annotated[Tensor, "Int", "b"]
Mask = Annotated[Tensor, "Bool", "b"]
Marks = Annotated[Tensor, "Bool", "b n"]
Images = Annotated[Tensor, "Float", "b c h w"]
Layer = Annotated[Tensor, "Float", "b 1 h w"]
Field = Annotated[Tensor, "Float", "b h w"]
Pixels = Annotated[Tensor, "Int", "b h w"]
Places = Annotated[Tensor, "Int", "b m"]
Squares = Annotated[Tensor, "Float", "b n n"]
