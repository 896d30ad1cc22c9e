"""Torch's default dtype and device: networks and tables that Brinell builds itself must not follow the user's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def standard_defaults() -> Iterator[None]:
    """Make float32 and the CPU the defaults inside the context, or in a decorated function; then restore them.

    Tensors made inside have gradients even if the caller is in torch.inference_mode.

    Only code that builds modules needs it. Everywhere else, every new tensor names its dtype and device.

    >>> torch.set_default_dtype(torch.float64)
    >>> with standard_defaults():
    ...     torch.nn.Linear(2, 2).weight.dtype
    torch.float32
    >>> torch.set_default_dtype(torch.float32)
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(before)


def with_gradients(v: Tensor) -> Tensor:
    """Return the tensor, copied if it was made in torch.inference_mode: autograd refuses such tensors.

    >>> with torch.inference_mode():
    ...     made = torch.ones(2)
    >>> made.is_inference(), with_gradients(made).is_inference()
    (True, False)
    """
    if not v.is_inference():
        return v
    with torch.inference_mode(False):
        return v.clone()
