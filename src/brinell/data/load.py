"""A Problem from a name, a file or a folder."""

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from brinell.core.dataset import Problem
from brinell.data import folders
from brinell.data.arrays import ENDS, read_file
from brinell.data.demo import demo
from brinell.data.fetch import provide
from brinell.data.images import Images, Preprocessing, class_folders, is_benchmark, preprocessing
from brinell.data.layouts import SEVERITIES, Arrays, Choice
from brinell.data.sets import SETS, Set
from brinell.errors import InputError, one_of

DEMO, FOLDER, NPZ = "demo", "folder:", "npz:"
LEVELS = np.float32(255)


def load(
    source: str | os.PathLike[str],
    n: int | None = None,
    *,
    split: str | None = None,
    corruption: str | None = None,
    severity: int | None = None,
    version: str | None = None,
    preprocessing: str | Preprocessing | None = None,
    paths: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Problem:
    """The named data set, or a file or folder; values in [0, 1], in their published order; `n` takes the first n.

    A name is "demo" or one of `brinell.data.SETS`; "folder:PATH" or a path is a folder as CIFAR or MNIST are published
    or of class folders with pictures; "npz:PATH" or a path is a .npz or .safetensors file with `x`, `y` and optionally
    `ids`. Of a named set, `split` is "test" (unless given), "train" or, of SVHN, "extra"; `corruption` and `severity`
    (1 to 5) choose from corrupted sets, `version` from CIFAR-10.1; for pictures, `preprocessing` is a name or a
    `Preprocessing`, `paths` a text file that lists the wanted ones. `root` is a folder that has the set; without it the
    cache, into which what is published freely is fetched when first asked for. Pictures are decoded as they are needed.

    >>> len(load("demo", n=100))
    100
    """
    if n is not None and (not isinstance(n, int | np.integer) or n < 1):
        raise InputError(
            expected="n of at least 1, a whole number", got=repr(n), remedy="Leave it out for all samples."
        )
    given: dict[str, Any] = {
        "split": split,
        "corruption": corruption,
        "severity": severity,
        "version": version,
        "preprocessing": preprocessing,
        "paths": None if paths is None else Path(paths).expanduser(),
        "root": None if root is None else Path(root).expanduser(),
    }
    given = {k: v for k, v in given.items() if v is not None}
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            expected="the name of a data set, a file or a folder",
            got=type(source).__name__,
            remedy="Arrays make a problem as they are: brinell.Problem(x, y).",
        )
    name = os.fspath(source)
    if name == DEMO:
        _refuse(given, (), name)
        x, y = demo()
        problem = Problem(x, y, name=DEMO)
    elif name in SETS:
        problem = _named(SETS[name], n, given)
    elif name.startswith(NPZ):
        _refuse(given, (), name)
        problem = _file(Path(name.removeprefix(NPZ)))
    else:
        problem = _path(Path(name.removeprefix(FOLDER)), given)
    return problem if n is None else problem[:n]


def arrays(source: str | os.PathLike[str], split: str = "train") -> dict[str, Any]:
    """The arrays x (bytes, or floats in [0, 1]) and y of a named set, a file or a published folder, for training."""
    s = SETS.get(os.fspath(source))
    if s is None:
        return folders.read(os.fspath(source).removeprefix(FOLDER).removeprefix(NPZ), split)
    choice = _choice(s, {"split": split})
    found = s.layout.read(provide(s, choice), choice)
    if isinstance(found, Images):
        raise InputError(
            expected="data that fit in memory", got=s.title, remedy="Train on it with a Dataset of your own."
        )
    return {"x": _checked(found, s).x, "y": found.y}


def _refuse(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    wrong = [k for k in given if k not in known]
    if wrong:
        raise InputError(
            expected=f"for {what} {', '.join(known) or 'no'} options",
            got=", ".join(f"{k}={given[k]}" for k in wrong),
            remedy="Leave it out.",
        )


def _choice(s: Set, given: dict[str, Any]) -> Choice:
    """The part of a set that the options name, checked."""
    _refuse({k: v for k, v in given.items() if (k, v) != ("split", "test")}, (*s.layout.options, "root"), s.name)
    choice = Choice(paths=given.get("paths"), steps=preprocessing(given.get("preprocessing", s.preprocessing)))
    if "split" in s.layout.options:
        choice = replace(choice, split=one_of("a split", given.get("split", "test"), s.sizes))
    if "version" in s.layout.options:
        choice = replace(choice, version=one_of("a version", given.get("version", next(iter(s.sizes))), s.sizes))
    if "corruption" in s.layout.options:
        known = (*getattr(s.layout, "corruptions", ()), *getattr(s.layout, "extra", ()))
        kind, strength = given.get("corruption"), given.get("severity")
        if kind is None or strength not in SEVERITIES:
            raise InputError(
                expected=f"a corruption and a severity from 1 to 5 for {s.title}",
                got=f"{kind or 'no corruption'}, {'no severity' if strength is None else strength}",
                remedy=f'E.g. brinell.data.load("{s.name}", corruption="{known[0]}", severity=3).',
            )
        choice = replace(choice, corruption=one_of("a corruption", kind, known), severity=strength)
    return choice


def _named(s: Set, n: int | None, given: dict[str, Any]) -> Problem:
    choice = _choice(s, given)
    found = s.layout.read(provide(s, choice, given.get("root")), choice)
    name = "/".join(p for p in (s.name, choice.label) if p)
    if isinstance(found, Images):
        return Problem(found, name=f"{name}/{_words(given.get('preprocessing', s.preprocessing), choice.paths)}")
    x, y = _checked(Arrays(found.x[:n], found.y[:n]), s)
    return Problem(_points(x), y, name=name)


def _words(steps: str | Preprocessing, paths: Path | None) -> str:
    """How pictures were made and chosen, for the name of a problem."""
    made = steps if isinstance(steps, str) else f"{steps.interpolation}-{steps.resize}-{steps.crop}"
    if paths is None:
        return made
    return f"{made}/{'robustbench-5000' if is_benchmark(paths) else paths.stem}"


def _points(x: Any) -> Any:
    """Bytes as floats in [0, 1]."""
    return np.float32(x) / LEVELS


def _checked(found: Arrays, s: Set) -> Arrays:
    if len(found.y) and not 0 <= found.y.min() <= found.y.max() < s.classes:
        raise InputError(
            expected=f"labels from 0 to {s.classes - 1} in {s.title}",
            got=f"{found.y.min()} to {found.y.max()}",
            remedy="These are the files of another data set.",
        )
    return found


def _file(path: Path) -> Problem:
    stored = read_file(path)
    return Problem(stored["x"], stored["y"], stored.get("ids"), name=path.name)


def _path(path: Path, given: dict[str, Any]) -> Problem:
    if not path.exists():
        near = difflib.get_close_matches(path.name.lower(), (DEMO, *SETS), n=2)
        raise InputError(
            expected=f"a data set ({', '.join((DEMO, *SETS))}), a file or a folder",
            got=f"{path}, which does not exist",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "Check the path.",
        )
    if not path.is_dir() or path.suffix in ENDS:
        _refuse(given, (), path.name)
        return _file(path)
    if not folders.published(path) and any(p.is_dir() for p in path.iterdir()):
        _refuse(given, ("preprocessing", "paths"), f"class folders {path.name}")
        steps = given.get("preprocessing", "none")
        found = class_folders(path, preprocessing(steps), given.get("paths"))
        return Problem(found, name=f"{path.name}/{_words(steps, given.get('paths'))}")
    _refuse(given, ("split",), f"folder {path.name}")
    stored = folders.read(path, given.get("split", "test"))
    # Only a folder says for sure that its bytes are images of 256 levels.
    return Problem(_points(stored["x"]), stored["y"], name=path.name)
