"""Functions compiled into few kernels. Importing the compiler takes longer than all of this package: only on demand."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import torch
from torch._functorch import config as functorch_config

F = TypeVar("F", bound=Callable[..., Any])
# Every loss, shape, precision and attack is a version of its own; beyond the compiler's limit it would go on slowly,
# without a word.
VERSIONS = 1024


def fused(function: F) -> F:
    """The same function compiled, for inputs of fixed shapes, so that several gradients can be taken of one answer."""
    compiled: Any = torch.compile(function, dynamic=False)
    functions: Any = functorch_config

    def run(*inputs: Any) -> Any:
        from torch._dynamo import config

        versions: Any = config
        with ExitStack() as settings:
            settings.enter_context(versions.patch(recompile_limit=VERSIONS, accumulated_recompile_limit=VERSIONS))
            # Buffers that one way back may overwrite would be gone for the next one.
            settings.enter_context(functions.patch(donated_buffer=False))
            return compiled(*inputs)

    return cast(F, run)
