"""All errors that a user can cause. Each message says what was expected, what was given, and what to do."""

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Control characters, which can rewrite what a terminal shows, half surrogates, which no file can hold, and characters
# that reverse the direction of text. Tabs and newlines stay.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
REPLACEMENT = "\ufffd"
# The longest text about what was given that a message shows.
LONGEST = 4_000


def printable(text: str) -> str:
    r"""Return the text with the replacement character in place of characters that are unsafe to print.

    >>> printable("a\x1b[31mb\ud800c") == "a\ufffd[31mb\ufffdc"
    True
    """
    return UNSAFE.sub(REPLACEMENT, text)


def _short(text: str) -> str:
    return text if len(str(text)) <= LONGEST else f"{str(text)[:LONGEST]}…"


class BrinellError(Exception):
    """Base class of all errors that Brinell raises on purpose.

    >>> print(InputError(expected="labels in 0..9", got="label 12", remedy="Check the data set's class count."))
    expected labels in 0..9, got label 12. Check the data set's class count.
    """

    def __init__(self, *, expected: str, got: str, remedy: str) -> None:
        # Parts of a message can come from a file of somebody else.
        self.expected, self.got, self.remedy = (printable(str(part)) for part in (expected, _short(got), remedy))
        super().__init__(f"expected {self.expected}, got {self.got}. {self.remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to pickle the error, by keyword arguments, so that it can pass between processes."""
        return partial(type(self), expected=self.expected, got=self.got, remedy=self.remedy), ()


class InputError(BrinellError, ValueError):
    """An error in the data or options: wrong range, dtype, shape, labels or ids."""


class ThreatError(InputError):
    """An error in the threat: a negative eps, an eps in 0-255 units, an unknown norm."""


class ModelError(BrinellError):
    """An error of the model: it is in train mode, mixes rows, has no gradients, or returns probabilities."""


class CallError(ModelError, RuntimeError):
    """An exception that the model or its device raised in one of its calls; it names the call and its samples."""


class PlanError(BrinellError, ValueError):
    """An error in the plan: a plan or attack is unknown, or impossible for this model and threat."""


class RunError(BrinellError):
    """An error of a Run on disk: it is missing, damaged, in use, or does not fit the evaluation."""


class StorageError(BrinellError, OSError):
    """An error of the disk: it is full, a folder is read-only or vanished, or a file cannot be read or written."""


class MissingExtra(BrinellError, ImportError):  # noqa: N818
    """The error that an optional dependency is not installed."""


class MissingName(BrinellError, AttributeError):  # noqa: N818
    """The error that a name of another library, or another spelling of a name, does not exist here."""


class MissingImport(BrinellError, ImportError):  # noqa: N818
    """The error that a name of another library cannot be imported from its replacement."""


# A build of torch for the CPU needs torchvision for the CPU.
SAME_INDEX = (
    "Take both from one index, for the CPU: "
    "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
)


def import_extra(module: str, extra: str, what: str) -> Any:
    """Return an optional dependency as a module, or raise an error that names the pip extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, lacks = (name.partition(".")[0] for name in (module, error.name or ""))
        if lacks not in ("", package):
            got, remedy = f"an installation of {package} without {lacks}, which it imports", f"pip install {lacks}."
            remedy += f" {SAME_INDEX}" if lacks == "torchvision" else ""
        else:
            got, remedy = "an installation without it", f"pip install 'brinell[{extra}]' (in a clone '.[{extra}]')."
        raise MissingExtra(expected=what, got=got, remedy=f"Install it: {remedy}") from None
    except RuntimeError as error:
        if not (remedy := mismatch(error)):
            raise
        raise MissingExtra(expected=what, got=f"{module}, which fails: {first_line(error)}", remedy=remedy) from None


def mismatch(error: BaseException) -> str:
    """Return what to do about torch and torchvision of different builds if the error comes from them, else "".

    >>> mismatch(RuntimeError("operator torchvision::nms does not exist"))[:52]
    'torch and torchvision do not belong together. Take b'
    """
    torn = "torchvision::" in str(error)
    return f"torch and torchvision do not belong together. {SAME_INDEX}" if torn else ""


def check_output_paths(*paths: Path | None) -> None:
    """Raise an error if a file to write has no folder or is a folder itself, before long computations.

    >>> check_output_paths(None, Path("missing/a.csv"))
    Traceback (most recent call last):
    brinell.errors.InputError: expected a file in an existing folder, got missing/a.csv. Make the folder missing first.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            remedy = f"Make the folder {path.parent} first."
            raise InputError(expected="a file in an existing folder", got=str(path), remedy=remedy)
        if path is not None and path.is_dir():
            remedy = f"Name a file, e.g. {path / 'result'}{path.suffix}."
            raise InputError(expected="a file to write", got=f"{path}, which is a folder", remedy=remedy)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message.

    >>> first_line(ValueError("bad header\\n  at byte 7")), first_line(MemoryError())
    ('bad header', 'no message')
    """
    return next(iter(str(error).strip().splitlines()), "no message")


def error_text(error: BaseException) -> str:
    """Return the class of an error and the first line of its message.

    >>> error_text(KeyError("weight"))
    "KeyError: 'weight'"
    """
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def reported_as(kind: type[BrinellError], *causes: type[Exception], expected: str, remedy: str) -> Iterator[None]:
    """Turn exceptions of the classes `causes` into an error of the class `kind`; errors of Brinell pass unchanged.

    >>> with reported_as(InputError, ValueError, expected="a number", remedy="Write 3."):
    ...     float("three")
    Traceback (most recent call last):
    brinell.errors.InputError: expected a number, got ValueError: could not convert ... Write 3.
    """
    try:
        yield
    except BrinellError:
        raise
    except causes as error:
        raise kind(expected=expected, got=error_text(error), remedy=remedy) from error


def did_you_mean(value: object, known: Iterable[object], otherwise: str = "Check the spelling.") -> str:
    """Return a question that offers the most similar known names, ignoring case; `otherwise` if none is similar.

    >>> did_you_mean("Linfty", ["Linf", "L2"]), did_you_mean("PGD20", ["cw20", "pgd20"]), did_you_mean("x", ["abc"])
    ("Did you mean 'Linf'?", "Did you mean 'pgd20'?", 'Check the spelling.')
    """
    names = {name.casefold(): name for name in known if isinstance(name, str)}
    given = str(value).casefold()
    near = [given] if given in names else difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(names[name]) for name in near)}?" if near else otherwise


def one_of(what: str, value: T, known: Iterable[T]) -> T:
    """Return the value if it is a known name, else raise a PlanError that offers similar names.

    >>> one_of("a colour", "red", ["red", "blue"])
    'red'
    """
    names = list(known)
    if value in names:
        return value
    raise PlanError(
        expected=f"{what} among {', '.join(map(str, names))}", got=repr(value), remedy=did_you_mean(value, names)
    )
