"""Complete the values of options in a shell: plans, norms, data sets and models, without importing torch."""

import json
import os
import shlex
from collections.abc import Iterable
from importlib.resources import files

from brinell.cli.commands.plans import listed

VARIABLE = "_BRINELL_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""
VALUES = {"--model", "-m", "--data", "-d", "--plan", "--norm"}
"""The options whose values are completed."""
NORMS = ("Linf", "L2", "L1", "L0")
# The names of brinell.data.SETS, which would take as long to import as torch.
DATA = (
    "cifar10", "cifar10-c", "cifar10.1", "cifar100", "cifar100-c", "cinic10", "demo", "dtd", "fashion-mnist", "gtsrb",
    "har", "imagenet", "imagenet-3dcc", "imagenet-c", "mnist", "svhn", "tiny-imagenet",
)  # fmt: skip


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def plans(incomplete: str) -> list[str]:
    """Return the names of plans that start with the word typed so far.

    >>> plans("autoattack-")
    ['autoattack-paper', 'autoattack-plus', 'autoattack-rand']
    """
    return _starting(listed(), incomplete)


def norms(incomplete: str) -> list[str]:
    """Return the names of norms that start with the word typed so far."""
    return _starting(NORMS, incomplete)


def data(incomplete: str) -> list[str]:
    """Return the names of data sets that start with the word typed so far."""
    return _starting(DATA, incomplete)


def models(incomplete: str) -> list[str]:
    """Return the names of models of the zoo that start with the word typed so far, and demo."""
    cards = files("brinell") / "models" / "zoo" / "cards"
    stored = (json.loads(file.read_text()) for file in sorted(cards.iterdir(), key=lambda f: f.name))
    return _starting(["demo", *(card["name"] for part in stored for card in part)], incomplete)


def words_to_complete() -> list[str] | None:
    """Return the words on the command line of the shell that asks for completions; None if no shell asks."""
    if VARIABLE not in os.environ:
        return None
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        return shlex.split(typed)
    except ValueError:  # a quote that is still open
        return typed.split()
