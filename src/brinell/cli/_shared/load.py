"""Models and data named on the command line."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.data.load import load
from brinell.errors import BrinellError, InputError, ModelError, PlanError, did_you_mean, first_line
from brinell.evaluation.coerce import as_classifier
from brinell.models import zoo
from brinell.train.folder import is_training
from brinell.train.folder import load as training

# How files of weights end.
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".onnx", ".h5", ".keras")
# What brinell.data.load can be told besides the source and n.
OPTIONS = ("split", "corruption", "severity", "version", "preprocessing", "paths", "root")


def model(spec: str) -> Classifier:
    """A classifier from "demo", the folder of a training, a model of the zoo, or FILE.py:FACTORY.

    FACTORY is a function without arguments that returns a module or classifier.
    """
    if spec == "demo":
        return as_classifier("demo")
    if is_training(spec):
        return training(spec)
    if spec in zoo.cards():
        return zoo.load(spec)
    file, _, factory = spec.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise ModelError(
            expected="a model as FILE.py:FACTORY, the folder of a training, a model of the zoo, or demo",
            got=repr(spec),
            remedy=_instead(spec),
        )
    module = _module(path)
    made = getattr(module, factory, None)
    if made is None:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ModelError(
            expected=f"a function {factory} in {path.name}",
            got="none of that name",
            remedy=did_you_mean(factory, names),
        )
    if not callable(made) or isinstance(made, nn.Module):
        return as_classifier(made)
    call = f"cd {path.parent} && python -c 'import {path.stem}; {path.stem}.{factory}()'"
    with _users_code(path, f"a function {factory} that needs no arguments and returns a model", call):
        made = made()
    return as_classifier(made)


def _instead(spec: str) -> str:
    """What to write instead of something that names no model."""
    path, example = Path(spec), "E.g. --model my_model.py:make_net."
    if path.suffix in WEIGHTS:
        return f"Weights need their network: write a function that builds it, loads them and returns it. {example}"
    if path.suffix == ".py" and path.is_file():
        return f"Name the function in it that makes the model: --model {spec}:make_net."
    file, dot, name = spec.replace(":", ".").rpartition(".")
    if dot and Path(f"{file.replace('.', '/')}.py").is_file():
        return f"Did you mean '{file.replace('.', '/')}.py:{name}'?"
    if ".py" in spec:
        return f"Check the path of the file. {example}"
    if did_you_mean(spec, ["demo"], ""):
        return did_you_mean(spec, ["demo"])
    try:
        return f"Did you mean {zoo.find(spec).name!r}?"
    except PlanError as error:
        return error.remedy if error.remedy.startswith("Did you mean") else example


@contextmanager
def _users_code(path: Path, expected: str, call: str) -> Iterator[None]:
    """What goes wrong in the user's file is told in one sentence."""
    try:
        yield
    except BrinellError:
        raise
    except Exception as error:
        raise ModelError(
            expected=expected,
            got=f"{type(error).__name__} in {path.name}: {first_line(error)}",
            remedy=f"To see where it comes from: {call}",
        ) from error


def _module(path: Path) -> Any:
    name = f"brinell_user_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ModelError(expected="a Python file", got=str(path), remedy="Write the factory in a .py file.")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    # The file may import its neighbours, as it would when run as a script.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with _users_code(path, "a Python file that can be imported", f"python {path}"):
            found.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _options(spec: str) -> tuple[str, dict[str, Any]]:
    """The source and its options, those of brinell.data.load; a path that exists has none.

    >>> _options("cifar10-c,corruption=fog,severity=3")
    ('cifar10-c', {'corruption': 'fog', 'severity': 3})
    """
    source, *pairs = [spec] if Path(spec).exists() else spec.split(",")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in OPTIONS or not value:
            raise InputError(
                expected=f"data as NAME,option=value with options among {', '.join(OPTIONS)}",
                got=repr(pair),
                remedy="E.g. --data cifar10-c,corruption=fog,severity=3.",
            )
        options[key] = int(value) if key == "severity" and value.isdecimal() else value
    return source, options


def data(spec: str, n: int | None, part: str | None) -> Problem:
    """A problem from "NAME,option=value,…" or a path; `part` "2/4" takes the second of four equal parts."""
    source, options = _options(spec)
    problem = load(source, n, **options)
    if part is None:
        return problem
    try:
        i, of = (int(v) for v in part.split("/"))
    except ValueError:
        i, of = 0, 0
    if not 1 <= i <= of:
        raise InputError(expected="a part such as 2/4", got=repr(part), remedy="Parts are numbered from 1.")
    return problem[(i - 1) * len(problem) // of : i * len(problem) // of]
