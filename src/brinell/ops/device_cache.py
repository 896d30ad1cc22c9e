"""Tables of numbers that attacks look up: made once per device, and constants to whoever compiles the look-up."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def table(function: F) -> F:
    """Remember what a function of plain numbers and a device returns; its tensors must not be written to.

    A compiled step that finds the result here takes it as it is, instead of making it from the host's numbers at every
    call: whoever compiles a step calls it once as it is before.

    >>> import torch
    >>> @table
    ... def squares(n, device):
    ...     return torch.arange(n, device=device) ** 2
    >>> squares(3, torch.device("cpu")) is squares(3, torch.device("cpu"))
    True
    """
    kept: dict[tuple[Any, ...], Any] = {}

    @wraps(function)
    def look_up(*arguments: Any) -> Any:
        if arguments not in kept:
            kept[arguments] = function(*arguments)
        return kept[arguments]

    remembering: Any = look_up
    found: F = remembering
    return found
