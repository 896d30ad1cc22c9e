"""Checks of the hyper-parameters with which attacks are built."""

from brinell.errors import PlanError, one_of
from brinell.ops.losses import LOSSES

SIGNED_MARGINS = ("margin", "minimum-margin", "margin-towards")
"""Losses that are a difference of two logits: positive exactly where the model is wrong."""


def check_loss(name: str) -> None:
    """Refuse an unknown loss, and a loss that matches given values instead of comparing classes."""
    one_of("a loss", name, [n for n, loss in LOSSES.items() if not loss.matches])


def check_margin_loss(name: str) -> None:
    """Refuse a loss that is not a difference of two logits, i.e. not zero exactly on the decision boundary."""
    one_of("a margin loss", name, SIGNED_MARGINS)


def check_numbers(sound: bool, expected: str, **numbers: float | int | None) -> None:
    """Unless `sound` is true, raise a PlanError with the text `expected` and the hyper-parameters `numbers`."""
    if not sound:
        got = ", ".join(f"{name} = {value}" for name, value in numbers.items())
        raise PlanError(expected=expected, got=got, remedy=f"Leave out {', '.join(numbers)} for the default.")


def check_positive(**numbers: float | int) -> None:
    """Refuse hyper-parameters that are not positive."""
    for name, value in numbers.items():
        check_numbers(value > 0, f"{name} above 0", **{name: value})


def check_whole(**numbers: float | int) -> None:
    """Refuse hyper-parameters that are not positive integers."""
    for name, value in numbers.items():
        check_numbers(isinstance(value, int) and value > 0, f"{name} above 0, as a whole number", **{name: value})
