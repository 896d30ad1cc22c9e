"""Checks of hyper-parameters that every attack makes when it is built."""

import difflib
from collections.abc import Iterable

from brinell.errors import PlanError
from brinell.ops.losses import LOSSES


def one_of(what: str, value: str | None, known: Iterable[str | None]) -> None:
    """Refuse an unknown name, offering the nearest ones."""
    names = list(known)
    if value in names:
        return
    near = difflib.get_close_matches(str(value), [n for n in names if n], n=3, cutoff=0.3)
    raise PlanError(
        expected=f"{what} among {', '.join(map(str, names))}",
        got=repr(value),
        remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "Check the spelling.",
    )


def a_loss(name: str) -> None:
    """Refuse an unknown loss."""
    one_of("a loss", name, LOSSES)


def positive(**numbers: float | int) -> None:
    """Refuse numbers that are not positive."""
    for name, value in numbers.items():
        if not value > 0:
            raise PlanError(
                expected=f"{name} above 0", got=f"{name} = {value}", remedy="Leave it out to get the default."
            )
