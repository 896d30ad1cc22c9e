"""The model zoo: published models by name, with verified weights in networks of `brinell.models.arch`.

A `Card` (`card`) holds what is known about a model. `load` builds its network, gets its files (`fetch`), reads
them without running code and renames the tensors (`weights`). `check` compares the clean accuracy with the published
one. `pretrained` loads models of timm by name. The command `brinell zoo` and `brinell.models.load` call this.
"""

from brinell.models.zoo.card import Card, cards, find
from brinell.models.zoo.check import CheckedAccuracy, check
from brinell.models.zoo.fetch import fetch, place
from brinell.models.zoo.load import build, card_of_file, load

__all__ = ["Card", "CheckedAccuracy", "build", "card_of_file", "cards", "check", "fetch", "find", "load", "place"]
