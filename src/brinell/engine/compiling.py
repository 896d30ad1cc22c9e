"""Functions compiled into few kernels. Importing the compiler takes longer than all of this package: only on demand."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from brinell.errors import told

F = TypeVar("F", bound=Callable[..., Any])
# Every loss, shape, precision and attack is a version of its own; beyond the compiler's limit it would go on slowly,
# without a word.
VERSIONS = 1024


def fused(function: F, note: Callable[[str], None] = lambda text: None) -> F:
    """The same function compiled, for inputs of fixed shapes; gradients are taken inside `repeatable`.

    What the compiler cannot compile is called as it is from then on, for inputs of those shapes; `note` is told so.
    """
    compiled: Any = torch.compile(function, dynamic=False)
    refused: set[Any] = set()

    def run(*inputs: Any) -> Any:
        from torch._dynamo import config
        from torch._dynamo.exc import TorchDynamoException

        kind = (torch.is_grad_enabled(), *(tuple(v.shape) for v in inputs if isinstance(v, Tensor)))
        if kind in refused:
            return function(*inputs)
        versions: Any = config
        with ExitStack() as settings:
            settings.enter_context(versions.patch(recompile_limit=VERSIONS, accumulated_recompile_limit=VERSIONS))
            settings.enter_context(repeatable())
            try:
                return compiled(*inputs)
            except TorchDynamoException as error:
                note(refusal(error))
                refused.add(kind)
        return function(*inputs)

    return cast(F, run)


def refusal(error: Exception) -> str:
    """What to tell of a compiler that has given up; raises the error again where only memory was short."""
    if "out of memory" in str(error):
        raise error
    cause = getattr(error, "inner_exception", None) or error
    return f"A part of the work cannot be compiled ({told(cause)}); it is done without, more slowly."


def repeatable() -> AbstractContextManager[Any]:
    """For calling what is compiled and for the way back: several gradients can be taken of one answer.

    Buffers that one way back may overwrite would be gone for the next one. The compiler looks at the setting both when
    it compiles and when the way back is gone.
    """
    functions: Any = functorch_config
    context: AbstractContextManager[Any] = functions.patch(donated_buffer=False)
    return context
