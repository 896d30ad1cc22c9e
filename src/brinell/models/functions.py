"""Functions, bound methods and estimators as models: found out by what they are and by one call."""

import dis
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brinell.errors import InputError, ModelError, error_text
from brinell.models.adapters import from_sklearn, from_tensorflow
from brinell.models.adapters.bridge import PROBABILITIES, as_logits, numbers, probabilities
from brinell.models.wrap import TorchClassifier, wrap

BLACK_BOX = "brinell.models.from_function(f, version='1', outputs='labels', classes=10)"


class FunctionModule(nn.Module):
    """A function of a batch as a module: of a tensor, with gradients, or of an array, without.

    The modules and tensors that the function reads (its object, its closure, its globals, bound arguments) are part of
    the module, so they are moved with it, checked, and hashed into the fingerprint; so is the function's code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.code = code_digest(function)
        self.takes_arrays: bool | None = None
        parts = list(_parts(function))
        self.parts = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
        for i, tensor in enumerate(part for part in parts if isinstance(part, Tensor)):
            self.register_buffer(f"tensor{i}", tensor)
        # The mode of the parts is the user's.
        self.training = self.parts.training = False

    def extra_repr(self) -> str:
        """Return the function's name and a hash of its code as part of the module's repr, which is fingerprinted."""
        return f"{name_of(self.function)} {self.code}"

    def forward(self, x: Tensor) -> Any:
        if self.takes_arrays is None:
            self.takes_arrays = self._takes_arrays(x)
        if not self.takes_arrays:
            return self.function(x)
        raw = np.asarray(self.function(numbers(x)))
        if raw.dtype.kind not in "fc" or raw.ndim not in (1, 2):
            raise ModelError(
                expected="logits or probabilities, one row per input, from the function",
                got=f"an array of {raw.dtype} of shape {raw.shape}",
                remedy=f"Return logits. For class labels write {BLACK_BOX}.",
            )
        return as_logits(raw, PROBABILITIES if probabilities(raw) else "logits", len(x)).to(x.device)

    def _takes_arrays(self, x: Tensor) -> bool:
        """Return whether the function takes or returns arrays; raise a ModelError if it takes neither."""
        try:
            with torch.no_grad():
                raw = self.function(x.detach().clone())
        except Exception as error:  # whatever the user's function raises on a tensor
            try:
                self.function(numbers(x))
            except Exception:
                raise ModelError(
                    expected=f"a function of a batch of inputs of shape {tuple(x.shape[1:])}",
                    got=f"{error_text(error)} in {name_of(self.function)}",
                    remedy="Let the function take a tensor (or a NumPy array) and return one row of logits per input.",
                ) from error
            return True
        return not isinstance(raw, Tensor) and isinstance(raw, np.ndarray | list)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or that of the class of a callable object."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _parts(function: Any) -> Iterator[nn.Module | Tensor]:
    """Yield the modules and tensors that a function reads, each once, in an order that depends on the code alone."""
    seen: set[int] = set()
    for value in _read(function):
        for part in (value, *vars(value).values()) if hasattr(value, "__dict__") else (value,):
            if isinstance(part, nn.Module | Tensor) and id(part) not in seen:
                seen.add(id(part))
                yield part
            if isinstance(part, nn.Module):
                break


def _read(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _read(function.func)
    elif isinstance(function, MethodType):
        yield function.__self__
        yield from () if isinstance(function.__self__, nn.Module) else _read(function.__func__)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        named = [i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"]
        yield from (function.__globals__[name] for name in named if name in function.__globals__)
    else:
        yield function


def code_digest(function: Any) -> str:
    """Return a hash of a function's code, without the places where it is stored.

    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1) != code_digest(lambda x: x + 2)
    True
    """
    inner = function.func if isinstance(function, functools.partial) else function
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    h = hashlib.sha256(name_of(function).encode() if code is None else b"")
    for part in () if code is None else _codes(code):
        h.update(part.co_code + repr([c for c in part.co_consts if not isinstance(c, CodeType)]).encode())
        h.update(repr(part.co_names).encode())
    return h.hexdigest()


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _made_by(model: Any, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(model).__mro__)


def _from_estimator(estimator: Any) -> TorchClassifier:
    classes = getattr(estimator, "classes_", None)
    if classes is not None and list(classes) != list(range(len(classes))):
        raise InputError(
            expected=f"an estimator of the classes 0 to {len(classes) - 1}",
            got=f"the classes {', '.join(map(str, classes))}"[:200],
            remedy="Labels are positions: pass brinell.models.from_sklearn(clf) and y = "
            "numpy.searchsorted(clf.classes_, y).",
        )
    return from_sklearn(estimator)


def as_model(given: Any, x: Tensor | None = None) -> TorchClassifier | None:
    """Return a classifier of an estimator, a Keras model, a function or a bound method; None for anything else.

    One call on the inputs x tells whether a function takes tensors, and has gradients, or arrays; without x, its first
    call in the evaluation does.
    """
    if isinstance(given, type):
        return None
    if _made_by(given, "sklearn") and hasattr(given, "predict"):
        return _from_estimator(given)
    if _made_by(given, "keras") and callable(given):
        return from_tensorflow(given)
    if not callable(given):
        return None
    module = FunctionModule(given)
    if x is not None:
        module(x)
    return wrap(module, name=name_of(given), differentiable=not module.takes_arrays)
