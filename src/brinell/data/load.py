"""Load a Problem from the name of a data set, a file or a folder."""

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from brinell.core.dataset import Problem, first_samples, numbered
from brinell.data import local_files
from brinell.data.catalogue import SETS, DataSet
from brinell.data.corruptions import corrupted
from brinell.data.demo import demo
from brinell.data.fetch import locate_or_fetch, robustbench_list
from brinell.data.image_folders import (
    LISTED,
    ONE_PER_CLASS,
    Images,
    Preprocessing,
    class_folders,
    is_robustbench_list,
    preprocessing,
)
from brinell.data.image_folders import SUFFIXES as PICTURES
from brinell.data.layouts import SEVERITIES, Arrays, Subset
from brinell.data.local_files import SUFFIXES, read_file
from brinell.errors import InputError, one_of

DEMO, FOLDER, NPZ = "demo", "folder:", "npz:"
# The value of `paths` that stands for RobustBench's list of 5,000 ImageNet pictures.
ROBUSTBENCH = "robustbench"
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
    mode: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> Problem:
    """Load a data set, a file or a folder as a Problem with values in [0, 1]; `n` keeps the first n samples.

    `source` is "demo", one of `brinell.data.SETS`, a file or a folder. A folder ("folder:PATH" or a path) has the
    published files of CIFAR or MNIST, or one folder of pictures per class. A file ("npz:PATH" or a path) is a .npz or
    .safetensors file with `x`, `y` and optionally `ids`. For named data sets, `split` is "test" (the default), "train"
    or another split such as "extra" (SVHN); `corruption` and `severity` (1 to 5) select a part of a corrupted data set,
    or corrupt the images of "demo" or another named data set as they are read; `version` selects a version of
    CIFAR-10.1. For pictures, `preprocessing` is a name or a `Preprocessing`, and `paths` is a text file that lists the
    pictures to use, or "robustbench" for RobustBench's list of 5,000. In a folder of pictures, a label is the position
    of its class folder in sorted order (`problem.classes`), and `mode="L"` reads one channel, the grey value, instead
    of three. `root` is a folder with the files of the data
    set; the default is the cache, into which freely available data sets are downloaded on first use. Pictures are
    decoded on demand.

    >>> len(load("demo", n=100))
    100
    """
    if n is not None and (not isinstance(n, int | np.integer) or n < 1):
        raise InputError(expected="n of at least 1 (a whole number)", got=repr(n), remedy="Omit n for all samples.")
    options = {"split": split, "corruption": corruption, "severity": severity, "version": version, "mode": mode}
    if paths == ROBUSTBENCH:
        paths = robustbench_list()
    places = {k: v if v is None else Path(v).expanduser() for k, v in (("paths", paths), ("root", root))}
    given = {k: v for k, v in {**options, "preprocessing": preprocessing, **places}.items() if v is not None}
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            expected="the name of a data set, a file or a folder",
            got=type(source).__name__,
            remedy="Make a problem from arrays with brinell.Problem(x, y).",
        )
    name = os.fspath(source)
    if corruption is not None and (name == DEMO or (name in SETS and "corruption" not in SETS[name].layout.options)):
        clean = load(name, n, split=split, version=version, preprocessing=preprocessing, paths=paths, root=root)
        return corrupted(clean, corruption, 0 if severity is None else severity)
    if name == DEMO:
        _refuse_options(given, (), name)
        x, y = demo()
        problem = Problem(x, y, name=DEMO)
    elif name in SETS:
        problem = _named(SETS[name], n, given)
    elif name.startswith(NPZ):
        _refuse_options(given, (), name)
        problem = _file(Path(name.removeprefix(NPZ)))
    else:
        problem = _path(Path(name.removeprefix(FOLDER)), given)
    return first_samples(problem, n)


def takes_preprocessing(source: str | os.PathLike[str]) -> bool:
    """Return whether the source holds pictures, which a preprocessing resizes and crops.

    >>> takes_preprocessing("imagenet"), takes_preprocessing("cifar10")
    (True, False)
    """
    name = os.fspath(source)
    if name in SETS:
        return "preprocessing" in SETS[name].layout.options
    path = Path(name.removeprefix(FOLDER)).expanduser()
    return path.is_dir() and not local_files.published(path) and any(p.is_dir() for p in path.iterdir())


def arrays(source: str | os.PathLike[str], split: str = "train") -> dict[str, Any]:
    """Return the arrays x (bytes, or floats in [0, 1]) and y of a data set, a file or a folder, for training."""
    s = SETS.get(os.fspath(source))
    if s is None:
        return local_files.read(os.fspath(source).removeprefix(FOLDER).removeprefix(NPZ), split)
    subset = _subset(s, {"split": split})
    data = s.layout.read(locate_or_fetch(s, subset), subset)
    if isinstance(data, Images):
        raise InputError(
            expected="a data set that fits in memory",
            got=s.title,
            remedy="Pass your own torch Dataset to brinell.train.fit.",
        )
    return {"x": _checked(data, s).x, "y": data.y}


def _refuse_options(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    wrong = [k for k in given if k not in known]
    if wrong:
        raise InputError(
            expected=f"{'only the options ' * bool(known)}{', '.join(known) or 'no options'} for {what}",
            got=", ".join(f"{k}={given[k]}" for k in wrong),
            remedy=f"Omit {' and '.join(wrong)}.",
        )


def _subset(s: DataSet, given: dict[str, Any]) -> Subset:
    _refuse_options(
        {k: v for k, v in given.items() if (k, v) != ("split", "test")}, (*s.layout.options, "root"), s.name
    )
    subset = Subset(paths=given.get("paths"), steps=preprocessing(given.get("preprocessing", s.preprocessing)))
    if "split" in s.layout.options:
        subset = replace(subset, split=one_of("a split", given.get("split", "test"), s.sizes))
    if "version" in s.layout.options:
        subset = replace(subset, version=one_of("a version", given.get("version", next(iter(s.sizes))), s.sizes))
    if "corruption" in s.layout.options:
        known = s.layout.corruption_names()
        kind, strength = given.get("corruption"), given.get("severity")
        if kind is None or strength not in SEVERITIES:
            raise InputError(
                expected=f"a corruption and a severity from 1 to 5 for {s.title}",
                got=f"{kind or 'no corruption'}, {'no severity' if strength is None else strength}",
                remedy=f'Write e.g. brinell.data.load("{s.name}", corruption="{known[0]}", severity=3).',
            )
        subset = replace(subset, corruption=one_of("a corruption", kind, known), severity=strength)
    return subset


def _named(s: DataSet, n: int | None, given: dict[str, Any]) -> Problem:
    subset = _subset(s, given)
    data = s.layout.read(locate_or_fetch(s, subset, given.get("root")), subset)
    name = "/".join(p for p in (s.name, subset.label) if p)
    if isinstance(data, Images):
        described = _describe(given.get("preprocessing", s.preprocessing), subset.paths)
        return Problem(data, name="/".join(p for p in (name, described) if p))
    x, y = _checked(Arrays(data.x[:n], data.y[:n]), s)
    return Problem(_points(x), y, name=name)


def _describe(steps: str | Preprocessing, paths: Path | None) -> str:
    """Return the preprocessing and the selection of pictures as text, for the name of a problem."""
    chosen = preprocessing(steps)
    numbers = f"{chosen.interpolation}-{chosen.resize}-{chosen.crop}"
    unchanged = chosen.resize is None and chosen.crop is None
    text = "" if unchanged else steps if isinstance(steps, str) else numbers
    listed = "" if paths is None else LISTED if is_robustbench_list(paths) else paths.stem
    return "/".join(part for part in (text, listed) if part)


def _points(x: Any) -> Any:
    return x if x.dtype == np.float32 else np.float32(x) / LEVELS


def _checked(data: Arrays, s: DataSet) -> Arrays:
    if len(data.y) and not 0 <= data.y.min() <= data.y.max() < s.classes:
        raise InputError(
            expected=f"labels from 0 to {s.classes - 1} in {s.title}",
            got=f"{data.y.min()} to {data.y.max()}",
            remedy="Replace the files: they belong to another data set.",
        )
    return data


def _file(path: Path) -> Problem:
    stored = read_file(path)
    return Problem(stored["x"], stored["y"], stored.get("ids"), name=path.name)


def _pictures(path: Path, given: dict[str, Any]) -> Problem:
    """Return the pictures in the user's class folders; the notes say which label a class has."""
    _refuse_options(given, ("preprocessing", "paths", "mode"), f"class folders {path.name}")
    steps = given.get("preprocessing", "none")
    wanted = preprocessing(steps)
    wanted = replace(wanted, mode=given.get("mode", wanted.mode))
    images = class_folders(path, wanted, given.get("paths"))
    name = "/".join(part for part in (path.resolve().name, _describe(steps, given.get("paths"))) if part)
    problem = Problem(images, name=name)
    problem.notes.append(f"Labels are the class folders in sorted order: {numbered(images.classes or ())}.")
    return problem


def _path(path: Path, given: dict[str, Any]) -> Problem:
    if not path.exists():
        near = difflib.get_close_matches(path.name.lower(), (DEMO, *SETS), n=2)
        raise InputError(
            expected=f"a data set ({', '.join((DEMO, *SETS))}), a file or a folder",
            got=f"{path}, which does not exist",
            remedy=f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else "Pass one of these names or an existing path.",
        )
    if not path.is_dir() or path.suffix in SUFFIXES:
        _refuse_options(given, (), path.name)
        return _file(path)
    if not local_files.published(path) and any(p.is_dir() for p in path.iterdir()):
        return _pictures(path, given)
    if not local_files.published(path) and any(p.suffix.lower() in PICTURES for p in path.iterdir()):
        raise InputError(
            expected=f"class folders in {path}", got="pictures without class folders", remedy=ONE_PER_CLASS
        )
    _refuse_options(given, ("split",), f"folder {path.name}")
    stored = local_files.read(path, given.get("split", "test"))
    # Bytes in a published folder are certainly images with 256 levels.
    return Problem(_points(stored["x"]), stored["y"], name=path.name)
