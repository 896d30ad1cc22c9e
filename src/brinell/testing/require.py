"""What the conformance checks share: how they object, and how much rounding they forgive."""

from typing import Any

# As in `brinell.core.threat`: what rounding to float32 may add to a distance, as a share of it.
SLACK = 1e-6


def require(condition: Any, message: str) -> None:
    """An AssertionError with this sentence unless the condition holds."""
    if not bool(condition):
        raise AssertionError(message)
