"""The assertion of the conformance checks."""

from typing import Any


def require(condition: Any, message: str) -> None:
    """Raise AssertionError with this message unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)
