"""Checks of hyper-parameters that every attack makes when it is built."""

from brinell.errors import PlanError, one_of
from brinell.ops.losses import LOSSES


def a_loss(name: str) -> None:
    """Refuse an unknown loss, or one that is given values to match instead of classes."""
    one_of("a loss", name, [n for n, loss in LOSSES.items() if not loss.matches])


def margins(name: str) -> None:
    """Refuse a loss that is no difference of logits: its zero would not be the boundary."""
    one_of("a margin loss", name, ("margin", "minimum-margin", "margin-towards"))


WHOLE = ("steps",)


def positive(**numbers: float | int) -> None:
    """Refuse numbers that are not positive."""
    for name, value in numbers.items():
        whole = name not in WHOLE or isinstance(value, int)
        if not (whole and value > 0):
            raise PlanError(
                expected=f"{name} above 0{', a whole number' if name in WHOLE else ''}",
                got=f"{name} = {value}",
                remedy="Leave it out to get the default.",
            )
