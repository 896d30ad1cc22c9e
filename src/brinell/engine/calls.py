"""The calls of the model: their number and the samples of the last one, for messages about a failure or a hang."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.errors import BrinellError, CallError, error_text

# At most this many samples are named.
NAMED = 8
REMEDY = "Correct the model, or restart its device or service."


@dataclass(eq=False)
class Calls:
    """The number of calls so far, the sample ids of the last call, and when it began (None after it has ended).

    `rows` is the number of rows in all calls, forward passes with their padding, also of replayed CUDA graphs.

    >>> calls = Calls()
    >>> with calls.call(torch.tensor([7, 7, 9])):
    ...     print(calls)
    call 1 of the model, on the samples 7, 9
    """

    count: int = 0
    ids: Tensor | None = None
    begun: float | None = None
    rows: int = 0
    error: Exception | None = None
    """The exception in the last call that failed."""

    def __str__(self) -> str:
        text = f"call {self.count:,} of the model"
        if self.ids is None:
            return text
        try:
            ids = list(dict.fromkeys(self.ids.tolist()))
        except RuntimeError:  # the device that holds them is lost
            return text
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        return f"{text}, on the sample{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:NAMED]))}{more}"

    @contextmanager
    def call(self, ids: Tensor | None) -> Iterator[None]:
        """Count a call. If `ids` is given, turn an exception of the model into a CallError that names the call.

        Lack of memory passes unchanged: the caller tries again with fewer rows.
        """
        self.count, self.ids, self.begun = self.count + 1, ids, time.monotonic()
        try:
            yield
        except BrinellError:
            raise
        except Exception as error:
            self.error = error
            if ids is None or out_of_memory(error):
                raise
            raise self.failed(error) from error
        finally:
            self.begun = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turn an exception of the model, in any call, or of a lost device into a CallError that names the call."""
        try:
            yield
        except BrinellError:
            raise
        except Exception as error:
            if error is not self.error and not lost_device(error):
                raise
            raise self.failed(error) from error

    def failed(self, error: Exception) -> CallError:
        """Return the error that says which call failed."""
        return CallError(
            expected="a model that answers every call", got=f"{error_text(error)}, in {self}", remedy=REMEDY
        )


def out_of_memory(error: Exception) -> bool:
    """Return whether the device has too little memory.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), out_of_memory(ValueError("shape"))
    (True, False)
    """
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate" in text)
    )


def lost_device(error: Exception) -> bool:
    """Return whether the accelerator failed: the error can surface anywhere, also outside a call of the model.

    >>> lost_device(RuntimeError("CUDA error: device-side assert triggered")), lost_device(RuntimeError("shape"))
    (True, False)
    """
    kinds = getattr(torch, "AcceleratorError", ())  # of newer versions of torch
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and "CUDA error" in str(error))
