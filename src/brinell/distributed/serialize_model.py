"""The model as bytes for workers elsewhere."""

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from brinell.core.plan import Plan
from brinell.engine.events import silent
from brinell.errors import ModelError, told
from brinell.evaluation.run_stage import StageContext

# Workers have these; everything else that is not installed is the user's own code and travels with the model.
INSTALLED = ("brinell", "torch", "numpy", "pyarrow", "ray", "__main__")
CPU = torch.device("cpu")


def pack(setup: StageContext, plan: Plan) -> bytes:
    """Setup and plan, the model on the CPU, with the source of the user's own modules."""
    from ray import cloudpickle

    oracle = setup.oracle
    home = oracle.classifier.device
    try:
        quiet = replace(oracle, classifier=oracle.classifier.to(CPU), listener=silent, shrunk=[])
        with _by_value(cloudpickle, [oracle.classifier, *(s.attack for s in plan.stages)]):
            bare = replace(setup, oracle=quiet, listener=silent, recordings=None)
            packed: bytes = cloudpickle.dumps((bare, plan))
    except Exception as error:  # whatever the user's classes raise
        raise ModelError(
            expected="a model that can be pickled, since every worker needs its own",
            got=told(error),
            remedy="Keep open files, locks, connections and generators out of the module, or evaluate in one process.",
        ) from error
    finally:
        oracle.classifier.to(home)
    return packed


@contextmanager
def _by_value(cloudpickle: Any, things: list[Any]) -> Iterator[None]:
    """Pickle classes and functions of the user's own modules by value: workers elsewhere cannot import them."""
    modules = _own_modules(things)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(things: list[Any]) -> list[ModuleType]:
    """The modules these objects come from, and their neighbours, unless they are installed."""
    parts = [p for t in things for p in _parts(t)]
    homes = {p.__module__ if isinstance(p, FunctionType) else type(p).__module__ for p in parts}
    folders = {Path(file).parent for name in homes if (file := _own_file(sys.modules.get(name)))}
    found = []
    for module in list(sys.modules.values()):
        file = _own_file(module)
        if file is not None and any(folder in file.parents for folder in folders):
            found.append(module)
    return found


def _parts(thing: Any) -> list[Any]:
    """The thing and what it is made of: fields of dataclasses, parts of modules, functions that these hold."""
    if isinstance(thing, nn.Module):
        held = [v for m in thing.modules() for v in vars(m).values() if isinstance(v, FunctionType)]
        return [*thing.modules(), *held]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [thing, *(p for f in fields(thing) for p in _parts(getattr(thing, f.name)))]
    return [thing]


def _own_file(module: Any) -> Path | None:
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not isinstance(file, str) or name.partition(".")[0] in INSTALLED or sys.modules.get(name) is not module:
        return None
    path = Path(file).resolve()
    kept = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    elsewhere = [Path(p).resolve() for p in kept if p]
    return None if any(folder in path.parents for folder in elsewhere) else path
