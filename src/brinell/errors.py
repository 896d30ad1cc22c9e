"""Every error a user can cause, in one tree. A message says what was expected, what came and what to do."""

import difflib
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class BrinellError(Exception):
    """Base of all errors raised on purpose.

    >>> print(InputError(expected="labels in 0..9", got="label 12", remedy="Check the data set's class count."))
    expected labels in 0..9, got label 12. Check the data set's class count.
    """

    def __init__(self, *, expected: str, got: str, remedy: str) -> None:
        self.expected, self.got, self.remedy = expected, got, remedy
        super().__init__(f"expected {expected}, got {got}. {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by keyword, so that an error crosses process borders."""
        return _rebuild, (type(self), self.expected, self.got, self.remedy)


def _rebuild(kind: type[BrinellError], expected: str, got: str, remedy: str) -> BrinellError:
    return kind(expected=expected, got=got, remedy=remedy)


class InputError(BrinellError, ValueError):
    """The data do not fit the contract: range, dtype, shape, labels, ids."""


class ThreatError(InputError):
    """The threat model makes no sense: a negative eps, eps in 0-255 units, an unknown norm."""


class ModelError(BrinellError):
    """The model cannot be evaluated as it is: train mode, mixed rows, no gradients, probabilities."""


class PlanError(BrinellError, ValueError):
    """The plan or attack is unknown or impossible here."""


class RunError(BrinellError):
    """The Run on disk is missing, damaged, of another evaluation, or in use."""


class MissingExtra(BrinellError, ImportError):  # noqa: N818
    """An optional dependency is needed and not installed."""


def first_line(error: BaseException) -> str:
    """An error's message, as much of it as fits into another one.

    >>> first_line(ValueError("bad header\\n  at byte 7")), first_line(MemoryError())
    ('bad header', 'no message')
    """
    return next(iter(str(error).strip().splitlines()), "no message")


def error_text(error: BaseException) -> str:
    """An error of somebody else's in one line: its kind and what it says.

    >>> error_text(KeyError("weight"))
    "KeyError: 'weight'"
    """
    return f"{type(error).__name__}: {first_line(error)}"


def did_you_mean(value: object, known: Iterable[object], otherwise: str = "Check the spelling.") -> str:
    """A question with the names nearest to the value, upper and lower case aside, or what else to do.

    >>> did_you_mean("Linfty", ["Linf", "L2"]), did_you_mean("PGD20", ["cw20", "pgd20"]), did_you_mean("x", ["abc"])
    ("Did you mean 'Linf'?", "Did you mean 'pgd20'?", 'Check the spelling.')
    """
    names = {name.casefold(): name for name in known if isinstance(name, str)}
    asked = str(value).casefold()
    near = [asked] if asked in names else difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(names[name]) for name in near)}?" if near else otherwise


def one_of(what: str, value: T, known: Iterable[T]) -> T:
    """The value, if it is a known name; else a PlanError that offers the nearest ones.

    >>> one_of("a colour", "red", ["red", "blue"])
    'red'
    """
    names = list(known)
    if value in names:
        return value
    raise PlanError(
        expected=f"{what} among {', '.join(map(str, names))}", got=repr(value), remedy=did_you_mean(value, names)
    )
