"""Adversarial training: methods as data, a loop that can be interrupted anywhere, a model that can be evaluated."""

from brinell.models.networks import Network
from brinell.train.fit import Trained, fit
from brinell.train.load import load
from brinell.train.methods import METHODS, Method
from brinell.train.recipe import Recipe

__all__ = ["METHODS", "Method", "Network", "Recipe", "Trained", "fit", "load"]
