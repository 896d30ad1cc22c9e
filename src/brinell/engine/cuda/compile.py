"""Functions compiled into few kernels. torch.compile is imported only when needed, since it takes long to load."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch._functorch import config as functorch_config

from brinell.core.attack import Requires, Response
from brinell.engine.attack_step import AttackStep
from brinell.engine.slots import Slots
from brinell.errors import error_text

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Update = Callable[[Slots, Response], Slots]
# Every loss, shape, precision and attack is a version of its own. Beyond the compiler's default limit it would silently
# run uncompiled.
VERSIONS = 1024


def fused(function: F) -> F:
    """Return the function compiled for inputs of fixed shapes; compute its gradients inside `repeatable()`."""
    compiled: Any = torch.compile(function, dynamic=False)

    def run(*inputs: Any) -> Any:
        from torch._dynamo import config

        versions: Any = config
        with versions.patch(recompile_limit=VERSIONS, accumulated_recompile_limit=VERSIONS), repeatable():
            return compiled(*inputs)

    return cast(F, run)


@dataclass
class Refusals:
    """The kinds of calls on which the compiler failed; they run uncompiled, and `note` is called once per kind.

    torch.compile compiles the backward graph only on first use, so a failure can occur at any call.
    """

    note: Callable[[str], None]
    kinds: set[Hashable] = field(default_factory=set)

    def attempt(self, kind: Hashable, compiled: Callable[[], T], plain: Callable[[], T]) -> T:
        """Return compiled(), or plain() if the compiler fails now or has failed before on this kind of call."""
        from torch._dynamo.exc import TorchDynamoException

        if kind not in self.kinds:
            try:
                return compiled()
            except TorchDynamoException as error:
                if "out of memory" in str(error):  # smaller blocks may help
                    raise
                cause = getattr(error, "inner_exception", None) or error
                why = error_text(cause)
                self.note(
                    f"Part of this evaluation cannot be compiled ({why}). It runs without compilation, more slowly."
                )
                self.kinds.add(kind)
        return plain()


def repeatable() -> AbstractContextManager[Any]:
    """Return a context in which several gradients of one output of a compiled function can be computed.

    By default a compiled backward pass may overwrite buffers that the next backward pass needs. The context must be
    active both when the function is compiled and when its backward pass runs.
    """
    functions: Any = functorch_config
    context: AbstractContextManager[Any] = functions.patch(donated_buffer=False)
    return context


@dataclass(frozen=True)
class CompiledStep(AttackStep):
    """An attack step whose update after the response is compiled."""

    _updates: dict[Requires, tuple[Update, Refusals]] = field(default_factory=dict, compare=False, repr=False)

    def update(self, slots: Slots, response: Response, requires: Requires) -> Slots:
        plain = partial(super().update, slots, response, requires)
        if requires not in self._updates:
            plain()  # fills the device caches that the compiled function reads
            self._updates[requires] = fused(partial(super().update, requires=requires)), Refusals(self.oracle.note)
        compiled, refusals = self._updates[requires]
        return refusals.attempt(None, partial(compiled, slots, response), plain)
