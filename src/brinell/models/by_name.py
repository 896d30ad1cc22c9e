"""Load a model by its name: a zoo model, a function in a file or module, or the output folder of `brinell train`."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import nn

from brinell.errors import BrinellError, ModelError, did_you_mean, first_line, mismatch
from brinell.models import zoo
from brinell.models.adapters import from_onnx
from brinell.models.demo import demo_net
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo.pretrained import TIMM_PREFIX, load_timm
from brinell.results.run import open_runs

# Suffixes of weight files.
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".keras", ".mat")
ONNX = ".onnx"
# How many functions of a file a message names.
NAMED = 5

DEMO = "demo"
ZOO = "zoo:"
# The name of a module, such as package.module.
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def expand(specs: Iterable[str]) -> list[str]:
    """Return the names of all models that `specs` stand for, in order and without repetition.

    "zoo:PATTERN" stands for the models of the zoo that can be loaded and match the pattern (* matches anything), a text
    file (.txt) for the models on its lines (# starts a comment), and a folder of Runs for the models of these Runs, by
    the names that the Runs store. Every other name stands for itself.

    >>> expand(["demo", "zoo:cifar10/L2/Rice*", "demo"])
    ['demo', 'cifar10/L2/Rice2020Overfitting']
    """
    return list(dict.fromkeys(name for spec in specs for name in _expanded(spec)))


def _expanded(spec: str) -> list[str]:
    # Imported here, as in `load_model`.
    from brinell.train import folder

    path = Path(spec)
    if spec.startswith(ZOO):
        pattern = spec.removeprefix(ZOO)
        names = [c.name for c in zoo.cards().values() if c.loadable and fnmatchcase(c.name, pattern)]
        if not names:
            raise ModelError(
                expected="a pattern that matches models of the zoo which can be loaded, such as zoo:cifar10/Linf/*",
                got=repr(spec),
                remedy="List the names: brinell zoo list --loadable.",
            )
        return names
    if path.suffix == ".txt" and path.is_file():
        lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
        return [line for line in lines if line]
    if spec != DEMO and path.is_dir() and not folder.is_training(spec) and (runs := open_runs(path)):
        return [run.identity.model.name or str(run.path) for run in runs]
    return [spec]


def load_model(spec: str) -> Any:
    """Load the model `spec`: "demo", a model of the zoo, an output folder of `brinell train`, or FILE.py:FACTORY.

    timm:NAME is a model of timm, with its own normalisation. An .onnx file is a model. So is a file with the weights of
    a zoo model, which is recognised by its SHA-256.
    package.module:FACTORY imports an installed module, or one in the working directory.
    FACTORY names a function without arguments that returns a module or a classifier, or names such an object itself.
    The name of such a model is FILE.py:FACTORY, unless `wrap` gave it another one.

    >>> load_model("demo").name
    'demo'
    """
    # Imported here: training needs evaluation, which needs this module.
    from brinell.train import folder

    if spec == DEMO:
        return wrap(demo_net(), name=DEMO)
    if folder.is_training(spec):
        return folder.load(spec)
    if spec in zoo.cards():
        return zoo.load(spec)
    if Path(spec).suffix in WEIGHTS and Path(spec).is_file():
        card = zoo.card_of_file(Path(spec))
        if card is not None:
            return zoo.load(card.name, checkpoint=spec)
    if spec.startswith(TIMM_PREFIX):
        return load_timm(spec.removeprefix(TIMM_PREFIX))
    if Path(spec).suffix == ONNX and Path(spec).is_file():
        return from_onnx(spec)
    file, _, factory = spec.rpartition(":")
    path = Path(file)
    if DOTTED.fullmatch(file) and not path.is_file() and _importable(file):
        return _named(_made(_imported(file), factory, file), spec)
    if not file or not path.is_file():
        raise ModelError(
            expected="a model as FILE.py:FACTORY or package.module:FACTORY, the output folder of brinell train, a "
            "model of the zoo, timm:NAME, FILE.onnx, or demo",
            got=repr(spec),
            remedy=_instead(spec),
        )
    return _named(_made(_module(path), factory, path.name, path.parent), f"{path.name}:{factory}")


def _named(made: Any, name: str) -> Any:
    """Return a model with this name instead of its class's: half of all networks are of the class Sequential."""
    model = wrap(made) if isinstance(made, nn.Module) else made
    if isinstance(model, TorchClassifier) and model.name == type(model.module).__name__:
        return replace(model, name=name)
    return model


def _made(module: Any, factory: str, where: str, folder: Path | None = None) -> Any:
    """Return what the function `factory` of a module returns, or the model of that name; `where` names the module."""
    made = getattr(module, factory, None)
    if made is None:
        values = {name: v for name, v in vars(module).items() if callable(v) and not name.startswith("_")}
        names = list(values)
        own = [n for n, v in values.items() if getattr(v, "__module__", "") == module.__name__][:NAMED]
        raise ModelError(
            expected=f"a function {factory} in {where}",
            got="no such function",
            remedy=did_you_mean(factory, names, f"It has {', '.join(own)}." if own else "Check the spelling."),
        )
    if not callable(made) or isinstance(made, nn.Module):
        return made
    name = where.removesuffix(".py")
    call = f"python -c 'import {name}; {name}.{factory}()'"
    call = call if folder in (None, Path()) else f"cd {folder} && {call}"
    with _users_code(where, f"a function {factory} that needs no arguments and returns a model", call):
        return made()


def _importable(module: str) -> bool:
    """Return whether the package that a dotted name begins with can be imported from here."""
    with _working_directory_first():
        return importlib.util.find_spec(module.partition(".")[0]) is not None


def _imported(module: str) -> Any:
    with (
        _working_directory_first(),
        _users_code(module, "a Python module that can be imported", f"python -c 'import {module}'"),
    ):
        return importlib.import_module(module)


@contextmanager
def _working_directory_first() -> Iterator[None]:
    """Let imports find the modules of the working directory, as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(os.getcwd())


def _instead(spec: str) -> str:
    """Return the remedy of the error for `spec`, which names no model: what to write instead."""
    path, example = Path(spec), "Write e.g. my_model.py:make_net."
    if path.suffix in WEIGHTS:
        return f"Write a function that builds the network, loads these weights and returns the network. {example}"
    if path.suffix == ".py" and path.is_file():
        return f"Name the function of this file that makes the model, e.g. {spec}:make_net."
    file, dot, name = spec.replace(":", ".").rpartition(".")
    if dot and Path(f"{file.replace('.', '/')}.py").is_file():
        return f"Did you mean '{file.replace('.', '/')}.py:{name}'?"
    if ".py" in spec:
        return f"Check the path of the file. {example}"
    if did_you_mean(spec, ["demo"], ""):
        return did_you_mean(spec, ["demo"])
    try:
        return f"Did you mean {zoo.find(spec).name!r}?"
    except ModelError as error:
        return error.remedy if error.remedy.startswith("Did you mean") else example


@contextmanager
def _users_code(where: str, expected: str, call: str) -> Iterator[None]:
    """Turn an exception from the user's file or module into a ModelError with a command that shows the traceback."""
    try:
        yield
    except BrinellError:
        raise
    except Exception as error:
        raise ModelError(
            expected=expected,
            got=f"{type(error).__name__} in {where}: {first_line(error)}",
            remedy=mismatch(error) or f"To see the traceback, run: {call}",
        ) from error


def _module(path: Path) -> Any:
    name = f"brinell_user_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ModelError(expected="a Python file", got=str(path), remedy="Put the factory into a .py file.")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    # The file may import its neighbours, as a script may.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with _users_code(path.name, "a Python file that can be imported", f"python {path}"):
            module_spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module
