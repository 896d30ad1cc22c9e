"""Tables of constants, built once per device."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def table(function: F) -> F:
    """Decorate a function of numbers and a device so that its tensors are cached. Nobody may write to these tensors.

    A captured attack step reads a cached tensor; to build one from Python numbers, it would wait for the host. Call the
    step once before capturing it, so that the cache is filled.

    >>> import torch
    >>> @table
    ... def squares(n, device):
    ...     return torch.arange(n, device=device) ** 2
    >>> squares(3, torch.device("cpu")) is squares(3, torch.device("cpu"))
    True
    """
    cache: dict[tuple[Any, ...], Any] = {}

    @wraps(function)
    def look_up(*arguments: Any) -> Any:
        if arguments not in cache:
            cache[arguments] = function(*arguments)
        return cache[arguments]

    return cast(F, look_up)
