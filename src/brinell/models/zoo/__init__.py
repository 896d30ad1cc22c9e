"""The zoo: published models by name, with cards, networks of Brinell's own and checked weights."""

from brinell.models.zoo.card import Card, cards, find
from brinell.models.zoo.check import CheckedAccuracy, check
from brinell.models.zoo.fetch import fetch, place
from brinell.models.zoo.load import build, load

__all__ = ["Card", "CheckedAccuracy", "build", "cards", "check", "fetch", "find", "load", "place"]
