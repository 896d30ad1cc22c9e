"""The network compiled into few kernels, and what is known of kernels that earlier processes compiled.

torch.compile is imported only when needed, since it takes long to load. Only the network is compiled: the attack's own
arithmetic is a small share of a captured iteration, and compiling it for every attack took most of a minute.
"""

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch._functorch import config as functorch_config

from brinell.core.model import Classifier
from brinell.errors import error_text
from brinell.paths import home
from brinell.storage import write_atomic
from brinell.untrusted import read_json

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
# Every shape, precision and kind of pass is a version of its own. Beyond the compiler's default limit it would silently
# run uncompiled.
VERSIONS = 1024
# The folder of compiled kernels and the list of what they compute, in Brinell's cache; the compiler's own variable.
KERNELS, INDEX, VARIABLE = "kernels", "kernels.json", "TORCHINDUCTOR_CACHE_DIR"


def fused(function: F) -> F:
    """Return the function compiled for inputs of fixed shapes; compute its gradients inside `repeatable()`."""
    keep_kernels()
    compiled: Any = torch.compile(function, dynamic=False)

    def run(*inputs: Any) -> Any:
        from torch._dynamo import config

        versions: Any = config
        with versions.patch(recompile_limit=VERSIONS, accumulated_recompile_limit=VERSIONS), repeatable():
            return compiled(*inputs)

    return cast(F, run)


def keep_kernels() -> None:
    """Let the compiler keep its kernels in Brinell's cache, for later processes, unless the user chose a folder."""
    folder = home() / KERNELS
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault(VARIABLE, str(folder))


def kernel_name(classifier: Classifier, shape: tuple[int, ...], precision: str, rows: int) -> str:
    """Return the name of a compiled network: a hash of its structure, the shape of a call, versions and the device."""
    there = torch.cuda.get_device_name(classifier.device) if classifier.device.type == "cuda" else "cpu"
    facts = (repr(classifier.torch_module), shape, precision, rows, torch.__version__, there)
    return hashlib.sha256("|".join(map(str, facts)).encode()).hexdigest()[:32]


def known_kernels() -> Mapping[str, Any]:
    """Return the seconds that each compiled network took, by name; empty if the kernels are in another folder."""
    if os.environ.get(VARIABLE, str(home() / KERNELS)) != str(home() / KERNELS) or not (home() / KERNELS).is_dir():
        return {}
    try:
        stored = read_json(home() / INDEX)
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def remember_kernels(name: str, seconds: float, file: Path | None = None) -> None:
    """Note that the kernels of this network are compiled; where the cache cannot be written, do nothing."""
    with suppress(OSError):
        file = home() / INDEX if file is None else file
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps({**known_kernels(), name: round(seconds, 3)}, indent=1).encode())


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
