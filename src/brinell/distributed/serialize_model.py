"""Pickle the model, with the user's own modules, for workers on other machines."""

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
from brinell.errors import ModelError, error_text
from brinell.evaluation.context import StageContext

# Every worker has these packages. Other code that is not installed is the user's own and is pickled with the model.
INSTALLED = ("brinell", "torch", "numpy", "pyarrow", "ray", "__main__")
CPU = torch.device("cpu")


def serialize(context: StageContext, plan: Plan) -> bytes:
    """Pickle the stage context and the plan, with the model on the CPU and the user's own modules by value."""
    from ray import cloudpickle

    oracle = context.oracle
    device = oracle.classifier.device
    try:
        on_cpu = replace(oracle, classifier=oracle.classifier.to(CPU), listener=silent, shrunk=[])
        with _by_value(cloudpickle, [oracle.classifier, *(s.attack for s in plan.stages_for(context.threat))]):
            picklable = replace(context, oracle=on_cpu, listener=silent, graph_cache=None)
            serialized: bytes = cloudpickle.dumps((picklable, plan))
    except Exception as error:  # the user's classes may raise anything
        raise ModelError(
            expected="a model that can be pickled, because every worker needs a copy",
            got=error_text(error),
            remedy="Keep open files, locks, connections and generators out of the module, or evaluate in one process.",
        ) from error
    finally:
        oracle.classifier.to(device)
    return serialized


@contextmanager
def _by_value(cloudpickle: Any, objects: list[Any]) -> Iterator[None]:
    """Pickle classes and functions of the user's modules by value, since other machines lack these modules."""
    modules = _user_modules(objects)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _user_modules(objects: list[Any]) -> list[ModuleType]:
    """Return the modules that define these objects, and other modules in the same folders; no installed packages."""
    components = [c for value in objects for c in _components(value)]
    names = {c.__module__ if isinstance(c, FunctionType) else type(c).__module__ for c in components}
    folders = {Path(file).parent for name in names if (file := _user_file(sys.modules.get(name)))}
    loaded = [(module, _user_file(module)) for module in list(sys.modules.values())]
    return [module for module, file in loaded if file is not None and any(f in file.parents for f in folders)]


def _components(value: Any) -> list[Any]:
    """Return an object and its components: dataclass fields, submodules, and functions that modules hold."""
    if isinstance(value, nn.Module):
        functions = [v for m in value.modules() for v in vars(m).values() if isinstance(v, FunctionType)]
        return [*value.modules(), *functions]
    if is_dataclass(value) and not isinstance(value, type):
        return [value, *(c for f in fields(value) for c in _components(getattr(value, f.name)))]
    return [value]


def _user_file(module: Any) -> Path | None:
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not isinstance(file, str) or name.partition(".")[0] in INSTALLED or sys.modules.get(name) is not module:
        return None
    path = Path(file).resolve()
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if any(Path(folder).resolve() in path.parents for folder in installed if folder) else path
