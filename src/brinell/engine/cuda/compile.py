"""Functions compiled into few kernels. Importing the compiler takes longer than all of this package: only on demand."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch._functorch import config as functorch_config

from brinell.errors import error_text

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# Every loss, shape, precision and attack is a version of its own; beyond the compiler's limit it would go on slowly,
# without a word.
VERSIONS = 1024


def fused(function: F) -> F:
    """The same function compiled, for inputs of fixed shapes; gradients are taken inside `repeatable`."""
    compiled: Any = torch.compile(function, dynamic=False)

    def run(*inputs: Any) -> Any:
        from torch._dynamo import config

        versions: Any = config
        with ExitStack() as settings:
            settings.enter_context(versions.patch(recompile_limit=VERSIONS, accumulated_recompile_limit=VERSIONS))
            settings.enter_context(repeatable())
            return compiled(*inputs)

    return cast(F, run)


@dataclass
class Refusals:
    """What the compiler cannot compile is done as it is from then on, kind by kind, and `note` is told so.

    Not decided by whoever compiles: the way back is compiled when it is first gone.
    """

    note: Callable[[str], None]
    kinds: set[Hashable] = field(default_factory=set)

    def attempt(self, kind: Hashable, compiled: Callable[[], T], plain: Callable[[], T]) -> T:
        """The answer of the compiled way, or of the plain one where the compiler has refused this kind of work."""
        from torch._dynamo.exc import TorchDynamoException

        if kind not in self.kinds:
            try:
                return compiled()
            except TorchDynamoException as error:
                if "out of memory" in str(error):  # which smaller calls may mend
                    raise
                cause = getattr(error, "inner_exception", None) or error
                self.note(
                    f"A part of the work cannot be compiled ({error_text(cause)}); it is done without, more slowly."
                )
                self.kinds.add(kind)
        return plain()


def repeatable() -> AbstractContextManager[Any]:
    """For calling what is compiled and for the way back: several gradients can be taken of one answer.

    Buffers that one way back may overwrite would be gone for the next one. The compiler looks at the setting both when
    it compiles and when the way back is gone.
    """
    functions: Any = functorch_config
    context: AbstractContextManager[Any] = functions.patch(donated_buffer=False)
    return context
