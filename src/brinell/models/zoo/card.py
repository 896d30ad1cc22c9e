"""Model cards: what is known about each model of the zoo. Data, read from the package."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as resources
from typing import Any

from brinell.errors import ModelError


@dataclass(frozen=True)
class WeightFile:
    """A file of weights: its sources, its SHA-256 if known, and the submodule into which it is loaded."""

    sources: tuple[str, ...]
    sha256: str | None = None
    into: str = ""


@dataclass(frozen=True)
class Keys:
    """Rules that map the names of tensors in a checkpoint to names in the network.

    `entry` is the key under which the checkpoint holds the weights; a key "state_dict" is always followed. The rules
    apply in this order: remove the prefixes in `strip`, leave out names that match `drop`, apply `rename["patterns"]`
    if the name `rename["when"]` exists. Names in `absent` may be missing because the network sets these tensors. With
    `ignore_unknown` the checkpoint may hold more tensors than the network. `layout` "tensorflow" transposes weights,
    because TensorFlow has the outputs in the last axis.
    """

    entry: str = ""
    strip: tuple[str, ...] = ("module.", "model.")
    drop: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    ignore_unknown: bool = False
    rename: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""


@dataclass(frozen=True)
class Card:
    """The facts about one model of the zoo; accuracies are shares from 0 to 1 as published, None if unknown.

    `network` is None if Brinell has no such network, and `missing` says why. `unloadable` says why weights cannot be
    loaded although the network exists. `evidence` says how the network was compared with the published one: "logits"
    (logits and layout), "layout" (layout only), "none" (nothing recorded), or "own" (trained with Brinell). `paper` is
    the address of the paper, `title` and `authors` are its title and authors. `licence` is the licence of the weights
    as an SPDX identifier, or "unknown".
    """

    name: str
    paper: str
    venue: str
    licence: str
    architecture: str
    network: Mapping[str, Any] | None
    files: tuple[WeightFile, ...]
    keys: Keys
    eps: str | None
    clean_accuracy: float | None
    robust_accuracy: float | None
    best_known: float | None
    unreliable: bool
    extra_data: bool
    preprocessing: str | None
    missing: str
    unloadable: str
    evidence: str
    title: str = ""
    authors: str = ""
    footnote: str = ""

    @property
    def data(self) -> str:
        """The data set, e.g. "cifar10"."""
        return self.name.split("/")[0]

    @property
    def threat(self) -> str:
        """The threat that the model was trained against: "Linf", "L2" or "corruptions"."""
        return self.name.split("/")[1]

    @property
    def loadable(self) -> bool:
        """Whether `load` can load the model."""
        return self.network is not None and bool(self.files) and not self.unloadable

    @property
    def restriction(self) -> str:
        """A sentence that says that the licence forbids commercial use; "" if it allows this use or is unknown.

        >>> find("cifar10/L2/Ding2020MMA").restriction
        'The weights of cifar10/L2/Ding2020MMA are for NON-COMMERCIAL use only (licence CC-BY-NC-SA-4.0).'
        """
        if "NC" not in self.licence.split("-"):
            return ""
        return f"The weights of {self.name} are for NON-COMMERCIAL use only (licence {self.licence})."


def _tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}


def _card(stored: Mapping[str, Any]) -> Card:
    parts = {"files": tuple(WeightFile(**_tuples(f)) for f in stored["files"]), "keys": Keys(**_tuples(stored["keys"]))}
    return Card(**{**stored, **parts})


@cache
def _all() -> dict[str, Card]:
    folder = resources("brinell.models.zoo") / "cards"
    pages = sorted((p for p in folder.iterdir() if p.name.endswith(".json")), key=lambda p: p.name)
    loaded = [_card(c) for page in pages for c in json.loads(page.read_text(encoding="utf-8"))]
    return {c.name: c for c in loaded}


def cards() -> dict[str, Card]:
    """Return all cards by name, "data/threat/model".

    >>> cards()["cifar10/Linf/Carmon2019Unlabeled"].architecture
    'WideResNet-28-10'
    """
    return dict(_all())


def _near(name: str, known: list[str]) -> list[str]:
    """Return up to three similar names, of the same first author if the zoo has any, else of all models."""
    author = re.match("[A-Za-z]*", name.rpartition("/")[2])
    stem = "/" + author[0] if author and author[0] else None
    same_author = [k for k in known if stem is not None and stem in k]
    return difflib.get_close_matches(name, same_author or known, n=3, cutoff=0.3 if same_author else 0.5)


def find(name: str) -> Card:
    """Return the card with this name; the last part of the name is enough if it is unique.

    >>> find("Carmon2019Unlabeled").name
    'cifar10/Linf/Carmon2019Unlabeled'
    """
    known = _all()
    if name in known:
        return known[name]
    same = [c for c in known.values() if c.name.endswith("/" + name)]
    if len(same) == 1:
        return same[0]
    near = [c.name for c in same] or _near(name, list(known))
    raise ModelError(
        expected="a model of the zoo as data/threat/model (see brinell zoo list)",
        got=repr(name),
        remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "List the names: brinell zoo list.",
    )
