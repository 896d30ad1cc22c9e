"""How the conformance checks object."""

from typing import Any


def require(condition: Any, message: str) -> None:
    """An AssertionError with this sentence unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)
